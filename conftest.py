"""Lets `pytest --nbval notebooks` compare the notebooks as `make test` does."""

pytest_plugins = ["tests.nbval_settings"]
collect_ignore_glob = ["*notebooks/scripts/*"]  # programs for torchrun, which cells start
