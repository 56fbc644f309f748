"""Measure a machine: `plan` says what, `run` starts the ranks and stores the points, the rest runs in the ranks."""
