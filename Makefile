# Needs make and Python 3.11 or newer; everything else goes into .venv, which belongs to this file: it is made,
# brought up to date and, when TORCH or PYTHON changes, replaced from here.
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
  PIN := cat
  KIND := constrained
  TORCH_IS := the torch that constraints.txt names
else ifeq ($(strip $(TORCH)),)
  PIN := sed '/^torch==/d'
  KIND := existing
  TORCH_IS := the torch that $(PYTHON) already has
  VENV_FLAGS := --system-site-packages
else
  PIN := sed 's/^torch==.*/torch==$(strip $(TORCH))/'
  KIND := $(strip $(TORCH))
  TORCH_IS := torch $(strip $(TORCH))
endif
READY := .venv/ready-$(notdir $(PYTHON))-torch-$(KIND)

# What runs unattended neither reads nor writes the settings in the user's home.
VAR := $(CURDIR)/.venv/var
unexport MPLBACKEND
test notebooks bench dashboard site: export MPLCONFIGDIR = $(VAR)/matplotlib
test notebooks bench dashboard site: export IPYTHONDIR = $(VAR)/ipython
test notebooks bench dashboard site: export JUPYTER_CONFIG_DIR = $(VAR)/jupyter/config
test notebooks bench dashboard site: export JUPYTER_DATA_DIR = $(VAR)/jupyter/data
test notebooks bench dashboard site: export JUPYTER_RUNTIME_DIR = $(VAR)/jupyter/runtime

.PHONY: help setup lab dashboard site test notebooks bench clean

help: ## list these targets
	@awk -F ': .*## ' '/^[a-z]+: .*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## make .venv with everything in it, and register its kernel (once; then no time at all)
	@echo "setup: .venv is ready"

$(READY): pyproject.toml constraints.txt Makefile
	@command -v "$(PYTHON)" >/dev/null || { echo "rankscope needs Python 3.11 or newer, and '$(PYTHON)' is not here: name one, as in make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("rankscope needs Python 3.11 or newer, and $(PYTHON) is %d.%d.%d: name another, as in make PYTHON=python3.12 $(MAKECMDGOALS)" % v[:3])'
	@test "$(KIND)" != existing || "$(PYTHON)" -c 'import importlib.util as u, sys; (sys.prefix == sys.base_prefix and u.find_spec("torch")) or sys.exit("TORCH= means the torch that $(PYTHON) already has, but it has none, or is itself a virtual environment, whose packages another cannot see")'
	@echo "setup: Python environment in .venv, with $(TORCH_IS)"
	@test -f $@ || "$(PYTHON)" -m venv --clear $(VENV_FLAGS) .venv
	@$(PIN) constraints.txt >.venv/constraints.txt
	@echo "setup: installing what pyproject.toml names (one to three minutes, plus the download of torch)"
	@$(PY) -m pip install --disable-pip-version-check --no-input --progress-bar off -c .venv/constraints.txt -e '.[notebooks,test,site]' >.venv/pip.log 2>&1 \
	  || { tail -n 15 .venv/pip.log >&2; echo "setup: pip did not manage; all it said is in .venv/pip.log" >&2; exit 1; }
	@echo "setup: registering the Jupyter kernel 'Python (rankscope)' inside .venv"
	@$(PY) -m ipykernel install --sys-prefix --name rankscope --display-name "Python (rankscope)" >/dev/null
	@mkdir -p .venv/etc/jupyter/labconfig
	@echo '{"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false}}' >.venv/etc/jupyter/labconfig/default_setting_overrides.json
	@MPLCONFIGDIR="$(VAR)/matplotlib" $(PY) -c 'import matplotlib.font_manager' 2>/dev/null  # its font list: made once, here
	@rm -f .venv/ready-*
	@touch $@

# --allow-root: Jupyter refuses root without it. The rest keeps the server on this machine: it listens on loopback and
# asks a token (the printed address has it), and looks for no news, updates or extensions elsewhere.
lab: setup ## open JupyterLab on the notebooks, on this machine only
	@echo "lab: JupyterLab on notebooks/; stop it with Ctrl-C"
	@$(PY) -m jupyterlab --ServerApp.ip=127.0.0.1 --ServerApp.root_dir="$(CURDIR)/notebooks" \
	  --LabApp.default_url=/lab/tree/00_start_here.ipynb --LabApp.news_url=None \
	  --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate --LabApp.extension_manager=readonly \
	  $$(test "$$(id -u)" != 0 || echo --allow-root) $(LAB_ARGS)

# It asks a token, too: whoever reaches the port starts a kernel. Its page is ours, as Voilà's own has icon fonts fetched.
dashboard: export JUPYTER_PATH = $(CURDIR)/notebooks/dashboard
dashboard: setup ## serve all explorers on one page, on this machine only
	@echo "dashboard: open the address below; stop it with Ctrl-C"
	@$(PY) -m voila notebooks/dashboard/explorers.ipynb --Voila.config_file_paths=notebooks/dashboard $(DASHBOARD_ARGS)

site: setup ## make static pages of notebooks and API in build/site, which work from disk
	@$(PY) site/make_site.py

test: setup ## lint, types, tests and docstring examples, then every notebook against its stored outputs
	@echo "test 1/4: ruff, modules and notebooks"
	@$(PY) -m ruff check .
	@echo "test 2/4: mypy --strict on the library, and beside it environment.yml as conda replays it (two minutes)"
	@$(PY) -m pytest -q tests/test_environment.py & replay=$$!; $(PY) -m mypy --strict; typed=$$?; wait $$replay && exit $$typed
	@echo "test 3/4: pytest, with the docstrings' examples, warnings as errors"
	@$(PY) -m pytest --ignore=tests/test_environment.py
	@echo "test 4/4: nbval, each notebook run from a clean kernel and compared, two at a time"
	@$(PY) -m pytest --nbval --nbval-current-env --nbval-cell-timeout=600 --nbval-kernel-startup-timeout=300 -n2 --dist loadfile notebooks/*.ipynb

notebooks: setup ## run every notebook again, in place, and store its outputs
	@$(PY) tests/tools/execute_notebooks.py

bench: setup ## run tests/benchmarks, one after the other
	@for file in tests/benchmarks/[!_]*.py; do \
	  echo "bench: $$file"; \
	  $(PY) -m "tests.benchmarks.$$(basename "$$file" .py)" || exit 1; \
	done

clean: ## delete .venv, caches and what tests left behind
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis test-artifacts lib/rankscope.egg-info build
	@find lib tests notebooks site -name __pycache__ -prune -exec rm -rf {} + -o -name .ipynb_checkpoints -prune -exec rm -rf {} +
	@echo "clean: done"
