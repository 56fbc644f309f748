"""Explorers of machines; `rankscope.explorers` offers them."""
