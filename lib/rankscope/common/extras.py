"""The extra to install if a package is missing: pyproject.toml defines the extras and their packages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# The extra that brings each package, by the name under which the package is imported.
EXTRAS = {"torch": "torch", "cloudpickle": "torch", "ipywidgets": "notebooks", "matplotlib": "notebooks"}


@contextmanager
def naming_extra() -> Iterator[None]:
    """Add a line that names the extra to an error about a missing package of one; also a decorator.

    >>> with naming_extra():
    ...     raise ModuleNotFoundError("No module named 'torch'", name="torch")
    Traceback (most recent call last):
    ModuleNotFoundError: No module named 'torch'
    pip install 'rankscope[torch]' installs it
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name in EXTRAS and not hasattr(error, "__notes__"):  # an inner door has named it already
            error.add_note(f"pip install 'rankscope[{EXTRAS[error.name]}]' installs it")
        raise
