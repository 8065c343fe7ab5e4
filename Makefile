# Each target sets up what it needs: a machine with GNU make and Python 3.11 or newer is enough.
#
#   make demo PYTHON=/path/to/python3.12      use a certain interpreter
#   make demo PIP_ARGS="--index-url URL"      pass something to pip (a mirror, a CPU-only torch index)

VENV ?= .venv
BENCH_VENV ?= .venv-bench
PIP_ARGS ?=
PYTEST_ARGS ?=
BENCH_ARGS ?=

# The first interpreter that is new enough; `python3` itself if none is, so that the message can name it.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && exit; \
	done; echo python3)

BIN := $(VENV)/bin
PIP := -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS)
INPUTS := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check bench format clean

help:
	@echo "make demo    three training jobs side by side: a good, a mediocre and a broken one"
	@echo "make test    the test suite (PYTEST_ARGS='-m slow' runs the opt-in part)"
	@echo "make check   formatting, lint, types, import rules, repository hygiene"
	@echo "make bench   speed and quality beside TRL and transformers, in their own environment"
	@echo "make format  apply the formatter and the safe lint fixes"
	@echo "make clean   remove the environments and caches"
	@echo
	@echo "The first run of each sets up $(VENV) (PyTorch is most of it); later runs start at once."

demo: $(VENV)/.installed
	@$(BIN)/ata demo

test: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/unit/test_hygiene.py

bench: $(VENV)/.installed-dev $(BENCH_VENV)/.installed
	@$(BIN)/python -m bench.run --peer-python $(BENCH_VENV)/bin/python $(BENCH_ARGS)

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	for folder in $(VENV) $(BENCH_VENV); do test ! -e $$folder/pyvenv.cfg || rm -rf $$folder; done
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# $(call new_venv,FOLDER): make FOLDER unless it works already; say what is missing on this machine, and leave
# no half-made folder behind.
define new_venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  found=$$($(PYTHON) --version 2>/dev/null) || found="not on this machine"; \
	  echo "Python 3.11 or newer is needed; '$(PYTHON)' is $$found." >&2; \
	  echo "Install one and run: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1; }
	@test ! -e $(1) || test -e $(1)/pyvenv.cfg || { \
	  echo "$(1) is there and is no virtual environment: it is left alone; choose another folder." >&2; exit 1; }
	@$(1)/bin/python -m pip --version >/dev/null 2>&1 || { \
	  echo "setting up $(1) with $$($(PYTHON) --version)"; rm -rf $(1); $(PYTHON) -m venv $(1); } || { rm -rf $(1); \
	  echo "'$(PYTHON) -m venv' failed: the venv module is missing (Debian, Ubuntu: apt-get install python3-venv)." >&2; \
	  exit 1; }
endef

# $(call install,FOLDER,WHAT): pip's own last lines explain a failure better than we could.
define install
	@echo "installing into $(1) (the first time takes a few minutes: PyTorch)"
	@$(1)/bin/python $(PIP) $(2) || { \
	  echo "pip could not install; the lines above say why. It is safe to run make again." >&2; exit 1; }
endef

$(VENV)/.installed: $(INPUTS)
	$(call new_venv,$(VENV))
	$(call install,$(VENV),-e '.[smollm]')
	@touch $@

# The same folder with the checkers added; what a demo needs is part of it.
$(VENV)/.installed-dev: $(INPUTS)
	$(call new_venv,$(VENV))
	$(call install,$(VENV),-e '.[smollm$(comma)dev]')
	@touch $@ $(VENV)/.installed

$(BENCH_VENV)/.installed: bench/requirements.txt constraints.txt
	$(call new_venv,$(BENCH_VENV))
	$(call install,$(BENCH_VENV),-r bench/requirements.txt)
	@touch $@

comma := ,
