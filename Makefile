# Each target makes .venv by itself. PYTHON picks the interpreter it is made from.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-fast lint bench clean

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: .venv/ready
	rm -rf demo
	$(BIN)/evergram demo --out demo

# One thread of torch a worker: workers share the cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=auto --dist=worksteal

test: .venv/ready
	$(PYTEST)

# Without the tests that are marked long.
test-fast: .venv/ready
	$(PYTEST) -m "not long"

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The peers that we are measured beside.
.venv/peers: .venv/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[peers]"
	touch $@

bench: .venv/peers
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv demo
