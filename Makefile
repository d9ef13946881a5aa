# `make` lists the targets. Whatever needs the environment sets it up first, once.
.POSIX:

PYTHON ?= python3
VENV = .venv
BIN = $(VENV)/bin
INSTALL = $(BIN)/python -m pip install -q --no-compile --disable-pip-version-check -c constraints.txt -e
# What is installed: `train` is the base, the others add to it what their targets need.
TRAIN = $(VENV)/.stamp-train
TEST = $(VENV)/.stamp-test
SLOW = $(VENV)/.stamp-slow
LINT = $(VENV)/.stamp-lint
DOCS = $(VENV)/.stamp-docs
AUDIT = $(VENV)/.stamp-audit
ARGS =
# Some machines tell Python not to store compiled modules; then each of the many processes of the tests would compile torch
# again, which takes ten seconds. The modules are installed uncompiled and are stored at their first import.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help train test test-slow test-mutations test-portable schema docs docs-check bench gpu-check lint audit format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' Makefile
	@echo 'Options go in ARGS, for example: make train ARGS="method=dsm data=moons"'

train: $(TRAIN) ## train (default: levels on the checkerboard) and leave metrics and pictures in outputs/
	$(BIN)/python train.py $(ARGS)

test: $(TEST) ## run the tests
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal $(ARGS)

test-slow: $(SLOW) ## run the long statistical and training checks
	$(BIN)/python -m pytest -m slow $(ARGS)

test-mutations: $(TEST) ## make small errors in the mathematics, and see that tests find each; ARGS=--help
	$(BIN)/python tests/mutations.py $(ARGS)

test-portable: $(TEST) ## run the tests of numbers on other instruction sets, Pythons and versions; ARGS=--help
	$(BIN)/python tests/portable.py $(ARGS)

schema: $(TRAIN) ## make conf/schema.json, by which editors complete and check the keys of experiments
	$(BIN)/python conf/schema.py > conf/schema.json.new && mv conf/schema.json.new conf/schema.json

docs: $(DOCS) ## build the pages of docs/ as a site in build/site
	$(BIN)/python docs/site/build.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build -f build/mkdocs.yml

docs-check: $(SLOW) ## run every command of README and docs/, shortened
	$(BIN)/python -m pytest -m slow tests/test_documentation.py $(ARGS)

bench: $(TRAIN) ## measure time and memory of every method, and how they grow; ARGS=--help: the first alone
	$(BIN)/python -m benchmarks.run $(ARGS)
	@test -n "$$ARGS" || $(BIN)/python -m benchmarks.growth

gpu-check: $(TRAIN) ## on a machine with a GPU: are methods right and fast there? Ten minutes
	$(BIN)/python -m benchmarks.gpu_check $(ARGS)

lint: $(LINT) ## check style, formatting and types
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m basedpyright --pythonpath $(BIN)/python

audit: $(AUDIT) ## look the installed versions up among known vulnerabilities
	$(BIN)/python -m pip_audit --skip-editable $(ARGS)

format: $(LINT) ## format the code and mend what can be mended
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

clean: ## remove the environment, caches and build products; outputs/ and data/ stay
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment without a working pip, or of a Python that no longer runs, is made anew. A stamp is written last: without
# it the next `make` sets up again.
$(TRAIN): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo 'eblvm_lit needs Python 3.11 or newer, and "$(PYTHON)" is not: name one, as in make PYTHON=python3.12' >&2; \
	    exit 1; }
	@$(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || rm -rf $(VENV)
	@echo 'Setting up $(VENV): about 6 GB, some minutes.'
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(INSTALL) . && touch $(TRAIN)

$(TEST): $(TRAIN)
	$(INSTALL) '.[test]' && touch $(TEST)

$(SLOW): $(TRAIN)
	$(INSTALL) '.[test,notebooks,docs]' && touch $(SLOW)

$(LINT): $(TRAIN)
	$(INSTALL) '.[lint]' && touch $(LINT)

$(DOCS): $(TRAIN)
	$(INSTALL) '.[docs]' && touch $(DOCS)

$(AUDIT): $(TRAIN)
	$(INSTALL) '.[audit]' && touch $(AUDIT)
