# Each target creates the environment .venv if it needs it. PYTHON is the interpreter for it.
PYTHON ?= python3
BIN := .venv/bin
# TORCH_INDEX is another package index for torch. PyTorch's index of CPU builds,
# https://download.pytorch.org/whl/cpu, saves gigabytes of CUDA libraries on Linux.
TORCH_INDEX ?=
TORCH_FROM := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.PHONY: demo docs gpu-check test test-all lint release-check lower-bounds sbom bench evidence clean

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(TORCH_FROM) torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

# The demo needs only the package: if there is no .venv, it gets an environment of its own without what
# developers need.
DEMO_VENV := $(if $(wildcard .venv/ready),.venv,.venv-demo)

.venv-demo/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-demo
	.venv-demo/bin/python -m pip install --quiet --constraint constraints.txt \
		$(TORCH_FROM) torch==2.13.0 --editable .
	touch $@

demo: $(DEMO_VENV)/ready
	rm -rf demo
	$(DEMO_VENV)/bin/evergram demo --out demo

# One torch thread for each worker, because workers share the cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=auto --dist=worksteal

# What every change must pass.
test: .venv/ready
	$(PYTEST) -m "not long"

# Everything: also long loops, benchmarks, notebooks and releases in fresh environments.
test-all: .venv/ready
	$(PYTEST)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m benchmarks.budget

# The documents as a site in build/site; a link that leads nowhere fails.
docs: .venv/ready
	$(BIN)/python -m website
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The wheel and the sdist, built, and installed without constraints on every Python that pyproject.toml names
# and this machine has; the newest of all dependencies is downloaded.
release-check: .venv/ready
	env -u PIP_CONSTRAINT EVERGRAM_RELEASE=torch==2.13.0 $(BIN)/python -m pytest -s -rs tests/test_release.py

# A part of the suite with the lowest versions that pyproject.toml allows, in an environment of their own
# (downloads some gigabytes). Old releases warn of newer ones beside them; that is no fault of a bound.
LOW := build/lowest
LOW_EXTRAS := client faiss graph onnx pgvector prepare qdrant remote serve tune
lower-bounds:
	$(PYTHON) -m venv $(LOW)/tools && $(LOW)/tools/bin/pip install --quiet uv
	$(LOW)/tools/bin/uv pip compile --quiet pyproject.toml tests/support/lower_bounds.in $(LOW_EXTRAS:%=--extra %) \
		--resolution lowest-direct --python $(PYTHON) --output-file $(LOW)/lowest.txt
	$(LOW)/tools/bin/uv venv --quiet --clear --python $(PYTHON) $(LOW)/environment
	$(LOW)/tools/bin/uv pip install --quiet --python $(LOW)/environment -r $(LOW)/lowest.txt
	$(LOW)/tools/bin/uv pip install --quiet --python $(LOW)/environment --no-deps --editable .
	OMP_NUM_THREADS=1 $(LOW)/environment/bin/python -m pytest -p no:cacheprovider -m "not long" -rs \
		-W ignore::DeprecationWarning -W ignore::PendingDeprecationWarning -W ignore::FutureWarning \
		tests/gramian tests/compatibility tests/lineage tests/cli

# What a machine with CUDA computes, and how fast: one JSON, from which docs/training.md has its sentences. It
# runs in the environment of PYTHON, because a GPU's torch is its own; that needs the package and pytest.
gpu-check:
	PYTHONPATH=src:. $(PYTHON) -m benchmarks.gpu_check

# What is installed, with versions and licences, as CycloneDX.
sbom: .venv/ready
	$(BIN)/python -m website.bill_of_materials --extras serve pgvector faiss --out build/sbom.json

# The libraries that benchmarks compare Evergram with.
.venv/peers: .venv/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[peers]"
	touch $@

bench: .venv/peers
	$(BIN)/python -m benchmarks

# The tables and figures of the documents, where the code has changed since they were made. It takes hours;
# what is done is kept, so it can be stopped and started again.
evidence: .venv/peers
	$(BIN)/python -m benchmarks --write --changed
	$(BIN)/python -m reproduction stale
	$(BIN)/python -m reproduction report

clean:
	rm -rf .venv .venv-demo demo
