"""Builders of schedules with their records, a module for each family; the order of a collective's records is theirs."""

from . import rooted, halving, rings, double_tree, bidirectional, swing, exchange, switch  # noqa: I001

__all__ = ["bidirectional", "double_tree", "exchange", "halving", "rings", "rooted", "swing", "switch"]
