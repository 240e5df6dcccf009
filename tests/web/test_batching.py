"""Batches, lanes, and their bounds."""

import asyncio
import threading

import pytest

from sightline import limits
from sightline.web import deadlines
from sightline.web.batching import Batcher
from sightline.web.bodies import BoundedBodies
from sightline.web.errors import BusyError
from sightline.web.lanes import Lane
from web_client import in_own_loop


class Runner:
    """Runs batches one by one as they are released, and keeps them."""

    def __init__(self):
        self.batches, self.started, self.release = [], threading.Event(), threading.Semaphore(0)

    def __call__(self, key, items):
        self.batches.append((key, list(items)))
        self.started.set()
        self.release.acquire()
        if "bad" in items:
            raise ZeroDivisionError
        return [f"{key}{item}" for item in items]


async def begun(runner):
    await asyncio.to_thread(runner.started.wait)


async def waiting(batcher, count):
    while len(batcher._jobs) < count:
        await asyncio.sleep(0)


@in_own_loop
async def test_requests_that_arrive_during_a_batch_are_the_next_one():
    runner = Runner()
    batcher = Batcher("test", runner, max_batch=3)
    first = asyncio.create_task(batcher.submit("a", 0))
    await begun(runner)
    rest = [asyncio.create_task(batcher.submit("b" if i == 2 else "a", i)) for i in range(1, 6)]
    await waiting(batcher, 5)
    runner.release.release(10)
    assert await first == "a0"
    assert await asyncio.gather(*rest) == ["a1", "b2", "a3", "a4", "a5"]
    assert runner.batches == [("a", [0]), ("a", [1, 3, 4]), ("b", [2]), ("a", [5])]
    await asyncio.to_thread(batcher.close)


@in_own_loop
async def test_an_item_that_fails_costs_no_other():
    runner = Runner()
    batcher = Batcher("test", runner)
    first = asyncio.create_task(batcher.submit("a", 0))
    await begun(runner)
    rest = [asyncio.create_task(batcher.submit("a", item)) for item in (1, "bad", 2)]
    await waiting(batcher, 3)
    runner.release.release(10)
    results = await asyncio.gather(first, *rest, return_exceptions=True)
    assert [results[0], results[1], results[3]] == ["a0", "a1", "a2"]
    assert isinstance(results[2], ZeroDivisionError)
    await asyncio.to_thread(batcher.close)


@in_own_loop
async def test_a_full_queue_and_a_late_answer_are_refused(monkeypatch):
    monkeypatch.setattr(limits, "MAX_WEB_WAITING", 2)
    runner = Runner()
    batcher = Batcher("test", runner)
    first = asyncio.create_task(batcher.submit("a", 0))
    await begun(runner)
    rest = [asyncio.create_task(batcher.submit("a", i)) for i in (1, 2)]
    await waiting(batcher, 2)
    with pytest.raises(BusyError) as error:
        await batcher.submit("a", 3)
    assert error.value.status_code == 503
    assert error.value.headers == {"Retry-After": "1"}
    monkeypatch.setattr(limits, "MAX_WEB_WAITING", 3)
    monkeypatch.setattr(limits, "MAX_WEB_SECONDS", 0.01)
    with pytest.raises(BusyError):
        await batcher.submit("a", "late")
    runner.release.release(10)
    assert await asyncio.gather(first, *rest) == ["a0", "a1", "a2"]
    await asyncio.to_thread(batcher.close)
    assert all("late" not in items for _, items in runner.batches)  # what was given up does not run


@in_own_loop
async def test_closing_finishes_what_waits():
    runner = Runner()
    batcher = Batcher("test", runner)
    tasks = [asyncio.create_task(batcher.submit(str(i), i)) for i in range(3)]
    await begun(runner)
    await waiting(batcher, 2)
    closing = asyncio.create_task(asyncio.to_thread(batcher.close))
    runner.release.release(10)
    assert await asyncio.gather(*tasks) == ["00", "11", "22"]
    await closing
    with pytest.raises(BusyError):
        await batcher.submit("a", 3)


@in_own_loop
async def test_a_slow_lane_does_not_stop_another_and_is_bounded(monkeypatch):
    monkeypatch.setattr(limits, "MAX_WEB_WAITING", 1)
    slow, quick, release = Lane("slow", 1), Lane("quick", 1), threading.Event()
    blocked = asyncio.create_task(slow.run(release.wait))
    await asyncio.sleep(0)
    assert await quick.run(lambda: "done") == "done"
    with pytest.raises(BusyError):
        await slow.run(lambda: None)
    release.set()
    assert await blocked
    assert await slow.run(lambda: "again") == "again"
    for lane in (slow, quick):
        lane.close()


@in_own_loop
async def test_the_body_the_queue_and_the_computation_share_one_deadline(monkeypatch):
    clock, lane, release, seen = [0], Lane("test", 1), threading.Event(), []
    monkeypatch.setattr(deadlines, "monotonic", lambda: clock[0])
    batcher = Batcher("test", lambda key, items: items)

    async def receive():
        clock[0] += limits.MAX_WEB_SECONDS - 7
        return {"type": "http.request", "body": b"x", "more_body": False}

    async def app(scope, receive, send):
        await receive()
        seen.append(await lane.run(deadlines.remaining))  # in a thread
        assert await batcher.submit("a", "in time") == "in time"
        clock[0] += 7
        for late in (lane.run(release.wait, 30), batcher.submit("a", "late")):
            with pytest.raises(BusyError, match=f"a request must be answered in {limits.MAX_WEB_SECONDS} seconds"):
                await late
        seen.append(deadlines.remaining())

    await BoundedBodies(app)({"type": "http", "headers": []}, receive, None)
    assert seen == [7, 0]
    release.set()
    lane.close()
    await asyncio.to_thread(batcher.close)
