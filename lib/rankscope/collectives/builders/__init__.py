"""Builders of schedules, a module for each family; `rankscope.collectives.algorithms` has the record of each."""
