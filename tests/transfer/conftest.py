"""The same care as in `tests/pipeline`: nothing hangs, nothing is left behind."""

from ..processes import _no_hang, leaves_nothing

__all__ = ["_no_hang", "leaves_nothing"]
