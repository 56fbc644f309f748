"""A check and its diagnosis; a failing check is a diagnosis, never an error."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import attrs

from ..values.checks import printable

PATIENCE_S = 20.0  # timeout for a program, loopback or two ranks; it only bounds a hang


@attrs.frozen
class Diagnosis:
    """Whether something was found, its version or why it is missing, its purpose, and the remedy.

    `remedy` is "" if it was found; `required` says that rankscope does not work without it.
    """

    name: str
    found: bool
    detail: str = attrs.field(converter=printable)
    used_by: str
    remedy: str = ""
    required: bool = False


class Missing(Exception):
    """Raised by a probe if the thing is missing; it says why."""


@attrs.frozen
class Check:
    """One check of the machine: `probe` returns a detail of what it found, or raises `Missing`.

    >>> def probe():
    ...     raise Missing("no such program")
    >>> found = Check("abacus", "sums", probe, "apt-get install abacus").diagnosis()
    >>> found.found, found.detail, found.remedy
    (False, 'no such program', 'apt-get install abacus')
    """

    name: str
    used_by: str
    probe: Callable[[], str]
    remedy: str = ""
    required: bool = False

    def diagnosis(self) -> Diagnosis:
        """Run the probe and return the diagnosis; any exception of the probe is a diagnosis, too."""
        try:
            return Diagnosis(self.name, True, self.probe(), self.used_by, required=self.required)
        except Missing as missing:
            detail = str(missing)
        except Exception as error:
            detail = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".removesuffix(": ")
        return Diagnosis(self.name, False, detail, self.used_by, self.remedy, self.required)


def output_of(command: list[str], text: str = "") -> str:
    """Return the output of a program, given `text` on its standard input. Raises Missing if it fails or hangs."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, errors="replace", timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise Missing(f"{command[0]} did not answer within {PATIENCE_S:g} s") from None
    except OSError as error:
        raise Missing(f"{command[0]}: {error.strerror or error}") from None
    if done.returncode:
        first = next(iter(done.stderr.strip().splitlines()), "")
        raise Missing(f"{command[0]} ended with exit code {done.returncode}{': ' * bool(first)}{first}")
    return done.stdout
