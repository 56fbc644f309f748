"""Rank 0 serves parameters, and all other ranks train them: torchrun --nproc-per-node 4 parameter_server.py

First synchronously: the server updates with the mean of one gradient from each worker. Then asynchronously: it updates
with each gradient that arrives. It runs no code that others send: messages are tensors, by torch's own send and recv.
"""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")  # torchrun has put rank, world size and the address of rank 0 into the environment
workers = range(1, dist.get_world_size())
torch.manual_seed(0)  # all ranks have the same samples
samples, targets = torch.randn(1920, 64 + 10, dtype=torch.float64).split([64, 10], dim=1)
batches = torch.arange(60 * len(workers) * 32).reshape(-1, 32) % len(samples)


def gradient_of(parameters, rows):  # of half the squared error
    return samples[rows].T @ (samples[rows] @ parameters - targets[rows]) / len(rows)


def work(worker, parameters):
    number = torch.tensor(0)
    dist.recv(number, src=0)
    while number >= 0:
        dist.recv(parameters, src=0)
        gradient = gradient_of(parameters, batches[number])
        time.sleep(0.080 if worker == workers[-1] else 0.020)  # as if the model were larger; the last worker is slow
        dist.send(gradient, dst=0)
        dist.recv(number, src=0)


def serve(how, parameters, per_update):
    numbers = iter(range(len(batches)))
    version = num_bytes = 0  # the updates so far, and what passed the port of the server
    pulled = {}  # by worker: the version that it computes with
    behind = {worker: [] for worker in workers}  # by worker: how many updates were made during each gradient
    gradients = {}  # by worker: those for the next update

    def answer(senders):
        for worker, number in zip(senders, numbers, strict=False):
            dist.send(torch.tensor(number), worker)
            dist.send(parameters, worker)
            pulled[worker] = version

    answer(workers)
    for _ in batches:
        gradient = torch.empty_like(parameters)
        worker = dist.recv(gradient)  # the next one, from any worker
        num_bytes += parameters.nbytes + gradient.nbytes  # one pull and one push
        behind[worker].append(version - pulled[worker])
        gradients[worker] = gradient
        if len(gradients) == per_update:
            parameters -= 0.05 * sum(gradients.values()) / per_update
            version += 1
            answer(sorted(gradients))
            gradients = {}
    for worker in workers:
        dist.send(torch.tensor(-1), worker)  # there are no more batches
    total = sum(map(sum, behind.values()))
    print(f"{how}: {version} updates, {num_bytes:,} bytes, {total / len(batches):.2f} updates behind on average")
    for worker, updates in behind.items():
        print(f"  worker {worker}: {len(updates)} gradients, {sum(updates) / len(updates):.2f} updates behind")


parameters = torch.zeros(64, 10, dtype=torch.float64)
if dist.get_rank() == 0:
    serve("synchronous", parameters, per_update=len(workers))
    alone = torch.zeros_like(parameters)
    for rows in batches.reshape(60, -1):
        alone -= 0.05 * gradient_of(alone, rows)
    torch.testing.assert_close(parameters, alone, rtol=0, atol=1e-12)
    print("  equal to one process with the same batches, to 1e-12")
    serve("asynchronous", torch.zeros_like(parameters), per_update=1)
else:
    work(dist.get_rank(), parameters)  # synchronously
    work(dist.get_rank(), parameters)
dist.destroy_process_group()
