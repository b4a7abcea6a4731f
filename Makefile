# make demo   four prompts with and without speculation
# make test   ruff's checks, then every test
# make lint   ruff's checks and its formatting
# make sanitize   the tests of the native kernels under the address and undefined-behaviour sanitizers
# Each sets up .venv first; the second time that takes no time.

PYTHON ?= python3
ifeq ($(origin CXX),default)  # make says g++, whether it is there or not
CXX := $(or $(shell for name in c++ g++ clang++; do command -v $$name && break; done),c++)
endif
BIN := .venv/bin
READY := .venv/.ready
NATIVE := .venv/.native
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint setup sanitize

demo: $(NATIVE)
	$(BIN)/foredraft demo

# A process for each core, with one thread where a test asks for no more. The tests of a file stay together, they share
# what its fixtures set up; files go in their own order, since those of few tests, which would be the last, take longest.
test: $(NATIVE)
	$(BIN)/ruff check
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto --dist loadfile --no-loadscope-reorder

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

setup: $(NATIVE)

sanitize: $(NATIVE)
	native/sanitize.sh

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo "error: foredraft needs Python 3.11 or newer; '$(PYTHON)' is not: set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP) -e '.[dev]'
	@touch $@

# Without a compiler forwards run through torch: as exact, and slower. The next call looks for one again.
$(NATIVE): $(READY) native/CMakeLists.txt native/pyproject.toml $(wildcard native/src/*)
	@if command -v $(firstword $(CXX)) > /dev/null; then echo "building foredraft-native"; \
		CXX='$(CXX)' $(PIP) ./native > .venv/native.log 2>&1 \
			|| echo "note: foredraft-native could not be built (see .venv/native.log); forwards run through torch"; \
		touch $@; \
	else echo "note: no C++ compiler '$(CXX)', so foredraft-native is not built; forwards run through torch"; fi
