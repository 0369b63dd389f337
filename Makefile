# The commands of the README. If the virtual environment is missing, each command first makes it.
PYTHON ?= python3
# A CPU build of torch suffices, in any version with C++ headers: `make run TORCH=torch==2.8.0`.
TORCH ?= torch==2.13.0
WORKERS ?= 3
BIN := .venv/bin
# Let Python store compiled modules. Tests start some hundred processes, and each would compile all modules again.
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

# Some tests need Triton's interpreter. Triton takes a gigabyte and does not exist for every kind of machine.
.venv/triton: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[gpu]" || echo "No Triton here: its tests are left out."
	touch $@

PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# The fast tier of tests: one test of each behaviour.
test: prepare
	$(PYTEST)

# The full tier: all tests.
test-all: prepare
	$(PYTEST) -m ""

# The tests that `test-all` runs and `test` does not.
test-rest: prepare
	$(PYTEST) -m full

# Run these three at the same time, because each uses one core or waits for the network.
prepare: setup
	@test $$(df -Pk . | awk 'END {print $$4}') -gt 3000000 || \
	    { echo "All tests write 3 GB below $(CURDIR)/build and /tmp, and less is free here: free some space first."; exit 3; }
	$(MAKE) -j 3 lint headers .venv/triton

# Precompile the headers that most tests need. Else each of the parallel workers would do it.
headers: setup
	PYTHONPATH=.:tests $(BIN)/python -m headers

# Tests that need a GPU, which take minutes. docs/gpu.md has the latest figures.
test-gpu: setup .venv/triton
	$(BIN)/python -m pytest -n 0 tests/test_gpu.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/prose.py
	$(BIN)/lint-imports --no-logo --cache-dir build/import-linter
	$(BIN)/mypy

# Give all readers of untrusted data some 28,000 mutated inputs. FUZZ_SEED=N draws other inputs.
fuzz: setup
	FUZZ_INPUTS=1500 $(PYTEST) -m "" tests/fuzz

clean:
	rm -rf .venv build dist *.egg-info
