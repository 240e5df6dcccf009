import os

import pytest

import search_task
from sightline import registry


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setitem(registry.TASKS, "toy_search", search_task.SPEC)
    monkeypatch.setattr(search_task.ToyTask, "loads", 0)
    monkeypatch.setattr(search_task.ToyTask, "trained", [])
    return search_task.ToyTask


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    """No test cuts the power; tests of killed processes do not need it."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
