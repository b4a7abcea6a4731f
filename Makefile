# make demo   four prompts with and without speculation
# make test   ruff's checks, then every test
# make lint   ruff's checks and its formatting
# Each sets up .venv first; the second time that takes no time.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test lint setup

demo: $(READY)
	$(BIN)/foredraft demo

test: $(READY)
	$(BIN)/ruff check
	$(BIN)/pytest -q

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo "error: foredraft needs Python 3.11 or newer; '$(PYTHON)' is not: set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
