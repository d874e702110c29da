# The same verbs here and in CI; `make help` lists them. Each makes the environment first.
PYTHON ?= python3
JOBS ?= 4
PYTHONS ?= $(foreach version,3.12 3.13 3.14,$(shell python$(version) -c 'print("python$(version)")' 2>/dev/null))
BIN := .venv/bin
BASE := .venv/.base
STAMP := .venv/.installed
CODE := $(wildcard farm tests benchmarks examples)
PURE := tests/encoding tests/wire tests/scheduler tests/dispatcher tests/protocols tests/sweep/design tests/sweep/space tests/experiment/config \
	tests/http1/test_reader.py tests/grpc/http2 tests/test_call.py tests/test_expression.py tests/test_model.py
IMPURE := *endpoint* *connection* *service* *remote*
# What meets the interpreter itself: the event loop, threads, processes, sockets, typing.
INTERPRETER := tests/cli/test_call.py tests/cli/test_cli.py tests/cli/test_status.py tests/client tests/contracts tests/http1 tests/machine \
	tests/server tests/storage tests/sweep/file tests/transports/dask tests/transports/zmq tests/worker/frameworks/test_jax.py \
	tests/worker/frameworks/test_onnx.py tests/worker/mpi
# What meets other packages.
PACKAGES := tests/cli/test_call.py tests/cli/test_cli.py tests/cli/test_status.py tests/client tests/encoding tests/experiment/config \
	tests/server tests/sweep/design tests/sweep/file tests/sweep/report tests/sweep/run/test_display.py tests/transports/dask \
	tests/transports/zmq tests/worker/frameworks/test_jax.py tests/worker/frameworks/test_onnx.py tests/worker/mpi
WITH_TORCH := tests/experiment/models/test_proposals.py tests/experiment/models/test_surrogate.py \
	tests/contracts/test_frameworks.py tests/worker/frameworks/test_torch.py
# What can hardly differ with either, so that a night's run is soon enough.
PORTABLE := tests/bodies tests/dispatcher tests/grpc tests/protocols tests/sweep/space tests/wire
EXPERIMENTS := tests/experiment/models

# Where this is set, each of many hundred processes compiles what it imports, and pytest rewrites each test anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo quick test nightly test-browser test-slow test-root test-slurm test-grid-engine test-containers test-gpu \
	test-arithmetic test-lowest test-python test-pythons test-samplers test-clients check audit release-check docs docs-serve format proto \
	picture diagrams bench examples clean

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## make the environment in .venv

# What a user installs. Both environments reinstall when the dependencies or their pinned versions change.
$(BASE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "farm needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || { echo "making the environment in .venv (half a minute, once)"; $(PYTHON) -m venv .venv; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

# What tests and checks need, added to it. graphpipe, the published client, asks for versions
# of 2018 that no Python of today runs, and works with those that are there: it comes without what it asks for.
# aepsych-client has a licence that is not for everybody: no part of farm depends on it, a test of farm talks to it. It
# brings a package `tests` of its own, which must not be taken for ours: it stands apart.
$(STAMP): $(BASE)
	@test -e $@ || echo "adding to .venv what tests need (a few minutes, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps graphpipe
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps --upgrade \
		--target .venv/clients aepsych-client
	@touch $@

demo: $(BASE) ## a farm on this machine runs a real sweep into HDF5, in seconds
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/demo.sh

test: $(STAMP) ## the default test suite, three to eight minutes on two cores, in JOBS=4 processes
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

quick: $(STAMP) ## the tests of the pure parts, with few examples each: seconds
	HYPOTHESIS_PROFILE=quick $(BIN)/python -m pytest --quiet -n $(JOBS) --dist loadfile $(PURE) $(IMPURE:%=--ignore-glob=tests/protocols/%)

test-browser: $(STAMP) ## the tests of the status page and of reports in headless Chromium: two minutes
	$(BIN)/python -m pytest -m browser tests/server tests/sweep/report tests/test_site_in_a_browser.py

SLOW := slow and not root and not slurm and not grid_engine and not samplers and not browser
test-slow: $(STAMP) ## the tests that the default suite leaves out: kill loops, memory, load, and whatever takes seconds
	$(BIN)/python -m pytest -n 3 --dist loadfile --timeout 900 -m "$(SLOW) and not nightly"

nightly: $(STAMP) ## what takes many minutes and seldom finds anything: all inputs, all of the suite elsewhere
	$(BIN)/python -m pytest -n 2 --dist loadfile --timeout 900 -m "$(SLOW) and nightly"
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --timeout 900 \
		-m "hypothesis and not slow and not root and not slurm and not grid_engine and not gpu and not samplers"
	$(MAKE) test-lowest PACKAGES="$(INTERPRETER) $(PACKAGES) $(PORTABLE)"
	$(MAKE) test-pythons INTERPRETER="$(INTERPRETER) $(PACKAGES) $(PORTABLE)"
	$(MAKE) test-arithmetic EXPERIMENTS=tests/experiment

test-root: $(STAMP) ## the tests that only root can run, such as a full disk
	$(BIN)/python -m pytest -m "root and not slurm and not grid_engine and not samplers" --timeout 300

test-containers: $(STAMP) ## the tests that need podman; no part of CI
	$(BIN)/python -m pytest -m containers tests/system/test_containers.py

test-gpu: $(STAMP) ## the tests that need an NVIDIA GPU
	$(BIN)/python -m pytest -m gpu tests/cli/test_worker.py

test-slurm: $(STAMP) ## the tests on a SLURM of virtual nodes, which they bring up and take down
	$(BIN)/python -m pytest -n 2 --dist worksteal --timeout 300 -m slurm tests/slurm

test-grid-engine: $(STAMP) ## the tests on a Grid Engine of virtual nodes, which they bring up and take down
	$(BIN)/python -m pytest --timeout 300 -m grid_engine tests/grid_engine

# What other processors compute, on this one: results may differ in their last digits, tests may not.
test-arithmetic: $(STAMP) ## the tests of experiments' models, with the arithmetic of other processors
	ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE OPENBLAS_CORETYPE=Nehalem $(BIN)/python -m pytest -n $(JOBS) $(EXPERIMENTS)
	ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=AVX2 OPENBLAS_CORETYPE=Haswell $(BIN)/python -m pytest -n $(JOBS) $(EXPERIMENTS)

# uv makes environments in seconds. It does not read pip's settings, which may name a folder with a CPU build of torch.
UV_INSTALL = $(BIN)/uv pip install --quiet --python $(@D)/bin/python $(addprefix --find-links ,$(PIP_FIND_LINKS))

test-lowest: .venv-lowest/.installed ## what meets other packages, with the lowest versions that pyproject.toml allows
	HYPOTHESIS_PROFILE=quick .venv-lowest/bin/python -m pytest --quiet -n $(JOBS) --dist loadfile $(PACKAGES) $(WITH_TORCH)

.venv-lowest/.installed: $(STAMP) constraints-lowest.txt
	@$(BIN)/uv venv --quiet --clear --python $(PYTHON) $(@D)
	@$(UV_INSTALL) --constraint constraints-lowest.txt --editable '.[test]'
	@$(UV_INSTALL) --constraint constraints.txt --no-deps graphpipe
	@touch $@

test-python: .venv-$(notdir $(PYTHON))/.installed ## what meets the interpreter, with the Python that PYTHON names
	HYPOTHESIS_PROFILE=quick .venv-$(notdir $(PYTHON))/bin/python -m pytest --quiet -n $(JOBS) --dist loadfile $(INTERPRETER)

.venv-python%/.installed: $(STAMP)
	@$(BIN)/uv venv --quiet --clear --python $(PYTHON) $(@D)
	@$(UV_INSTALL) --constraint constraints.txt --editable '.[dask,jax,kserve,mpi,onnx,otel,pandas,parquet,plot,sensitivity,tools,xarray]'
	@$(UV_INSTALL) --constraint constraints.txt --no-deps graphpipe
	@touch $@

test-pythons: $(STAMP) ## the same with each of PYTHONS, by default every newer one on PATH
	@test -n "$(strip $(PYTHONS))" || \
		{ echo "no newer Python is on PATH; try make test-pythons PYTHONS=/path/to/python3.13"; exit 1; }
	@for python in $(PYTHONS); do $(MAKE) --no-print-directory test-python PYTHON=$$python || exit 1; done

# Samplers warn of much that is no matter of farm's, so their warnings are not errors.
SAMPLERS = -m pytest --quiet -n $(JOBS) --dist worksteal -W default --timeout 300 tests/samplers

test-samplers: .venv-samplers/.installed ## farm with emcee, dynesty, tinyDA, BlackJAX, NumPyro and PyMC
	.venv-samplers/bin/python $(SAMPLERS) -m "samplers and not clients"

test-clients: .venv-samplers/.clients ## farm with every tool of docs/samplers.md, in the same environment
	.venv-samplers/bin/python $(SAMPLERS) -m samplers

.venv-samplers/.installed: $(STAMP) pyproject.toml constraints-samplers.txt
	@$(BIN)/uv venv --quiet --clear --python $(PYTHON) $(@D)
	@$(UV_INSTALL) --constraint constraints-samplers.txt --group samplers --editable '.[jax,onnx]'
	@touch $@

# EasyVVUQ brings a package `tests` of its own, which would hide ours.
.venv-samplers/.clients: .venv-samplers/.installed
	@$(UV_INSTALL) --constraint constraints-samplers.txt --group clients
	@rm -rf $(@D)/lib/python*/site-packages/tests
	@touch $@

check: $(STAMP) ## format, lint, types, import order
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy $(CODE)
	$(BIN)/python -m pytest --quiet tests/test_project.py tests/test_packaging.py

# Not part of check: it asks PyPI about every package, and a new finding must not stop other work.
audit: $(STAMP) ## known weaknesses of the packages in constraints.txt, by pip-audit
	@$(BIN)/python -m tests.support.audit

release-check: $(STAMP) ## build what a release publishes, install it anew and use it
	@$(BIN)/python -m tests.support.release_check

# Material for MkDocs speaks of its successor at every build: CONTRIBUTING.md has the choice. With --quiet, --strict would
# not see the warnings.
MKDOCS = NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs

docs: .venv-docs/.installed ## the site, in build/site: a broken link or heading fails
	@.venv-docs/bin/python -m tests.support.site.pages build/pages
	$(MKDOCS) build --strict
	@.venv-docs/bin/python -m tests.support.site.requests build/site
	@echo "open build/site/index.html"

docs-serve: docs ## the site at http://127.0.0.1:8000
	.venv-docs/bin/python -m http.server --bind 127.0.0.1 --directory build/site 8000

# The site needs the names and commands of farm, so farm is installed there, too.
.venv-docs/.installed: $(STAMP) pyproject.toml constraints-docs.txt
	@$(BIN)/uv venv --quiet --clear --python $(PYTHON) $(@D)
	@$(UV_INSTALL) --constraint constraints-docs.txt --group docs --editable .
	@touch $@

format: $(STAMP) ## rewrite the code in the project's format
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

proto: $(STAMP) ## write the messages of the .proto files in farm as descriptors
	$(BIN)/python -m tests.support.proto

# Diagrams are drawn by mermaid, which npm gets; those that are drawn already need neither.
MERMAID := mermaid@11.17.2

picture: $(STAMP) ## draw the pictures of docs/: the status page, a report, a terminal and new diagrams, by headless Chromium
	$(BIN)/python -m tests.support.page_picture
	$(BIN)/python -m tests.support.report_picture
	$(MAKE) diagrams

diagrams: $(STAMP) ## draw the diagrams of docs/ that are new, by mermaid from npm and headless Chromium
	@mkdir -p build && cd build && npm pack --silent $(MERMAID) | xargs tar -xzf
	$(BIN)/python -m tests.support.site.drawings build/package/dist/mermaid.min.js

bench: $(STAMP) ## every benchmark but that of a cluster: ratios, versions and machine
	@for script in $$(grep -l '^if __name__' benchmarks/*.py | grep -v -e cluster -e samplers); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

examples: $(STAMP) ## run every example; each checks its own answer
	$(BIN)/python -m pytest --verbose tests/test_examples.py -m "slow or not slow" --timeout 300

clean: ## remove the environment, caches and build products
	rm -rf farm-demo farm-env .venv .venv-lowest .venv-python* .venv-samplers .venv-docs .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
