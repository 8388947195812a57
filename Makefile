# Every target first builds the environment it needs: .venv from `python3`, pinned by requirements/dev.txt.

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export PYTHONNOUSERSITE := 1
# Hundreds of processes import the same files, and read every test anew: bytecode is kept, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

PYTHON := python3
BIN := .venv/bin
VENV := .venv/.installed
NEWEST_VENV := .venv-newest/.installed
# More workers than cores: many tests wait for processes that they have started. A file goes to one worker, which starts its
# jobs and compiles its programs once; the files come in the order of conftest.py, the longest first.
PYTEST := python -m pytest -q --dist loadfile --no-loadscope-reorder
WORKERS := 3
.DEFAULT_GOAL := help
.PHONY: help demo check test test-everywhere test-thorough test-here test-newest test-beside test-house lint style types bench gallery docs lock snapshots wheels clean

help:
	@echo 'make demo       train the digits classifier over 8 simulated devices; the results are in runs/demo'
	@echo 'make check      lint, then the tests that are quick: for use while working'
	@echo 'make test       style and the tests, on this Python and on the newest one; types are in make check'
	@echo 'make test-thorough  the combinations that make test leaves out, and the site'
	@echo 'make test-house the tests of Outlay alone, where its applications are not installed'
	@echo 'make lint       format, style, layers, types'
	@echo 'make bench      every benchmark that takes minutes, one after the other'
	@echo 'make gallery    40 priced configurations as pages, for the site; no compiler is asked'
	@echo 'make docs       the site, in docs/_build/html'
	@echo 'make lock       pin the newest versions of everything in requirements/dev.txt'
	@echo 'make snapshots  accept the present public names and command-line options as intended'
	@echo 'make wheels     each extra alone in an empty environment, from the built wheel: every command that it is for'
	@echo 'make clean      remove what these targets made'

demo: $(VENV)
	@$(BIN)/outlay run digits --devices 8 --layout fsdp --run-folder runs/demo --force

# Every test that starts no process, compiles little and builds no page; CONTRIBUTING.md says what runs where.
check: lint
	@$(RUN); run $(BIN)/$(PYTEST) -n $(WORKERS) -m 'not processes and not compiles and not pages and not thorough'

# Types take one core a minute and a half: `make check` has them, and CI in a job of their own.
test: style
	@$(RUN); run $(MAKE) --silent --no-print-directory test-everywhere

# Python 3.11 gets the oldest JAX we support and every later Python the newest, so a machine that has both tests both, side by side:
# one after the other, each leaves cores idle where its workers start, wait for processes, and end.
test-everywhere: $(VENV)
	@$(RUN); newer=$$($(FIND_NEWER_PYTHON)); \
	if [ "$$newer" = same ]; then \
	  echo 'python3 is 3.12 or newer, so it has the newest JAX: one run of the suite covers it.'; \
	elif [ -n "$$newer" ]; then \
	  run $(MAKE) --silent --no-print-directory $(NEWEST_VENV) PYTHON="$$newer" || exit; \
	elif [ "$$CI" = true ]; then \
	  echo 'error: no Python 3.12 or newer is on this machine, and in CI the newest JAX must be tested.' >&2; exit 1; \
	else \
	  echo 'No Python 3.12 or newer is on this machine: the newest JAX is not tested.'; \
	fi; \
	if [ -x "$$newer" ]; then beside=test-beside; fi; \
	run $(MAKE) --silent --no-print-directory --keep-going -j 2 test-here $$beside

# What `make test` leaves out.
test-thorough:
	@$(RUN); run $(MAKE) --silent --no-print-directory test THOROUGH=yes

HERE := $(if $(THOROUGH),thorough,not thorough)
WITH_NEWEST := newest and $(if $(THOROUGH),(any_jax or thorough),not any_jax and not thorough)

test-here: $(VENV)
	@$(RUN); echo "Testing with $$($(BIN)/python --version) ..."; twice .pytest_cache $(BIN)/$(PYTEST) -n $(WORKERS) -m '$(HERE)'

# Python 3.11 runs all kinds of tests, and the newest JAX what another JAX could break. What failed is noted in a folder of its own, or
# the other Python's would be forgotten.
test-newest: $(NEWEST_VENV)
	@$(RUN); echo "Testing with $$(.venv-newest/bin/python --version) ..."; \
	twice .pytest_cache/newest .venv-newest/bin/$(PYTEST) -n $(WORKERS) -m '$(WITH_NEWEST)'

# It has a tenth of the tests, so one worker, and gives way to the others: so it lasts as long as they do, and computes where they wait.
# What it says is shown when it has ended.
test-beside: $(NEWEST_VENV)
	@$(RUN); mkdir -p .pytest_cache; \
	run nice -n 5 $(MAKE) --silent --no-print-directory test-newest WORKERS=$(if $(THOROUGH),2,1) > .pytest_cache/newest.txt 2>&1; code=$$?; \
	cat .pytest_cache/newest.txt; exit $$code

# An environment like the other, without the applications in packages/. Pages of the documentation are of both.
HOUSE_VENV := .venv-house/.installed

test-house: $(HOUSE_VENV)
	@$(RUN); run .venv-house/bin/$(PYTEST) -n $(WORKERS) -m '$(HERE)' -o cache_dir=.pytest_cache/house --ignore tests/docs src tests

lint: style types

style: $(VENV)
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check --output-format concise
	@$(BIN)/lint-imports --no-cache --no-logo

types: $(VENV)
	@$(BIN)/pyright --pythonpath $(BIN)/python

# Tables of many programs that are compiled for absent hardware take up to an hour, and one needs a GPU: each is started by itself.
TABLES := benchmarks/gallery.py benchmarks/one_gpu.py benchmarks/long_sequences.py benchmarks/published.py benchmarks/chosen_against_published.py benchmarks/attention_layouts.py benchmarks/compiled_proofs.py

bench: $(VENV)
	@set -e; for benchmark in $(filter-out $(TABLES),$(wildcard benchmarks/[a-z]*.py)); do echo "$$benchmark"; $(BIN)/python "$$benchmark"; done
	$(BIN)/python benchmarks/published.py --known

# Prices change with constants, so the pages are made, not kept; `make docs` takes them along once they are there.
gallery: $(VENV)
	@$(BIN)/python benchmarks/gallery.py

docs: $(VENV)
	@$(BIN)/sphinx-build --quiet --fail-on-warning -j auto -b html docs docs/_build/html
	@echo 'The site is in docs/_build/html/index.html'

# One lock for every Python: `--universal` pins JAX, NumPy and others once for 3.11 and once for 3.12 and newer.
lock: $(VENV)
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras --group dev \
	  --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command 'make lock' --no-emit-package outlay --no-emit-package outlay-brain --output-file requirements/dev.txt \
	  pyproject.toml packages/outlay-brain/pyproject.toml

snapshots: $(VENV)
	@$(BIN)/python tests/architecture/test_public_api.py
	@$(BIN)/python tests/architecture/test_cli_options.py
	@PYTHONPATH=.:packages/outlay-brain $(BIN)/python packages/outlay-brain/brain_tests/architecture/test_promises_of_a_brain.py

# Installs packages from the registry, for minutes, so it is no part of `make test`.
wheels: $(VENV)
	@$(RUN); run $(BIN)/python .ci/wheels.py

clean:
	rm -rf .venv .venv-newest .venv-house build dist docs/_build docs/_gallery docs/jupyter_execute runs/demo
	rm -rf .hypothesis .jax_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

APPLICATIONS := -e packages/outlay-brain
$(HOUSE_VENV): APPLICATIONS :=
$(VENV) $(NEWEST_VENV) $(HOUSE_VENV): %/.installed: requirements/dev.txt pyproject.toml packages/outlay-brain/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Outlay needs Python 3.11 or newer.")'
	@echo "Setting up $* with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv $*
	@$*/bin/pip install -qq -r requirements/dev.txt
	@$*/bin/pip install -qq --no-deps --no-build-isolation -e . $(APPLICATIONS)
	@touch $@

# A shell that is asked to end would leave the tests running: it passes the signal on, and waits for them.
define RUN
run() { \
  "$$@" & child=$$!; trap "kill $$child 2>/dev/null" INT TERM; \
  wait $$child; code=$$?; while kill -0 $$child 2>/dev/null; do wait $$child; code=$$?; done; \
  trap - INT TERM; return $$code; \
}; \
twice() { \
  notes="$$1"; shift; set -- "$$@" -o cache_dir="$$notes"; \
  run "$$@"; code=$$?; [ $$code = 1 ] || return $$code; \
  failed=$$(grep -c ': true' "$$notes/v/cache/lastfailed"); \
  if [ "$$failed" -gt 3 ]; then echo "$$failed tests failed: more than three are not run again." >&2; return 1; fi; \
  echo "Run again, in one worker: $$failed failed, and what fails twice fails."; \
  run "$$@" -n 1 --last-failed --last-failed-no-failures none || return; \
  echo "Passed in their second run: $$failed, named above. Please mend them."; \
}
endef

# The path of the newest Python that really starts (a name on PATH may be a version manager's empty shim) and can make an
# environment; `same` if `python3` is new enough itself; nothing if there is none.
define FIND_NEWER_PYTHON
if $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then echo same; exit; fi; \
for python in python3.14 python3.13 python3.12 $$(ls -d "$$HOME"/.pyenv/versions/3.1[2-4].*/bin/python3 2>/dev/null | sort -rV); do \
  "$$python" -c 'import ensurepip, sys, venv; print(sys.executable)' 2>/dev/null && break; \
done
endef
