"""Figures are drawn without a screen and closed after each test, as those of the core are."""

from tests.figures.conftest import close_figures

__all__ = ["close_figures"]
