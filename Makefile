# Needs make and Python 3.11 or newer. Everything else goes into .venv, which belongs to this file: it is created,
# updated and, when TORCH or PYTHON changes, replaced from here. requirements.lock says what goes into it, with
# hashes; torch alone is not in it, so that you can have the build that fits your machine.
#
#   make TORCH=2.11.0 test   with another torch than the one in constraints.txt
#   make TORCH= test         with the torch that $(PYTHON) already has, which is left alone
#   make PYTHON=python3.13 test
#   make LAB_ARGS="--no-browser --port=9999" lab

PYTHON ?= python3
PY := .venv/bin/python
LAB_ARGS ?=
DASHBOARD_ARGS ?=

ifeq ($(origin TORCH),undefined)
  KIND := constrained
  TORCH_IS := the torch that constraints.txt names
  PIP_TORCH = $(PIP) $$(grep '^torch==' constraints.txt)
else ifeq ($(strip $(TORCH)),)
  KIND := existing
  TORCH_IS := the torch that $(PYTHON) already has
  VENV_FLAGS := --system-site-packages
  PIP_TORCH = :
else
  KIND := $(strip $(TORCH))
  TORCH_IS := torch $(strip $(TORCH))
  PIP_TORCH = $(PIP) torch==$(KIND)
endif
PIP := $(PY) -m pip install --disable-pip-version-check --no-input --progress-bar off
UV := $(PY) -m uv pip install -q --python $(PY)
LOCKED := --require-hashes --no-deps -r requirements.lock
NEWEST := 3, 14
READY := .venv/ready-$(notdir $(PYTHON))-torch-$(KIND)

# What runs unattended neither reads nor writes the settings in the user's home.
VAR := $(CURDIR)/.venv/var
unexport MPLBACKEND
# Tests start hundreds of Python processes. With this set, each would compile every module that it imports.
unexport PYTHONDONTWRITEBYTECODE
quick check test oracles notebooks bench dashboard site: export MPLCONFIGDIR = $(VAR)/matplotlib
quick check test oracles notebooks bench dashboard site: export IPYTHONDIR = $(VAR)/ipython
quick check test oracles notebooks bench dashboard site: export JUPYTER_CONFIG_DIR = $(VAR)/jupyter/config
quick check test oracles notebooks bench dashboard site: export JUPYTER_DATA_DIR = $(VAR)/jupyter/data
quick check test oracles notebooks bench dashboard site: export JUPYTER_RUNTIME_DIR = $(VAR)/jupyter/runtime

.PHONY: help setup lab edit dashboard site quick check test oracles notebooks bench lock clean

help: ## list these targets
	@awk -F ': .*## ' '/^[a-z]+: .*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## create .venv with everything in it and register its kernel (skipped when that is done)
	@echo "setup: .venv is ready"

$(READY): pyproject.toml constraints.txt requirements.lock Makefile
	@command -v "$(PYTHON)" >/dev/null || { echo "rankscope needs Python 3.11 or newer, and '$(PYTHON)' is not here: name one, as in make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("rankscope needs Python 3.11 or newer, and $(PYTHON) is %d.%d.%d: name another, as in make PYTHON=python3.12 $(MAKECMDGOALS)" % v[:3])'
	@test "$(KIND)" != existing || "$(PYTHON)" -c 'import importlib.util as u, sys; (sys.prefix == sys.base_prefix and u.find_spec("torch")) or sys.exit("TORCH= means the torch that $(PYTHON) already has, but it has none, or is itself a virtual environment, whose packages another cannot see")'
	@echo "setup: Python environment in .venv, with $(TORCH_IS)"
	@test -f $@ || "$(PYTHON)" -m venv --clear $(VENV_FLAGS) .venv
	@"$(PYTHON)" -c 'import sys; v = sys.version_info[:2]; v <= ($(NEWEST)) or print("setup: requirements.lock is known to work with Python 3.11 to %d.%d, and $(PYTHON) is %d.%d: if a package fails to install, name another Python, as in make PYTHON=python3.13" % ($(NEWEST), *v))'
	@echo "setup: installing the packages in requirements.lock, then torch and rankscope (one to three minutes)"
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock >.venv/uv.txt
	@{ { { $(PIP) --require-hashes --no-deps -r .venv/uv.txt && $(UV) $(LOCKED); } || $(PIP) $(LOCKED); } && $(PIP_TORCH) \
	  && $(PIP) --no-deps --no-build-isolation -e .; } >.venv/pip.log 2>&1 \
	  || { tail -n 15 .venv/pip.log >&2; echo "setup: pip failed; its whole output is in .venv/pip.log" >&2; exit 1; }
	@echo "setup: registering the Jupyter kernel 'Python (rankscope)' inside .venv"
	@$(PY) -m ipykernel install --sys-prefix --name rankscope --display-name "Python (rankscope)" >/dev/null
	@mkdir -p .venv/etc/jupyter/labconfig
	@echo '{"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false}}' >.venv/etc/jupyter/labconfig/default_setting_overrides.json
	@MPLCONFIGDIR="$(VAR)/matplotlib" $(PY) -c 'import matplotlib.font_manager' 2>/dev/null  # its font list: made once, here
	@rm -f .venv/ready-*
	@touch $@

# The copies are in my_notebooks/, which git ignores and `make clean` leaves alone: they are the reader's.
lab: setup ## open JupyterLab on copies of the notebooks, on this machine only
	@exec $(PY) tools/lab.py $(LAB_ARGS)

edit: setup ## open JupyterLab on the notebooks themselves, for those who write them
	@exec $(PY) tools/lab.py --edit $(LAB_ARGS)

# It asks a token, too: whoever reaches the port starts a kernel. Voilà runs the notebook, which has no stored outputs, and
# trusts every output that it shows, so that nothing has to be signed. Its page is ours, as Voilà's own has icon fonts fetched.
dashboard: export JUPYTER_PATH = $(CURDIR)/notebooks/dashboard
dashboard: setup ## serve all explorers on one page, on this machine only
	@echo "dashboard: open the address below; stop it with Ctrl-C"
	@$(PY) -m voila notebooks/dashboard/explorers.ipynb --Voila.config_file_paths=notebooks/dashboard $(DASHBOARD_ARGS)

site: setup ## make static pages of notebooks and API in build/site, which work from disk
	@$(PY) site/make_site.py

# Processes share the test files and the notebooks; whichever is free takes the next. Tests mostly wait for ranks, workers
# and timeouts: with four processes, `make test` used 1.4 of two cores, so it has six. conftest.py has the longest files
# begin first; xdist itself would begin with those of the most tests. mypy runs next to them. The oracles meter memory and
# drive browsers, so they have four. The fast tests of `make check` wait for nothing, and each process more would import
# everything once more: two are faster than four there.
XDIST := --dist loadfile --no-loadscope-reorder
PYTEST := $(PY) -m pytest -n6 $(XDIST)
PYTEST_ORACLES := $(PY) -m pytest -n4 $(XDIST)
PYTEST_FAST := $(PY) -m pytest -n2 $(XDIST)
NBVAL := --nbval --nbval-current-env --nbval-cell-timeout=600 --nbval-kernel-startup-timeout=200

# Every test is in exactly one of `make test` and `make oracles`; tests/test_targets.py holds that. `make check` is the
# fast part of `make test`.
FAST := not (slow or browser or oracle)
PRODUCT := not (browser or oracle)
ORACLES := browser or oracle
LINT := $(PY) -m ruff check . && $(PY) -m ruff format -q --check lib tests site tools
TYPES := $(PY) -m mypy --strict
IMPORTS := { .venv/bin/lint-imports --no-logo >.venv/imports.log || { cat .venv/imports.log; false; }; }

quick: setup ## after an edit, in half a minute: format, lint, types, imports, and the tests nearest to the changed files
	@$(PY) -m ruff format -q lib tests site tools && $(PY) -m ruff check -q .
	@$(TYPES) & types=$$!; $(IMPORTS); imported=$$?; wait $$types; exit $$((imported + $$?))
	@$(PY) tools/quick.py

check: setup ## before a commit, in two minutes: lint, types, imports, and all fast tests
	@$(LINT)
	@{ $(IMPORTS) && $(TYPES); } >.venv/mypy.log 2>&1 & types=$$!; \
	  $(PYTEST_FAST) -q -m "$(FAST)"; tests=$$?; wait $$types; typed=$$?; cat .venv/mypy.log; \
	  exit $$((tests + typed))

test: setup ## before a push, in eight minutes: lint, types, all tests of the product, each notebook against its outputs
	@echo "test: ruff, mypy --strict, then pytest and nbval"
	@$(LINT)
	@$(TYPES) >.venv/mypy.log 2>&1 & types=$$!; \
	  $(PYTEST) $(NBVAL) -m "$(PRODUCT)" lib tests tools README.md CONTRIBUTING.md docs notebooks/*.ipynb notebooks/appendix/*.ipynb; tests=$$?; \
	  wait $$types; typed=$$?; cat .venv/mypy.log; exit $$((tests + typed))

oracles: setup ## the other tests: browsers, programs of others, emulated networks, kills, the site, clean installations
	@cmp -s tests/peers.txt .venv/peers/peers.txt || { rm -rf .venv/peers && $(PIP) --no-deps --target .venv/peers -r tests/peers.txt >.venv/peers.log 2>&1 \
	  && cp tests/peers.txt .venv/peers/; } || echo "oracles: tests/peers.txt did not install (.venv/peers.log); tests that compare with those packages skip"
	@echo "oracles: pytest, with whatever browsers and other programs are installed"
	@$(PYTEST_ORACLES) -m "$(ORACLES)" tests

notebooks: setup ## execute every notebook in place and store its outputs
	@$(PY) tests/tools/execute_notebooks.py

bench: setup ## run all of tests/benchmarks
	@for file in tests/benchmarks/[!_]*.py; do \
	  echo "bench: $$file"; \
	  $(PY) -m "tests.benchmarks.$$(basename "$$file" .py)" || exit 1; \
	done

# uv resolves for all Python versions and systems at once. The packages that belong to a build of torch stay out.
lock: setup ## resolve requirements.lock again from pyproject.toml and constraints.txt
	@$(PY) tests/tools/lock.py

clean: ## delete .venv, caches and what tests left behind
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis test-artifacts lib/rankscope.egg-info build
	@find lib tests notebooks site tools -name __pycache__ -prune -exec rm -rf {} + -o -name .ipynb_checkpoints -prune -exec rm -rf {} +
	@echo "clean: done"
