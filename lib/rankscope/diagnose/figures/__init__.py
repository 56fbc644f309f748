"""Figures that belong to `diagnose`, and the pages that hold them."""
