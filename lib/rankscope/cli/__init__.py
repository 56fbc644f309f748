"""The command line: the commands of each subpackage that is installed.

Its parts load when they are first used: a module with commands imports this package, and the program imports all of
these modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy import lazy

if TYPE_CHECKING:
    from .program import app as app
    from .program import main

__all__ = ["main"]

__getattr__, __dir__ = lazy(__name__, {"app": "program", "main": "program"})
