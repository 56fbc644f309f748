"""A device without hardware: its streams and events remember which works wait for which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from .step import COLLECTIVES

LANES = ("copy_in", *COLLECTIVES)  # in the order in which FSDP makes its streams


class _Stream:
    """A stream; `issued` are the works that its next work comes after, which is also what an event of it stands for."""

    def __init__(self, lane: str) -> None:
        self.lane = lane
        self.issued: frozenset[int] = frozenset()

    def record_event(self) -> frozenset[int]:
        return self.issued

    def wait_event(self, event: Iterable[int]) -> None:
        self.issued |= frozenset(event)

    def wait_stream(self, stream: _Stream) -> None:
        self.issued |= stream.issued


class _Event:
    """An event that is made before it is recorded."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._works: frozenset[int] = frozenset()

    def record(self) -> _Event:
        self._works = self._device.current_stream().issued
        return self

    def __iter__(self) -> Iterator[int]:
        return iter(self._works)


class Device:
    """What FSDP uses of torch.cuda, by the same names."""

    def __init__(self) -> None:
        self._current = [_Stream("compute")]  # the innermost last
        self._lanes = iter(LANES)

    def Stream(self, priority: int = 0) -> _Stream:
        return _Stream(next(self._lanes))

    def Event(self) -> _Event:
        return _Event(self)

    def current_stream(self) -> _Stream:
        return self._current[-1]

    @contextmanager
    def stream(self, stream: _Stream) -> Iterator[None]:
        self._current.append(stream)
        yield
        self._current.pop()
