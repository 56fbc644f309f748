# Needs make and Python 3.11 or newer. Everything else goes into .venv, which this file creates and marks as its own; it
# never touches another .venv. `make TORCH=2.11.0 test` takes another torch than the one in constraints.txt. After a
# change of PYTHON, as in `make PYTHON=python3.13 lab`, run `make clean` first.
PYTHON ?= python3
TORCH ?= $(shell sed -n 's/^torch==//p' constraints.txt)
PY := .venv/bin/python
MARK := .venv/made-by-rankscope
# A .venv works only in the folder in which it was made, so the folder's checksum is part of the name. Paths themselves
# reach the shell as $$PWD, within quotes, and never as text of a command.
READY := .venv/ready-with-torch-$(TORCH)-in-$(shell pwd -P | cksum | tr ' ' -)
NOTEBOOKS := notebooks/*.ipynb notebooks/appendix/*.ipynb
# Tests touch nothing in the user's home. Processes share the cores: in each, torch computes on one thread.
ALONE := HOME="$$PWD/.venv/home" OMP_NUM_THREADS=1
# Jupyter needs docstrings, and programs of tests/ and docs/ import what lies beside them. Each test, kernel and rank that
# starts would compile all modules again, where Python may not store them.
unexport PYTHONOPTIMIZE PYTHONSAFEPATH PYTHONDONTWRITEBYTECODE
.PHONY: help setup lab test oracles notebooks site clean delete
help: ## list these targets
	@awk -F ': .*## ' '/^[a-z]+: .*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile
# Two calls at once wait for each other: Python holds a lock on this file while make works in .venv.
LOCKED := "$(PYTHON)" -I -c 'import fcntl, subprocess, sys; held = open("Makefile"); fcntl.flock(held, fcntl.LOCK_EX); sys.exit(subprocess.call(sys.argv[1:]))'
# A cluster's own settings of pip may say to install elsewhere. Where it finds packages stays as they say.
PIP := $(PY) -m pip install --disable-pip-version-check --no-user --root=/
setup: ## create .venv with everything in it (skipped when that is done)
	@$(LOCKED) "$(MAKE)" -s --no-print-directory $(READY)
$(READY): pyproject.toml constraints.txt Makefile
	@"$(PYTHON)" -I -c 'import sys; sys.version_info >= (3, 11) or sys.exit("rankscope needs Python 3.11 or newer. Name one: make PYTHON=python3.12")'
	@test ! -L .venv || { echo "setup: .venv is a link. Remove it: make writes only into a .venv of its own." >&2; exit 1; }
	@test ! -e .venv -o -f $(MARK) || { echo "setup: .venv was not created by this Makefile. Move it away first." >&2; exit 1; }
	@echo "setup: installing torch $(TORCH), JupyterLab and rankscope into .venv (half a minute to three minutes)"
	@mkdir -p .venv && { pwd -P | cmp -s - $(MARK) || find .venv -mindepth 1 ! -path $(MARK) -delete; }
	@pwd -P >$(MARK) && "$(PYTHON)" -I -m venv .venv
	@sed 's/^torch==.*/torch==$(TORCH)/' constraints.txt >.venv/constraints.txt
	@{ $(PIP) --prefix="$$PWD/.venv" --target= --no-input --progress-bar off -c .venv/constraints.txt uv torch \
	  && $(PY) -m uv pip install --python $(PY) -c .venv/constraints.txt -e '.[torch,notebooks,test,site]'; } >.venv/setup.log 2>&1 \
	  || { tail -n 15 .venv/setup.log >&2; echo "setup: the installation failed; .venv/setup.log has all of it" >&2; exit 1; }
	@$(PY) -m ipykernel install --sys-prefix --name rankscope --display-name "Python (rankscope)" >/dev/null
	@rm -f .venv/ready-* && touch $@

# The copies in my_notebooks/ are the reader's: what is there already stays as it is. git ignores them.
TRUST := "$$PWD/.venv/trust"
# JupyterLab otherwise asks at the start whether to show its news, in front of the first figure.
SETTINGS := .venv/share/jupyter/lab/settings
QUIET := {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false}}
lab: setup ## open JupyterLab on your own copies of the notebooks, on this machine only
	@mkdir -p $(TRUST) && $(PY) tests/tools/copy_notebooks.py notebooks my_notebooks
	@mkdir -p $(SETTINGS) && echo '$(QUIET)' >$(SETTINGS)/overrides.json
	@JUPYTER_DATA_DIR=$(TRUST) $(PY) -m jupyter trust $(NOTEBOOKS) >/dev/null
	@$(PY) -m jupyterlab --NotebookNotary.data_dir=$(TRUST) --ServerApp.ip=127.0.0.1 --ServerApp.root_dir=my_notebooks --ServerApp.kernel_websocket_connection_class=rankscope.common.notebooks.PromptConnection --allow-root \
	  --ContentsManager.pre_save_hook=rankscope.common.notebooks.without_views --LabApp.default_url=/lab/tree/00_one_step.ipynb --LabApp.news_url=None --LabApp.extension_manager=readonly $(LAB_ARGS)

# Notebooks take longest, so they begin first. Each worker imports all tests, so more of them than cores cost time, too;
# the oracles wait more than they compute.
PYTEST := $(ALONE) $(PY) -m pytest --dist loadfile --no-loadscope-reorder
LINT := $(PY) -m ruff check . && $(PY) -m ruff format -q --check lib tests docs && .venv/bin/lint-imports --no-logo --no-cache >.venv/imports.log || { cat .venv/imports.log; false; }
test: setup ## lint, types, all tests of the product, and each notebook against its stored outputs
	@$(LINT)
	@$(ALONE) $(PY) -m mypy --strict >.venv/mypy.log 2>&1 & types=$$!; \
	  $(PYTEST) -n4 --nbval --nbval-cell-timeout=600 -m "not (browser or oracle)" $(NOTEBOOKS) tests lib README.md CONTRIBUTING.md docs/*.md; tests=$$?; \
	  wait $$types || { cat .venv/mypy.log; exit 1; }; exit $$tests
oracles: setup ## compare with Open MPI, SimGrid, libtorch and others, drive browsers, and run whatever takes long
	@cmp -s tests/peers.txt .venv/peers/peers.txt || { $(PIP) --prefix= --target=.venv/peers -q --no-deps --upgrade -r tests/peers.txt \
	  && cp tests/peers.txt .venv/peers/; } || echo "oracles: tests/peers.txt did not install; its comparisons skip"
	@$(PYTEST) -n6 -m "browser or oracle" tests
notebooks: setup ## execute every notebook in place and store its outputs
	@$(ALONE) $(PY) tests/tools/execute_notebooks.py
# LIVE=1 fetches Pyodide and two wheels, as docs/site/live/inputs.json pins them, and needs node 20.11 or newer.
site: setup ## build static pages of the notebooks and the API in build/site; with LIVE=1 they compute any settings
	@$(ALONE) $(PY) docs/site/make_site.py
clean: ## delete .venv, if this file created it, and all caches
	@$(LOCKED) "$(MAKE)" -s --no-print-directory delete
delete:
	@test -L .venv -o ! -f $(MARK) || rm -rf .venv
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis test-artifacts lib/rankscope.egg-info build
	@find lib tests notebooks docs -name __pycache__ -prune -exec rm -rf {} +
