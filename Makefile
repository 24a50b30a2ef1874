# Two commands on a fresh clone: `make demo` and `make test`. Both make .venv first, once.
# Another interpreter: `make test PYTHON=python3.12`.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
TOOLS := .venv/.tools
# Without a notice of the theme's authors. With --quiet, strict mode would not see warnings.
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
WORKERS := --numprocesses auto --maxprocesses 4 --dist worksteal

.PHONY: demo test test-all fast-tests all-tests lint bench gpu docs clean

demo: $(INSTALLED)
	$(BIN)/twinset demo

# mypy takes a core for a minute, so it runs beside the tests.
test: $(TOOLS)
	$(MAKE) --jobs=2 lint fast-tests

test-all: $(TOOLS)
	$(MAKE) --jobs=2 lint all-tests

fast-tests: $(TOOLS)
	$(BIN)/python -m pytest -m "not slow" $(WORKERS)

all-tests: $(TOOLS)
	$(BIN)/python -m pytest $(WORKERS)

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python docs/prose.py
	$(BIN)/mypy
	@if $(BIN)/python -c 'import mkdocs, mkdocstrings' 2>/dev/null; then $(SITE) build; \
	  else echo "the site is not checked: the extra docs is not installed (make docs does it)"; fi

bench: $(INSTALLED)
	$(BIN)/python -m evaluation.bench.step

# With what is installed: another build of torch than that of constraints.txt, for the GPU at hand.
gpu:
	$(firstword $(wildcard $(BIN)/python) $(PYTHON)) -m evaluation.bench.gpu

# Writes the page of commands again, then checks the site in strict mode and serves it.
docs: $(INSTALLED)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	$(BIN)/python docs/site.py
	$(SITE) build
	$(SITE) serve

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first and alone: where pip finds a CPU build of this version, that is what it takes.
$(INSTALLED): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "twinset needs Python 3.11 or newer; name one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "making .venv with the versions of constraints.txt (a few minutes, once)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

# What the demo does without: tools of development, and optional detectors and methods.
$(TOOLS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,pii,qlora]'
	touch $@
