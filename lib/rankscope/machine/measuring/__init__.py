"""Measuring a machine: `plan` says what, `run` starts the ranks and keeps the points, the rest runs in ranks."""
