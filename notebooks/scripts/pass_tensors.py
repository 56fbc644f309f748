"""Pass tensors to another process by value and through shared memory, and time it: python pass_tensors.py

"by value" sends the bytes through a pipe. "handle" sends a tensor: torch copies it into shared memory, and sends a file
descriptor of that memory. "shared" sends a tensor that is in shared memory already, so that nothing is copied.
"""

import time

import torch
import torch.multiprocessing as mp

SIZES = {"4 KiB": 2**12, "1 MiB": 2**20, "2 MiB": 2**21, "64 MiB": 2**26}
WAYS = ("by value", "handle", "shared")
PAGE_BYTES = 4096


def receive(line):
    """Read one byte of each page of a tensor, say when that was done, and change the first byte."""
    message = line.recv()
    while message is not None:
        tensor = torch.as_tensor(message)
        num_pages = tensor[::PAGE_BYTES].sum().item()
        read_ns = time.perf_counter_ns()  # all processes of a machine have the same clock
        tensor[0] = 2
        line.send((num_pages, read_ns))
        message = line.recv()


def send(line, way, num_bytes):
    """Return the milliseconds until it was read, whether it was copied here, and whether the change is seen here."""
    tensor = torch.ones(num_bytes, dtype=torch.uint8)
    if way == "shared":
        tensor.share_memory_()
    address = tensor.data_ptr()
    start_ns = time.perf_counter_ns()
    line.send(tensor.numpy() if way == "by value" else tensor)
    num_pages, read_ns = line.recv()
    assert num_pages == num_bytes // PAGE_BYTES, f"{num_pages} of {num_bytes // PAGE_BYTES} pages have arrived"
    return (read_ns - start_ns) / 1e6, tensor.data_ptr() != address, tensor[0].item() == 2


if __name__ == "__main__":
    context = mp.get_context("spawn")
    line, others_end = context.Pipe()
    receiver = context.Process(target=receive, args=(others_end,), daemon=True)
    receiver.start()
    others_end.close()  # so that it is an error here if the receiver dies
    for way in WAYS:
        _, copied, seen = send(line, way, PAGE_BYTES)
        place = "moved to shared memory" if copied else "left where it is"
        print(f"{way}: the tensor is {place}; sender sees the receiver's writes: {seen}")
    for name, num_bytes in SIZES.items():
        times = {way: [send(line, way, num_bytes)[0] for _ in range(5)] for way in WAYS}
        print(f"{name}, fastest of 5 [ms]:", ", ".join(f"{way} {min(times[way]):.2f}" for way in WAYS))
    line.send(None)
    receiver.join()
