# The same verbs here and in CI; `make help` lists them. Each makes the environment first.
PYTHON ?= python3
JOBS ?= 4
BIN := .venv/bin
STAMP := .venv/.installed
CODE := $(wildcard farm tests benchmarks examples)

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow test-root test-slurm test-gpu test-arithmetic check format proto bench examples clean

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## make the environment in .venv

# Reinstalls when the dependencies or their pinned versions change. graphpipe, the published client, asks for versions
# of 2018 that no Python of today runs, and works with those that are there: it comes without what it asks for.
# aepsych-client has a licence that is not for everybody: no part of farm depends on it, a test of farm talks to it. It
# brings a package `tests` of its own, which must not be taken for ours: it stands apart.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "farm needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || { echo "making the environment in .venv (a few minutes, once)"; $(PYTHON) -m venv .venv; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps graphpipe
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps --upgrade \
		--target .venv/clients aepsych-client
	@touch $@

demo: $(STAMP) ## a farm on this machine runs a real sweep into HDF5, in seconds
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/demo.sh

# Tests start farm some hundred times, which need not compile it each where PYTHONDONTWRITEBYTECODE is set.
test: $(STAMP) ## the default test suite, about five minutes, in JOBS=4 processes
	@$(BIN)/python -m compileall -q farm
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

test-slow: $(STAMP) ## the tests that take minutes: kill loops, memory, load
	$(BIN)/python -m pytest -m "slow and not root and not slurm" --timeout 900

test-root: $(STAMP) ## the tests that only root can run, such as a full disk
	$(BIN)/python -m pytest -m "root and not slurm" --timeout 300

test-gpu: $(STAMP) ## the tests that need an NVIDIA GPU
	$(BIN)/python -m pytest -m gpu

test-slurm: $(STAMP) ## the tests on a SLURM of virtual nodes, which they bring up and take down
	$(BIN)/python -m pytest -m slurm --timeout 300

# What other processors compute, on this one: results may differ in their last digits, tests may not.
test-arithmetic: $(STAMP) ## the tests of experiments, with the arithmetic of other processors
	ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE OPENBLAS_CORETYPE=Nehalem $(BIN)/python -m pytest -n $(JOBS) tests/experiment
	ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=AVX2 OPENBLAS_CORETYPE=Haswell $(BIN)/python -m pytest -n $(JOBS) tests/experiment

check: $(STAMP) ## format, lint, types, import order
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy $(CODE)
	$(BIN)/python -m pytest --quiet tests/test_project.py

format: $(STAMP) ## rewrite the code in the project's format
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

proto: $(STAMP) ## write the messages of farm/protocols/*.proto as Python
	$(BIN)/python -m tests.protocols.kserve_proto

bench: $(STAMP) ## every benchmark but that of a cluster: ratios, versions and machine
	@for script in $$(grep -l '^if __name__' benchmarks/*.py | grep -v cluster); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

examples: $(STAMP) ## run every example; each checks its own answer
	$(BIN)/python -m pytest --verbose tests/test_examples.py -m "slow or not slow" --timeout 300

clean: ## remove the environment, caches and build products
	rm -rf farm-demo .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
