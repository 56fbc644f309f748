"""What the core adds to the common tables; see `rankscope.common.extensions`."""

from __future__ import annotations

from .common.extensions import Extension

EXTENSION = Extension(
    explorers=("rankscope.explorers.core",),
    figures={
        "assignment": "rankscope.figures.assignments",
        "bars": "rankscope.figures.bar_charts",
        "costs": "rankscope.figures.lines",
        "coverage": "rankscope.figures.assignments",
        "curves": "rankscope.figures.lines",
        "lengths": "rankscope.figures.assignments",
        "schedule": "rankscope.figures.schedules",
        "slowdowns": "rankscope.figures.rankings",
        "step_costs": "rankscope.figures.assignments",
        "timeline": "rankscope.figures.timelines",
        "winners": "rankscope.figures.rankings",
    },
)
