"""What a launch's socket carries to the caller, from the server and from the ranks: a few whole numbers each time."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from enum import IntEnum

_EVENT = struct.Struct("<iiq")


class Event(IntEnum):
    """What happened to a rank."""

    FORKED = 1  # by the server; the value is the process id
    NOT_FORKED = 2  # the value is the errno
    RETURNED = 3  # told by the rank
    RAISED = 4
    REFUSED = 5  # it cannot be what was asked for
    ENDED = 6  # told by the server; the value is the exit code, negative for a signal
    ALL_GONE = 7


def tell(line: socket.socket, event: Event, rank: int, value: int = 0) -> None:
    """Send one event; the server and the ranks share the socket, and a message as short as this is never torn."""
    line.sendall(_EVENT.pack(event, rank, value))


class Events:
    """The receiving end."""

    def __init__(self, line: socket.socket) -> None:
        self._line, self._rest = line, b""

    def receive(self) -> Iterator[tuple[Event, int, int]]:
        """Read once from a socket that is ready, and give the events. Raises EOFError where nobody is left."""
        found = self._line.recv(1 << 16)
        if not found:
            raise EOFError
        data = self._rest + found
        end = len(data) - len(data) % _EVENT.size
        self._rest = data[end:]
        for event, rank, value in _EVENT.iter_unpack(data[:end]):
            yield Event(event), rank, value
