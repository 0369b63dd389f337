# The two commands of the README: `make run` and `make test`. Both make the virtual environment first.
PYTHON ?= python3
# Any torch with C++ headers will do. A CPU build is enough; choose another by `make run TORCH=torch==2.8.0`.
TORCH ?= torch==2.13.0
WORKERS ?= 2
BIN := .venv/bin

.PHONY: setup run test lint fuzz clean

setup: .venv/ready

.venv/ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev,report,watch,cluster]"
	touch $@

run: setup
	$(BIN)/python gpt149.py part3 -N 1024

test: setup lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Some 28,000 mutated inputs for all that reads what strangers wrote, and seconds per megabyte.
fuzz: setup
	PYTHONPATH=.:tests $(BIN)/python -m fuzz.inside
	PYTHONPATH=.:tests $(BIN)/python -m fuzz.outside
	PYTHONPATH=.:tests $(BIN)/python -m fuzz.papers

clean:
	rm -rf .venv build dist *.egg-info
