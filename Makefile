# Everything from a fresh clone: `make demo` shows the main job, `make test` checks the code.
#
#   make demo      load the default model and answer two questions over one long system prompt
#   make test      style, types, import contracts, tests (some minutes)
#   make torture   slow counts, and deliberate bugs that the tests have to find
#   make bench     measure; tables, JSON and a plot in bench-results/
#   make serve     start the server
#   make clean     remove the virtual environment and everything generated
#
# PYTHON     the interpreter to build the environment with, 3.11 or newer
# PIP_EXTRA  more arguments for pip, for example an index with CPU builds of torch

PYTHON ?= python3
VENV ?= .venv
PIP_EXTRA ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MODEL := smollm2-135m-instruct

.DEFAULT_GOAL := help
.PHONY: help demo test torture bench serve clean model

help:
	@sed -n 's/^#   make/  make/p' Makefile

demo: $(STAMP)
	$(BIN)/anaphora demo

test: $(STAMP) model
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest

torture: $(STAMP) model
	$(BIN)/python -m pytest -m torture
	$(BIN)/python tests/torture/mutants.py

bench: $(STAMP)
	$(BIN)/anaphora bench

serve: $(STAMP)
	$(BIN)/anaphora serve

# Fetched once into the user's cache folder (ANAPHORA_CACHE_DIR); a moment's check after that.
model: $(STAMP)
	$(BIN)/anaphora models fetch $(MODEL)

# Redone when the dependencies change.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Anaphora needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
		"Name another one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --constraint constraints.txt $(PIP_EXTRA) --editable '.[dev]'
	@touch $(STAMP)

clean:
	rm -rf $(VENV) build dist bench-results src/*.egg-info .mypy_cache .ruff_cache .pytest_cache \
		.hypothesis .import_linter_cache .coverage
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
