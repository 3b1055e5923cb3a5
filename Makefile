# Everything from a fresh clone with Python, a C++ compiler and make. Second runs do only what changed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# Tests start hundreds of processes: without kept bytecode each of them would compile every module again.
export PYTHONDONTWRITEBYTECODE :=

# What `make test-pythons` tries, as far as the machine has them.
PYTHONS ?= 3.11 3.12 3.13 3.14

NATIVE := CMakeLists.txt $(wildcard native/*.cpp native/*.hpp native/*.h)
# CMake and ninja come with pip where the machine has none.
TOOLS := $(if $(shell command -v cmake),,cmake) $(if $(shell command -v ninja),,ninja)

# Checks the types in the scripts of the window, which run as they are written.
TYPESCRIPT := 5.9.3
TSC := build/typescript-$(TYPESCRIPT)/node_modules/.bin/tsc

.PHONY: demo build develop test test-all lint unit exhaustive quick test-pythons test-duckdbs fuzz fuzz-packets fuzz-sqlite attack bench bench-findings manifest docs clean
.DELETE_ON_ERROR:

demo: build
	$(BIN)/stepscope info --demo
	@echo
	$(BIN)/stepscope report --demo
	@echo
	@echo "Your own program: $(BIN)/stepscope run train.py"

build: $(VENV)/.package

develop: $(VENV)/.package $(VENV)/.dev

test: lint unit

test-all: lint exhaustive

# The types of the tests in a browser are Playwright's, so it is there before they are checked.
lint: develop $(VENV)/.browser $(TSC)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(TSC) --project jsconfig.json

PYTEST := $(BIN)/python -m pytest -q -n auto --durations=10

unit: develop $(VENV)/.torch $(VENV)/.frameworks $(VENV)/.browser $(VENV)/.ray
	$(PYTEST)

# Before a release: every recording through everything, and ten times as many random tries.
exhaustive: develop $(VENV)/.torch $(VENV)/.frameworks $(VENV)/.browser $(VENV)/.ray
	$(PYTEST) -m "" --hypothesis-profile=exhaustive

# The part of the tests that another Python could change.
quick: develop
	$(PYTEST) -m "not slow and not exhaustive"

# The fence around SQL, on the oldest and the newest DuckDB that may be installed.
DUCKDB := $(shell sed -n 's/.*"\(duckdb>=[^"]*\)".*/\1/p' pyproject.toml)
DUCKDB_OLDEST := duckdb==$(shell sed -n 's/.*"duckdb>=\([0-9.]*\),.*/\1/p' pyproject.toml).*
test-duckdbs: develop
	@set -e; for version in "$(DUCKDB_OLDEST)" "$(DUCKDB)"; do \
	  echo "== $$version"; rm -rf build/duckdb; \
	  $(PIP) install --quiet --no-deps --target build/duckdb "$$version"; \
	  PYTHONPATH=build/duckdb $(PYTEST) tests/store tests/cli/test_query.py; \
	done

test-pythons:
	@set -e; tried=""; for version in $(PYTHONS); do \
	  for python in "$$(command -v python$$version)" "$$(pyenv root 2>/dev/null)"/versions/$$version.*/bin/python; do \
	    if [ -x "$$python" ] && "$$python" -c pass 2>/dev/null; then \
	      echo "== Python $$version"; tried="$$tried $$version"; \
	      $(MAKE) --no-print-directory quick VENV=.venvs/$$version PYTHON="$$python"; break; \
	    fi; \
	  done; \
	done; echo "== passed on Python$$tried"

# Mutated traces, with sanitizers, on both paths of the reader; for a minute, or SECONDS=600.
SECONDS ?= 60
SEED ?= $(shell date +%s)
FUZZ_FLAGS := -std=c++20 -O1 -g1 -Wall -Wextra -fsanitize=address,undefined -fno-sanitize-recover=all
FUZZED := fuzz/fuzz_reader reader reader_events reader_single reader_times event known json numbers batch call_tree sweep device_sweep

FUZZED_PICKLES := fuzz/fuzz_pickle pickle pickle_scan snapshot

fuzz: build/fuzz/reader build/fuzz/reader-scalar build/fuzz/traces build/fuzz/pickle build/fuzz/snapshot.pickle
	cd build/fuzz && ./pickle $(SEED) $$(($(SECONDS) / 4)) snapshot.pickle
	cd build/fuzz && ./reader-scalar $(SEED) $$(($(SECONDS) / 4)) 0 traces/*.json && ./reader $(SEED) $(SECONDS) 0 traces/*.json

# The same for protobuf files.
PACKETS := fuzz/fuzz_packets pftrace pftrace_events pftrace_gpu pftrace_learn pftrace_packed pftrace_quick pftrace_sequence pftrace_shapes pftrace_slices pftrace_tracks spool xplane $(filter-out fuzz/% call_tree sweep device_sweep,$(FUZZED))

fuzz-packets: build/fuzz/packets build/fuzz/files
	cd build/fuzz && ./packets $(SEED) $(SECONDS) 0 files/*.pftrace files/*.pb

# And for SQLite files.
SQLITE := fuzz/fuzz_sqlite sqlite_pages

fuzz-sqlite: build/fuzz/sqlite build/fuzz/databases
	cd build/fuzz && ./sqlite $(SEED) $(SECONDS) 0 databases/*.sqlite

build/fuzz/sqlite: $(SQLITE:%=build/fuzz/plain/%.o)
	$(CXX) $(FUZZ_FLAGS) $^ -o $@

build/fuzz/databases: tests/sqlite_files.py
	$(PYTHON) $< $@

build/fuzz/packets: $(PACKETS:%=build/fuzz/plain/%.o)
	$(CXX) $(FUZZ_FLAGS) $^ -o $@

build/fuzz/files: tests/packet_files.py develop
	$(BIN)/python -m tests.packet_files $@

build/fuzz/traces: $(wildcard tests/data/*.json.gz)
	@mkdir -p $@
	for trace in $^; do gzip -dc $$trace >$@/$$(basename $$trace .gz) || exit 1; done
	@touch $@

build/fuzz/snapshot.pickle: tests/snapshots.py
	@mkdir -p $(@D)
	$(BIN)/python -m tests.snapshots $@

build/fuzz/pickle: $(FUZZED_PICKLES:%=build/fuzz/plain/%.o)
	$(CXX) $(FUZZ_FLAGS) $^ -o $@

build/fuzz/reader: $(FUZZED:%=build/fuzz/plain/%.o)
	$(CXX) $(FUZZ_FLAGS) $^ -o $@

# The same without the instructions that look at sixteen bytes at once.
build/fuzz/reader-scalar: $(FUZZED:%=build/fuzz/scalar/%.o)
	$(CXX) $(FUZZ_FLAGS) $^ -o $@

build/fuzz/plain/%.o: native/%.cpp
	@mkdir -p $(@D)
	$(CXX) $(FUZZ_FLAGS) -MMD -c $< -o $@

build/fuzz/scalar/%.o: native/%.cpp
	@mkdir -p $(@D)
	$(CXX) $(FUZZ_FLAGS) -DSTEPSCOPE_SCALAR -MMD -c $< -o $@

# Guided by coverage: libFuzzer keeps what reaches new code. It comes with clang.
CLANG := $(firstword $(foreach of,-20 -19 -18 -17 -16 -15 -14,$(shell command -v clang++$(of))) $(shell command -v clang++))

build/fuzz/reader-guided: $(FUZZED:%=build/fuzz/guided/%.o) build/fuzz/excerpts
	$(CLANG) $(FUZZ_FLAGS) -fsanitize=fuzzer $(filter %.o,$^) -o $@

build/fuzz/guided/%.o: native/%.cpp
	@mkdir -p $(@D)
	$(CLANG) $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link -DSTEPSCOPE_GUIDED -MMD -c $< -o $@

build/fuzz/excerpts: build/fuzz/traces
	@mkdir -p $@
	for trace in $</*.json; do head -c 3000 $$trace >$@/$$(basename $$trace) || exit 1; done
	@touch $@

# Everything that is promised in docs/safety.md, for five minutes; SECONDS=3600 for longer.
attack: develop
	$(BIN)/python -m tests.attack --seconds $(if $(filter command line,$(origin SECONDS)),$(SECONDS),300)

-include $(wildcard build/fuzz/*/*.d build/fuzz/*/fuzz/*.d)

bench: develop $(VENV)/.ray
	$(BIN)/python -m benchmarks

# Programs with known faults: what the report finds in them, against what fixing them gained.
bench-findings: build
	$(BIN)/python -m benchmarks.findings

manifest: build
	$(BIN)/python -m stepscope.registry

docs: manifest
	$(BIN)/python -m stepscope.reference
	$(BIN)/python docs/images/make.py

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

# Pages are tested in the machine's own Chromium; where it has none and may have one, it gets one.
$(VENV)/.browser: pyproject.toml | $(VENV)/.dev
	$(PIP) install --quiet --group browser
	command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq chromium >/dev/null) \
	  || echo "make: chromium could not be installed" >&2
	@touch $@

$(TSC):
	@command -v npm >/dev/null || { echo "make: npm is missing, which brings the checker of the scripts' types: install nodejs and npm" >&2; exit 1; }
	@mkdir -p build/typescript-$(TYPESCRIPT)
	npm install --silent --no-audit --no-fund --no-save --prefix build/typescript-$(TYPESCRIPT) typescript@$(TYPESCRIPT)
	@touch $@

# A machine that cannot have torch still runs the other tests; those that need it fail and say so.
$(VENV)/.torch: pyproject.toml | $(VENV)/.dev
	$(PIP) install --quiet --group torch && touch $@ || echo "make: torch could not be installed" >&2

# The same for the libraries that have callbacks. What torch they find is the one above.
$(VENV)/.frameworks: pyproject.toml | $(VENV)/.torch
	$(PIP) install --quiet --group frameworks && touch $@ || echo "make: the frameworks could not be installed" >&2

# And for the cluster on which ranks are read.
$(VENV)/.ray: pyproject.toml | $(VENV)/.dev
	$(PIP) install --quiet --group ray && touch $@ || echo "make: ray could not be installed" >&2
