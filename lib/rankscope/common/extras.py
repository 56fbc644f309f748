"""The extra to install if a package is missing: pyproject.toml defines the extras and their packages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

# The extra that brings each package, by the name under which the package is imported.
EXTRAS = {
    "torch": "torch",
    "cloudpickle": "torch",
    "jupyterlab": "notebooks",
    "ipykernel": "notebooks",
    "IPython": "notebooks",
    "ipywidgets": "notebooks",
    "matplotlib": "notebooks",
    "PIL": "notebooks",
    "sklearn": "notebooks",
    "papermill": "notebooks",
}


def install_command(package: str) -> str:
    """Return the command that installs the extra with this package.

    It also works if rankscope was installed from a clone, because pip then only adds the packages of the extra. Raises
    KeyError for a package that is in no extra.

    >>> install_command("ipywidgets")
    "pip install 'rankscope[notebooks]'"
    """
    return f"pip install 'rankscope[{EXTRAS[package]}]'"


def require(package: str, user: str) -> None:
    """Raise ModuleNotFoundError, with the extra to install, if a package is missing. It is not imported.

    `user` is the part of rankscope that needs the package.
    """
    if find_spec(package) is None:
        raise _missing(package, user)


def _missing(package: str, user: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(
        f"{user} needs {package}, which is not installed: {install_command(package)}", name=package
    )


def package_of_extra(error: BaseException) -> str | None:
    """Return the missing package that an error is about if it is in an extra, else None.

    >>> package_of_extra(ModuleNotFoundError("No module named 'torch.distributed'", name="torch.distributed"))
    'torch'
    """
    if not isinstance(error, ModuleNotFoundError):
        return None
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    return package


@contextmanager
def naming_extras(user: str) -> Iterator[None]:
    """Name the extra if an import in this block fails because one of its packages is missing.

    `user` is the part of rankscope that needs the package. Any other error passes unchanged.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = package_of_extra(error)
        if package is None or install_command(package) in str(error):
            raise
        raise _missing(package, user) from error
