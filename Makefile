# Two commands on a fresh clone: `make demo` and `make test`. Both make .venv first, once.
# Another interpreter: `make test PYTHON=python3.12`.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
TOOLS := .venv/.tools
# Without a notice of the theme's authors. With --quiet, strict mode would not see warnings.
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
WORKERS := --numprocesses auto --maxprocesses 4 --dist worksteal

# All that comes from PyPI has a SHA-256, but for PyTorch and what it brings for GPUs.
HASHED := install --quiet --require-hashes --only-binary :all: --no-deps
LOCAL := install --quiet --no-index --no-build-isolation -c constraints.txt
COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --no-annotate --no-header --constraint constraints.txt pyproject.toml
UNHASHED := /^(torch|triton|cuda-|nvidia-)|== .emscripten/

.PHONY: demo test test-all fast-tests all-tests lint bench gpu docs hashes clean

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
	$(BIN)/python -m pip install --quiet --no-build-isolation -c constraints.txt -e '.[docs]'
	$(BIN)/python docs/site.py
	$(SITE) build
	$(SITE) serve

# After each change of pyproject.toml or constraints.txt. Needs uv.
hashes:
	$(COMPILE) | awk '/==/ {keep = !($(UNHASHED))} keep' >hashes.txt
	$(COMPILE) --extra dev --extra pii --extra qlora | awk 'FNR == NR {known[$$1]; next} \
	  /==/ {keep = !($(UNHASHED) || $$1 in known)} keep' hashes.txt - >hashes-tools.txt

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes alone: where pip finds a CPU build of this version, that is what it takes. Then all is
# there that twinset needs, and --no-index keeps pip from fetching more.
$(INSTALLED): constraints.txt pyproject.toml hashes.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "twinset needs Python 3.11 or newer; name one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "making .venv with the versions of constraints.txt (a few minutes, once)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip $(HASHED) -r hashes.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip $(LOCAL) -e .
	touch $@

# What the demo does without: tools of development, and optional detectors and methods.
$(TOOLS): $(INSTALLED) hashes-tools.txt
	$(BIN)/python -m pip $(HASHED) -r hashes-tools.txt
	$(BIN)/python -m pip $(LOCAL) -e '.[dev,pii,qlora]'
	touch $@
