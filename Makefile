# The commands of the README. Each makes the virtual environment first.
PYTHON ?= python3
# Any torch with C++ headers will do. A CPU build is enough; choose another by `make run TORCH=torch==2.8.0`.
TORCH ?= torch==2.13.0
WORKERS ?= 2
BIN := .venv/bin
# Tests start some hundred processes: each would compile all of the kit's modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup run test test-all test-rest test-gpu prepare lint headers fuzz clean

setup: .venv/ready

.venv/ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev,report,watch,cluster]"
	touch $@

run: setup
	$(BIN)/python gpt149.py part3 -N 1024

# Some tests judge kernels in Triton's interpreter, which is a gigabyte and not there for every machine.
.venv/triton: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[gpu]" || echo "No Triton here: its tests are left out."
	touch $@

PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# The fast tier: one test of each behaviour.
test: prepare
	$(PYTEST)

# Both tiers.
test-all: prepare
	$(PYTEST) -m ""

# What test-all adds to test.
test-rest: prepare
	$(PYTEST) -m full

# Each is one core's work or waits for the network, so they run side by side.
prepare: setup
	$(MAKE) -j 3 lint headers .venv/triton

# What most tests are compiled against; two workers that begin without it would both make it.
headers: setup
	PYTHONPATH=.:tests $(BIN)/python -m headers

# What needs a GPU: minutes. docs/gpu.md has the latest figures.
test-gpu: setup .venv/triton
	$(BIN)/python -m pytest -n 0 tests/test_gpu.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/prose.py
	$(BIN)/lint-imports --no-logo --cache-dir build/import-linter
	$(BIN)/mypy

# Some 28,000 mutated inputs for all that reads what strangers wrote. FUZZ_SEED=N draws others.
fuzz: setup
	FUZZ_INPUTS=1500 $(PYTEST) -m "" tests/fuzz

clean:
	rm -rf .venv build dist *.egg-info
