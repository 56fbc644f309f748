"""Builders of schedules with their records, a module for each family; the order of a collective's records is theirs."""

from . import rooted, halving, rings, double_tree, both_ways, exchange, switch  # noqa: I001

__all__ = ["both_ways", "double_tree", "exchange", "halving", "rings", "rooted", "switch"]
