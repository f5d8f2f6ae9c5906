# make demo    environment, data, training, report: a few minutes on two cores
# make test    environment and every test; with EXTRAS=demo,dev,tensorboard,cuda,bench those of Triton and JAX too
# make check   lint, types and import rules
# make fuzz    the property tests with FUZZ=20 times as many cases
# make clean   removes everything that the other targets made

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO ?= demo
FUZZ ?= 20
EXTRAS ?= demo,dev,tensorboard

.PHONY: demo test check fuzz clean

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "cotswold needs Python 3.11 or newer; try: make PYTHON=python3.11 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	$(BIN)/cotswold train demo --run $(DEMO)/run --stores $(DEMO)/stores --grid 1x2 --resume-if-started
	$(BIN)/cotswold evaluate $(DEMO)/run
	$(BIN)/cotswold report $(DEMO)/run

test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quiet -n auto

check: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

fuzz: $(VENV)/.dev
	COTSWOLD_FUZZ=$(FUZZ) OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quiet -n auto tests/geometry tests/kernels tests/ops tests/nn \
		tests/simulate tests/run/test_checkpoint_ranks.py tests/training/test_offload_walk.py

clean:
	rm -rf $(VENV) $(DEMO) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
