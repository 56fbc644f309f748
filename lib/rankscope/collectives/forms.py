"""`Terms`: what closed forms are written in, in the single-port full-duplex Hockney model.

The form of an algorithm stands in its record, above its builder. Sources: Thakur, Rabenseifner and Gropp (2005),
Optimization of collective communication operations in MPICH; Rabenseifner (2004); Patarasuk and Yuan (2009); Chan and
others (2007), Collective communication: theory, practice, and experience. Where texts differ, the test that compares
each form with `simulate` decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..cluster import Link

Form = Callable[..., Any]  # form(terms, **options) → seconds


class NoClosedForm(ValueError):
    """No closed form is stated for this algorithm, number of ranks or option; `simulate` has no such limit."""


class Terms(NamedTuple):
    """N ranks with S bytes in each rank's whole buffer. A message of m bytes takes α + mβ, and adding it takes mγ."""

    num_ranks: int
    num_bytes: Any
    link: Link
    gamma_s_per_byte: float

    def takes(self, messages: float, sent: float, added: float = 0.0) -> Any:
        """The seconds of so many messages in a row, of so many buffers in all, of which so many are added up."""
        per_buffer_s = self.num_bytes * (sent * self.link.beta_s_per_byte + added * self.gamma_s_per_byte)
        return messages * self.link.alpha_s + per_buffer_s

    @property
    def log(self) -> int:
        """⌈log₂N⌉."""
        return (self.num_ranks - 1).bit_length()

    @property
    def num_others(self) -> int:
        """N-1."""
        return self.num_ranks - 1

    @property
    def others(self) -> float:
        """(N-1)/N, the share of a buffer that belongs to the other ranks."""
        return self.num_others / self.num_ranks

    @property
    def core(self) -> Terms:
        """The terms of the largest power of two of ranks."""
        return self._replace(num_ranks=1 << (self.num_ranks.bit_length() - 1))

    @property
    def fold_s(self) -> Any:
        """The whole buffer to a rank of the core and back again, if N is not a power of two."""
        return self.takes(2, 2, 1) if self.core != self else 0.0

    def if_power_of_two(self, seconds: Any) -> Any:
        """Return the seconds. Raises NoClosedForm unless N is a power of two."""
        if self.core.num_ranks != self.num_ranks:
            raise NoClosedForm(f"no closed form is stated for {self.num_ranks}, not a power of two: use simulate")
        return seconds


# ---- forms of several algorithms, in which each rank gets, or passes on, the shares of all others


def one_by_one_s(t: Terms) -> Any:
    """N-1 messages in a row, a share in each."""
    return t.takes(t.num_others, t.others)


def one_by_one_added_s(t: Terms) -> Any:
    """The same, where each is added up."""
    return t.takes(t.num_others, t.others, t.others)


def doubling_s(t: Terms) -> Any:
    """⌈log₂N⌉ messages in a row, of 1, 2, 4, … shares."""
    return t.takes(t.log, t.others)


def doubling_added_s(t: Terms) -> Any:
    """The same, where each is added up."""
    return t.takes(t.log, t.others, t.others)


def doubling_of_powers_s(t: Terms) -> Any:
    """`doubling_s` of an algorithm whose messages are of other sizes unless N is a power of two."""
    return t.if_power_of_two(doubling_s(t))
