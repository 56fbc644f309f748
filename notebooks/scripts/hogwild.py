"""Processes write the same memory without a lock, and train one model in it (Hogwild): python hogwild.py 3"""

import copy
import sys

import torch
import torch.multiprocessing as mp
from torch import nn

INCREMENTS = {"in step": 100, "locked": 100, "free": 20_000}


def count(counters, barrier, lock):
    """Add 1 to shared counters: all processes read before any writes, one process at a time, and in any order."""
    for _ in range(INCREMENTS["in step"]):
        before = counters["in step"].clone()
        barrier.wait()
        counters["in step"].copy_(before + 1)
        barrier.wait()
    for _ in range(INCREMENTS["locked"]):
        with lock:
            counters["locked"] += 1
    barrier.wait()
    for _ in range(INCREMENTS["free"]):
        counters["free"] += 1


def train(worker, model, arrived, batches, samples, labels):
    """Take SGD steps in place. In `arrived` this worker's place has a gradient of -1, and so counts its updates."""
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": arrived, "lr": 1.0}], lr=0.2)
    for rows in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(samples[rows]), labels[rows])
        (loss - arrived[worker]).backward()
        optimizer.step()


def work(worker, model, arrived, batches, data, counting):
    count(*counting)
    train(worker, model, arrived, batches[worker :: len(arrived)], *data)


def report(name, model, arrived, samples, labels):
    outputs = model(samples)
    loss = nn.functional.cross_entropy(outputs, labels)
    accuracy = (outputs.argmax(1) == labels).double().mean()
    print(f"{name}: loss {loss:.2f}, accuracy {accuracy:.3f}, updates that arrived: {arrived.int().tolist()}")


if __name__ == "__main__":
    from sklearn.datasets import load_digits  # not in the workers, which have the data in shared memory

    num_workers = int(sys.argv[1])
    torch.manual_seed(0)
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    train_data, test_data = zip((images / 16).split([1347, 450]), labels.split([1347, 450]), strict=True)
    batches = torch.randint(1347, (300, 32))
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double().share_memory()
    arrived = torch.zeros(num_workers).share_memory_().requires_grad_()
    counters = {name: torch.zeros(1000, dtype=torch.int64).share_memory_() for name in INCREMENTS}

    report("at the start", model, arrived, *test_data)
    alone = copy.deepcopy(model), torch.zeros(1, requires_grad=True)
    train(0, *alone, batches, *train_data)
    report("one process", *alone, *test_data)
    context = mp.get_context("spawn")
    counting = counters, context.Barrier(num_workers), context.Lock()
    mp.spawn(work, (model, arrived, batches, train_data, counting), num_workers)
    report("Hogwild", model, arrived, *test_data)
    for name, counter in counters.items():
        print(f"{name}: {counter.double().mean():,.0f} of {num_workers * INCREMENTS[name]:,} increments arrived")
