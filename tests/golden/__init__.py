"""Outputs that were stored before the packages were rewritten, and the comparison with what is computed today."""
