"""A port for those who must be told one before they listen."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """Return a port on loopback on which nobody listens, and which no connection is given unasked before we do.

    Systems give ports from 32768 up to whoever connects; one from there may be taken at any moment.
    """
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as found:
            try:
                found.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no port is free")
