# Needs make and Python 3.10 or newer; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo docs test default-tests test-all test-oldest lint clean

install: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 10) and 'skipway needs Python 3.10 or newer; this is ' + sys.version.split()[0] + '. Try: make install PYTHON=python3.11')"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[test,lint,timm,hf,frame]"
	touch $@

demo: install
	$(BIN)/python examples/demo.py

# The pages that are made from what is on record.
docs: install
	$(BIN)/python -c "from skipway.study.docs import write_docs; write_docs('docs', 'results')"

lint: install
	$(BIN)/ruff check src tests examples benchmarks
	$(BIN)/ruff format --check src tests examples benchmarks
	$(BIN)/mypy

# Two processes with small models: more threads than one each only get in each other's way. Each begins with one half of
# the tests, in order, so that it loads what the other one need not; who is done first takes over from the other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# Lint and types keep one processor busy, so they run beside the tests.
test: install
	$(MAKE) --jobs 2 lint default-tests

default-tests: install
	$(PYTEST) -m "not exhaustive"

test-all: lint
	$(PYTEST)

# The default tests with the oldest version of everything that pyproject.toml allows, in an environment of their own.
# What those libraries deprecate by now is no fault of ours.
OLDEST := .venv-oldest/bin
test-oldest:
	$(PYTHON) -m venv .venv-oldest
	$(OLDEST)/python -m pip install --quiet uv
	$(OLDEST)/uv pip install --quiet --python $(OLDEST)/python --resolution lowest-direct --editable ".[test]"
	OMP_NUM_THREADS=1 $(OLDEST)/python -m pytest -n 2 --dist worksteal -m "not exhaustive" \
		-W default::DeprecationWarning -W default::FutureWarning

clean:
	rm -rf $(VENV) .venv-oldest build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
