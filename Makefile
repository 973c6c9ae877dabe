# Each target makes .venv by itself. PYTHON picks the interpreter it is made from.
PYTHON ?= python3
BIN := .venv/bin
# TORCH_INDEX is one more index to find torch in. PyTorch's index of CPU builds,
# https://download.pytorch.org/whl/cpu, leaves out gigabytes of CUDA on Linux.
TORCH_INDEX ?=
TORCH_FROM := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.PHONY: demo test test-fast lint bench clean

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(TORCH_FROM) torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

# The demo needs the package alone: where nobody has set up to develop, it gets an environment of its
# own, without what tests need.
DEMO_VENV := $(if $(wildcard .venv/ready),.venv,.venv-demo)

.venv-demo/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-demo
	.venv-demo/bin/python -m pip install --quiet --constraint constraints.txt \
		$(TORCH_FROM) torch==2.13.0 --editable .
	touch $@

demo: $(DEMO_VENV)/ready
	rm -rf demo
	$(DEMO_VENV)/bin/evergram demo --out demo

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
	rm -rf .venv .venv-demo demo
