# Everything from a fresh clone with Python, a C++ compiler and make. Second runs do only what changed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# What `make demo` shows.
DEMO ?= info --demo
# What `make test-pythons` tries, as far as the machine has them.
PYTHONS ?= 3.10 3.11 3.12 3.13 3.14

NATIVE := CMakeLists.txt $(wildcard native/*.cpp native/*.hpp native/*.h)
# CMake and ninja come with pip where the machine has none.
TOOLS := $(if $(shell command -v cmake),,cmake) $(if $(shell command -v ninja),,ninja)

.PHONY: demo build develop test lint unit quick test-pythons bench manifest docs clean
.DELETE_ON_ERROR:

demo: build
	$(BIN)/stepscope $(DEMO)

build: $(VENV)/.package

develop: $(VENV)/.package $(VENV)/.dev

test: lint unit

lint: develop
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: develop $(VENV)/.torch
	$(BIN)/python -m pytest

# The part of the tests that another Python could change.
quick: develop
	$(BIN)/python -m pytest -q -m "not slow"

test-pythons:
	@set -e; tried=""; for version in $(PYTHONS); do \
	  for python in "$$(command -v python$$version)" "$$(pyenv root 2>/dev/null)"/versions/$$version.*/bin/python; do \
	    if [ -x "$$python" ] && "$$python" -c pass 2>/dev/null; then \
	      echo "== Python $$version"; tried="$$tried $$version"; \
	      $(MAKE) --no-print-directory quick VENV=.venvs/$$version PYTHON="$$python"; break; \
	    fi; \
	  done; \
	done; echo "== passed on Python$$tried"

bench: develop
	$(BIN)/python -m benchmarks

manifest: build
	$(BIN)/python -m stepscope.registry

docs: manifest
	$(BIN)/python -m stepscope.reference

clean:
	rm -rf build dist .venv .venvs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# Stamps: each is made anew when what it was made of changes.
$(VENV)/.python:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade "pip>=25.1"
	@touch $@

$(VENV)/.build: pyproject.toml $(VENV)/.python
	$(PIP) install --quiet --group build $(TOOLS)
	@touch $@

# Without build isolation nanobind stays where it is, and an edit recompiles one file.
$(VENV)/.package: pyproject.toml $(NATIVE) $(VENV)/.build
	$(PIP) install --quiet --no-build-isolation --editable ".[remote]"
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.package
	$(PIP) install --quiet --group dev
	@touch $@

# A machine that cannot have torch still runs the other tests; those that need it fail and say so.
$(VENV)/.torch: pyproject.toml | $(VENV)/.dev
	$(PIP) install --quiet --group torch && touch $@ || echo "make: torch could not be installed" >&2
