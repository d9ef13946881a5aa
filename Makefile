# `make` lists the targets. Whatever needs the environment sets it up first, once.
.POSIX:

PYTHON ?= python3
VENV = .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.stamp
ARGS =

.PHONY: help train test test-slow test-portable docs docs-check bench gpu-check lint audit format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' Makefile
	@echo 'Options go in ARGS, for example: make train ARGS="method=dsm data=moons"'

train: $(STAMP) ## train (default: BiDSM on the checkerboard) and leave metrics and pictures in outputs/
	$(BIN)/python train.py $(ARGS)

test: $(STAMP) ## run the tests
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal $(ARGS)

test-slow: $(STAMP) ## run the long statistical and training checks
	$(BIN)/python -m pytest -m slow $(ARGS)

test-portable: $(STAMP) ## run the tests of numbers on other instruction sets, Pythons and versions; ARGS=--help
	$(BIN)/python tests/portable.py $(ARGS)

docs: $(STAMP) ## build the pages of docs/ as a site in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

docs-check: $(STAMP) ## run every command of README and docs/, shortened
	$(BIN)/python -m pytest -m slow tests/test_documentation.py $(ARGS)

bench: $(STAMP) ## measure time and memory of every method, and how they grow; ARGS=--help: the first alone
	$(BIN)/python -m benchmarks.run $(ARGS)
	@test -n "$$ARGS" || $(BIN)/python -m benchmarks.growth

gpu-check: $(STAMP) ## on a machine with a GPU: are methods right and fast there? Writes docs/gpu.md in ten minutes
	$(BIN)/python -m benchmarks.gpu_check $(ARGS)

lint: $(STAMP) ## check style, formatting and types
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m basedpyright --pythonpath $(BIN)/python

audit: $(STAMP) ## look the installed versions up among known vulnerabilities
	@$(BIN)/python -c 'import pip_audit' 2>/dev/null || { \
	    echo 'The audit needs pip-audit: $(BIN)/python -m pip install -e .[audit]' >&2; exit 1; }
	$(BIN)/python -m pip_audit --skip-editable $(ARGS)

format: $(STAMP) ## format the code and mend what can be mended
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

clean: ## remove the environment, caches and build products; outputs/ and data/ stay
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment that a set-up left half-made says so by its file .unfinished and is made anew, as is one whose Python no
# longer runs. Any other is brought up to date in place. The stamp is written last: without it the next `make` sets up again.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo 'eblvm_lit needs Python 3.11 or newer, and "$(PYTHON)" is not: name one, as in make PYTHON=python3.12' >&2; \
	    exit 1; }
	@if [ -e $(VENV)/.unfinished ] || { [ -e $(VENV)/pyvenv.cfg ] && \
	    ! $(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }; \
	    then echo 'Removing the unusable $(VENV).'; rm -rf $(VENV); fi
	@rm -f $(STAMP)
	@echo 'Setting up $(VENV): about 6 GB, some minutes.'
	@mkdir -p $(VENV) && touch $(VENV)/.unfinished
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@rm $(VENV)/.unfinished && touch $(STAMP)
