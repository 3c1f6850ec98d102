# Everything works on a fresh machine with make and Python 3.11 or newer: the tools are installed
# into .venv, again whenever pyproject.toml changes. Another interpreter: make PYTHON=python3.12 test

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready
SAMPLES := .cache/samples
MEGABYTES ?= 64

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all release-check static lint types tests docs fmt samples models gallery benchmarks clean

help: ## list what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' \
	  | while IFS='|' read -r target text; do printf '%-21s %s\n' "$$target" "$$text"; done

$(READY): pyproject.toml hatch_build.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: $(PYTHON) is missing or older than Python 3.11; name another one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "make: $(PYTHON) cannot create environments; install its venv module" \
	       "(on Debian and Ubuntu: apt-get install python3-venv)." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY) ## build a sample model, profile it and write the reports
	@mkdir -p $(SAMPLES)
	$(BIN)/python -m sample_models tied_if --megabytes $(MEGABYTES) -o $(SAMPLES)/tied_if.onnx
	$(BIN)/memdiag profile $(SAMPLES)/tied_if.onnx

test: $(READY) ## everything that must pass: lint, types, layers, tests
	@$(MAKE) --no-print-directory --jobs=2 tests lint types
	$(BIN)/python -m pytest -q -m "not slow and measures" $$(grep -rl --include='*.py' mark.measures tests)

test-all: static models ## the same with slow tests: real models, other runtimes, oldest dependencies
	$(BIN)/python -m benchmarks.runtimes
	MEMDIAG_RUNTIMES="$$($(BIN)/python -m benchmarks.runtimes --list 1.22.1 1.24.4)" \
	  MEMDIAG_REAL_CHILDREN=1 $(BIN)/python -m pytest -q --hypothesis-profile=thorough
	$(BIN)/python -m benchmarks.release_check --only lower-bounds

release-check: $(READY) ## build the distributions, and install and run them as users do
	$(BIN)/python -m benchmarks.release_check

static: lint types

# `make test` runs both beside the tests, which leave one of two cores idle now and then.
lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/mypy

# More workers than these would keep two cores no busier, and each takes ten seconds to begin.
tests: $(READY)
	$(BIN)/python -m pytest -q -n 3 --dist worksteal -m "not slow and not measures"

docs: $(READY) ## build the documentation site into build/site; a broken link is an error
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -c docs . build/site
	@echo "build/site/index.html"

fmt: $(READY) ## format the code and apply the safe lint fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

samples: $(READY) ## build every sample model, of MEGABYTES=64 each, into .cache/samples
	@mkdir -p $(SAMPLES)
	$(BIN)/python -m sample_models all --megabytes $(MEGABYTES) -o $(SAMPLES)

models: $(READY) ## fetch the real models, pinned, into .cache/real_models
	$(BIN)/python -m benchmarks.real_models

gallery: models ## make the pictures and reports in reports/gallery again
	$(BIN)/python -m benchmarks.gallery

benchmarks: models ## measure the numbers in benchmarks/README.md again
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.programs
	$(BIN)/python -m benchmarks.xray
	$(BIN)/python -m benchmarks.check
	$(BIN)/python -m benchmarks.predictions
	$(BIN)/python -m benchmarks.fix
	$(BIN)/python -m benchmarks.page
	$(BIN)/python -m benchmarks.sweeps

clean: ## remove the environment, the caches and the built models
	rm -rf $(VENV) build .cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
