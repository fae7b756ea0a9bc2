# make demo and make test need Python 3.11 or newer and nothing else: all they install is in .venv.

# Which Python to make the environment with.
PYTHON ?= python3
# PyTorch is installed first and by itself, so that one version serves everything after it.
TORCH ?= torch==2.13.0
# Another place to take PyTorch from, such as https://download.pytorch.org/whl/cpu (smaller, no GPU).
TORCH_INDEX ?=
# Test processes.
JOBS ?= auto

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-flare lint format docs linkcheck bench clean

help:  ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.with-demo  ## Run the main job on real data, ending with the path of its report
	@$(BIN)/interlace demo

test: $(VENV)/.with-test  ## Run the tests
	@$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 4 --dist worksteal

test-flare: $(VENV)/.with-test $(VENV)/.with-flare  ## Run the tests over three NVIDIA FLARE sites
	@$(BIN)/python -m pytest -m flare -n $(JOBS) --maxprocesses 2 --dist loadfile tests/flare tests/sites

lint: $(VENV)/.with-dev  ## Check style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.with-dev  ## Put the code into its one style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.with-docs  ## Build the documentation; a dead reference fails
	$(BIN)/sphinx-build -q -W --keep-going -n -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

linkcheck: $(VENV)/.with-docs  ## Follow the documentation's links to other sites (needs the internet)
	$(BIN)/sphinx-build -q -b linkcheck docs docs/_build/linkcheck

bench: $(VENV)/.with-bench  ## Run one benchmark: make bench NAME=in_process
	@test -f "benchmarks/$(NAME).py" || { \
	  echo "Say which: make bench NAME=..., one of:" $(sort $(basename $(notdir $(wildcard benchmarks/[a-z]*.py)))) >&2; \
	  exit 2; }
	@$(BIN)/python benchmarks/$(NAME).py

clean:  ## Remove the environment and what was built
	rm -rf $(VENV) build dist docs/_build
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/.torch:
	@command -v $(PYTHON) > /dev/null || { \
	  echo "There is no '$(PYTHON)' here. Install Python 3.11 or newer, or say where it is: make ... PYTHON=/path/to/python3" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "interlace needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Say which to use: make ... PYTHON=python3.12" >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX) )"$(TORCH)"
	@touch $@

$(VENV)/.with-%: pyproject.toml $(VENV)/.torch
	$(PIP) -e '.[$*]'
	@touch $@
