"""Explorers of a training step; `rankscope.explorers` offers them."""
