"""Nothing here may hang, or leave processes, threads, open files or memory behind."""

from tests.processes import _no_hang, leaves_nothing  # noqa: F401
