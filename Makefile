# make demo   set up what is needed and show the thing working
# make test   set up what is needed, browser included, then lint and test
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint bench docs setup browser clean

demo: .venv/ready
	$(BIN)/sightline demo --out demo

test: lint browser
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto

lint: .venv/tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/tools
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/startup.py

docs: .venv/tools browser
	$(BIN)/python docs/figures.py
	$(BIN)/python docs/screenshots.py

setup: .venv/tools

PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

# What the demo needs.
.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) '.[plot]'
	touch $@

# And what tests, lints and benchmarks need beside it.
.venv/tools: .venv/ready
	$(PIP) '.[dev]'
	touch $@

# Tests drive a real Chromium. Debian's package serves; elsewhere install any Chromium and put it on the PATH.
browser:
	@command -v chromium >/dev/null || \
	  { echo "installing chromium"; apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; } || \
	  { echo "tests must have a chromium on the PATH, found none, and apt-get could not install it" >&2; exit 1; }

clean:
	rm -rf .venv demo dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
