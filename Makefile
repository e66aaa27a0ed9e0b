# Each target makes .venv first, when it is missing or older than pyproject.toml or constraints.txt.
#
#   PYTHON    the Python to begin with, 3.11 or newer           make course PYTHON=python3.12
#   PIP_ARGS  what pip needs for another build of torch         make course PIP_ARGS='--extra-index-url URL'
#   ARGS      passed on to the command that the target runs     make course ARGS='01 --profile full'

PYTHON ?= python3
PIP_ARGS ?=
ARGS ?=
BIN := .venv/bin
READY := .venv/.ready

.PHONY: course test test-fast lab build bench

course: $(READY)
	@echo "Running the lessons; the report will be in runs/"
	@$(BIN)/gpucourse run $(ARGS)

test: $(READY)
	@echo "Testing everything: the package, the notebooks, the browser"
	@$(BIN)/pytest -n 2 --dist loadfile $(ARGS)

test-fast: $(READY)
	@echo "Testing the package alone"
	@$(BIN)/pytest -n 2 --dist loadfile -m "not slow and not browser" tests/unit $(ARGS)

lab: $(READY)
	@echo "Starting JupyterLab in notebooks/"
	@$(BIN)/gpucourse lab $(ARGS)

build: $(READY)
	@echo "Writing the notebooks from their sources"
	@$(BIN)/gpucourse build $(ARGS)

bench: $(READY)
	@set -e; for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python "$$file"; done

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one: make PYTHON=python3.12")'
	@echo "Setting up .venv (about 1.5 GB with a CPU build of torch)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e '.[test]'
	@touch $(READY)
