"""Probes of the machine itself: cores, memory, GPUs, loopback, emulated networks, real-time priority."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from pathlib import Path

from ..values.checks import count_of
from ..values.units import bytes_words
from ..workers.host import num_cores
from .diagnosis import PATIENCE_S, Missing

SHARED_MEMORY = Path("/dev/shm")
ENOUGH_SHARED_BYTES = 256 * 2**20  # a container has 64 MiB by default, which some batches of a few workers fill


def cores() -> str:
    return f"{count_of(num_cores(), 'core')}; ranks beyond that take turns"


def shared_memory() -> str:
    if not (SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)):
        raise Missing(f"no {SHARED_MEMORY} to write to: batches between processes go through temporary files")
    free = shutil.disk_usage(SHARED_MEMORY).free
    if free < ENOUGH_SHARED_BYTES:
        raise Missing(f"{bytes_words(free)} free in {SHARED_MEMORY}, less than {bytes_words(ENOUGH_SHARED_BYTES)}")
    return f"{bytes_words(free)} free in {SHARED_MEMORY}"


def loopback() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        with socket.create_connection(server.getsockname(), timeout=PATIENCE_S), server.accept()[0]:
            return "127.0.0.1 listens and answers"


def gpus() -> str:
    import torch

    from ..machine import provenance

    if not torch.version.cuda:
        raise Missing(f"torch {torch.__version__} is built for {'ROCm' if torch.version.hip else 'the CPU only'}")
    found = provenance.gpus()
    if not found:
        raise Missing("torch sees none")
    cards = [f"{one['name']} ({bytes_words(one['memory_bytes'])})" for one in found]
    each = [f"{cards.count(card)} × {card}" for card in dict.fromkeys(cards)]
    return ", ".join([*each, f"driver {found[0]['driver'] or 'unknown'}", *_peers(len(found))])


def _peers(num_gpus: int) -> list[str]:
    import torch

    pairs = [(a, b) for a in range(num_gpus) for b in range(num_gpus) if a != b]
    reach = sum(bool(torch.cuda.can_device_access_peer(a, b)) for a, b in pairs)
    return [f"peer access between {reach} of {count_of(len(pairs), 'pair')}"] if pairs else []


def emulated_network() -> str:
    """One of a host, through the switch, and one through the kernel: made, and gone again."""
    from ..machine.emulate import emulated

    works, fails = [], []
    for words, latency_s in (("with a latency", 1e-3), ("without", 0.0)):
        try:
            with emulated(2, 1e6, latency_s):
                works.append(words)
        except RuntimeError as error:
            fails.append(str(error))
    if not works:
        raise Missing(fails[0].removeprefix("an emulated network "))
    return " and ".join(works) + "".join(f"; {reason}" for reason in fails)


def real_time() -> str:
    """A thread of its own asks for it, lest this process keep it."""
    errors: list[str] = []

    def ask() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        except (OSError, AttributeError) as error:
            errors.append(getattr(error, "strerror", None) or "this system has no SCHED_RR")

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    if errors:
        raise Missing(errors[0])
    return "SCHED_RR is allowed"
