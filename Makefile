# make demo       environment, data, training, report: under two minutes on two cores after the installation;
#                 OPEN=1 shows the report in a browser
# make test       environment and every short test, those of Triton, JAX and Ray too: about 12 minutes on two cores
# make quick      what to run before a commit: about a minute on two cores
# make soak       the long tests, with real faults for minutes; PART=3/10 runs one tenth of them
# make check      lint, types and import rules
# make docs       the site, in site/: no network, and every warning is an error
# make constraints   that constraints.txt holds on every supported Python, system and processor
# make device     what needs a CUDA device: tests, errors, rates, short runs, in four minutes
# make fuzz       the property tests with FUZZ=20 times as many cases
# make wheel      source distribution and wheel in dist/, with the same bytes for the same commit
# make check-wheel   both, and that their metadata, pages and contents suit a package index
# make try-wheel  installs the wheel of dist/ into a new environment of PYTHON and runs two commands
# make check-release   that the version, the changelog, the tag and the addresses allow a release
# make hooks      installs the checks before each commit (.pre-commit-config.yaml)
# make packages   installs the Debian packages that some tests need; as root
# make clean      removes everything that the other targets made
#
# TORCH=cpu takes PyTorch's build without CUDA (4 GB less on Linux); PYTHON=python3.13 another Python

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO ?= demo
OPEN ?=
FUZZ ?= 20
PART ?= all
QUICK := tests/files tests/host tests/geometry tests/optim tests/recipe tests/kernels tests/ops tests/training/jobs/test_job.py
EXTRAS ?= demo,tensorboard,cluster,speech,cuda,bench,tables,sklearn,metrics,loggers,hub,export,medical
TORCH ?=
PYTHONS := 3.11 3.12 3.13 3.14
PLATFORMS := x86_64-manylinux_2_28 aarch64-manylinux_2_28 aarch64-apple-darwin

# pip takes the torch that the package index has; uv knows PyTorch's own index of builds without CUDA
ifeq ($(TORCH),)
INSTALL = $(BIN)/python -m pip install --quiet
else
INSTALL = $(BIN)/python -m pip install --quiet --constraint constraints.txt uv && \
	$(BIN)/uv pip install --quiet --python $(BIN)/python --torch-backend $(TORCH)
endif

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

.PHONY: help demo test quick soak check docs constraints device fuzz wheel check-wheel try-wheel check-release hooks packages clean

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "cotswold needs Python 3.11 or newer; try: make PYTHON=python3.11 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --constraint constraints.txt --editable '.[demo]'
	@touch $@

# pip 25.1 is the first that knows --group
$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt 'pip>=25.1'
	$(INSTALL) --constraint constraints.txt --editable '.[$(EXTRAS)]' --group dev
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	$(BIN)/cotswold train demo --run $(DEMO)/run --stores $(DEMO)/stores --grid 1x2 --resume-if-started
	$(BIN)/cotswold evaluate $(DEMO)/run
	$(BIN)/cotswold report $(DEMO)/run $(if $(OPEN),--open)

test: $(VENV)/.dev
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quiet -n auto

quick: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quiet -n auto -m "not slow" --ignore tests/kernels/test_cuda.py $(QUICK)

soak: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quiet -n auto --soak $(PART)

# every combination is asked for with wheels alone, so that nothing needs a compiler; only metadata is downloaded
constraints: $(VENV)/.dev
	@for python in $(PYTHONS); do for platform in $(PLATFORMS); do \
		echo "constraints.txt on Python $$python, $$platform"; \
		MACOSX_DEPLOYMENT_TARGET=14.0 $(BIN)/uv pip compile --quiet --cache-dir $(VENV)/.uv --only-binary :all: --all-extras --group dev \
			--python-version $$python --python-platform $$platform --constraint constraints.txt \
			--output-file /dev/null pyproject.toml || exit 1; \
	done; done

check: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check src tests benchmarks examples docs/generator docs/figures
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.dev
	$(BIN)/python -m docs.generator

device: $(VENV)/.dev
	$(BIN)/python benchmarks/device.py

fuzz: $(VENV)/.dev
	COTSWOLD_FUZZ=$(FUZZ) OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quiet -n auto tests/geometry tests/kernels tests/ops tests/nn \
		tests/batch/core tests/paramserver/core tests/replication tests/dataservice/core tests/shards tests/chaos tests/simulate tests/checkpoint/test_checkpoint_ranks.py tests/training/parameters/offload/test_row_order.py

# SOURCE_DATE_EPOCH is the time of the commit: archives then have the same bytes wherever they are built
wheel: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
wheel: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .

check-wheel: wheel
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

# INSTALL then installs into the new environment
try-wheel: BIN = build/try-wheel/bin
try-wheel:
	rm -rf build/try-wheel
	$(PYTHON) -m venv build/try-wheel
	$(INSTALL) --constraint constraints.txt dist/*.whl
	$(BIN)/cotswold --version
	$(BIN)/cotswold recipe show demo > build/try-wheel/demo.toml

check-release: $(VENV)/.dev
	$(BIN)/python -m tests.support.release

hooks: $(VENV)/.dev
	$(BIN)/pre-commit install

packages:
	.ci/packages

clean:
	rm -rf $(VENV) $(DEMO) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
