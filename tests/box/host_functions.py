"""What the ranks in test_emulate.py do; a module that costs a rank nothing to import."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

PORT = 4000


def messages(addresses: tuple[str, ...], pairs: list[tuple[int, int]], num_bytes: int, times: int) -> list[float]:
    """How long it took, of several times, until all messages, sent at one instant, had come."""
    import torch
    import torch.distributed as dist

    from rankscope.box.measuring.timing import go_first

    with suppress(RuntimeError):  # not allowed
        go_first()
    rank, found = dist.get_rank(), []
    with socket.create_server((addresses[rank], PORT)) as server:
        dist.barrier()
        outgoing = [socket.create_connection((addresses[dst], PORT)) for src, dst in pairs if src == rank]
        incoming = [server.accept()[0] for _, dst in pairs if dst == rank]
        for _ in range(times):
            start = torch.tensor([time.monotonic() + 0.1], dtype=torch.float64)
            dist.all_reduce(start, dist.ReduceOp.MAX)
            time.sleep(max(0.0, start.item() - time.monotonic()))
            for connection in outgoing:
                connection.sendall(bytes(num_bytes))
            for connection in incoming:
                assert len(connection.recv(num_bytes, socket.MSG_WAITALL)) == num_bytes
            took = torch.tensor([time.monotonic() - start.item() if incoming else 0.0], dtype=torch.float64)
            dist.all_reduce(took, dist.ReduceOp.MAX)
            found.append(took.item())
        for connection in outgoing + incoming:
            connection.close()
    return found
