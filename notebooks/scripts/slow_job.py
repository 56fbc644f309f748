"""A DDP job whose rank 2 is slow in one phase, watched: torchrun --nproc-per-node 4 slow_job.py backward"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rankscope
from rankscope.diagnose import diagnose

STEPS, SLOW_RANK, DELAY_S = 18, 2, 0.06


def train(cause, report=print):
    """Train for some steps; "loader", "forward", "backward", "optimizer" or "host" takes 60 ms longer on one rank."""

    def phase(name):
        if name == cause and dist.get_rank() == SLOW_RANK:
            time.sleep(DELAY_S)

    def batches():
        for _ in range(STEPS):
            phase("loader")
            yield torch.randn(32, 256)

    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])
    model[2].register_forward_pre_hook(lambda *_: phase("forward"))
    model[2].register_full_backward_pre_hook(lambda *_: phase("backward"))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.3)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    optimizer.register_step_pre_hook(lambda *_: phase("optimizer"))

    with rankscope.watch(ddp, batches(), every=8, report=report) as watched:  # the one line to add to a script…
        for inputs in watched.loader:  # …and the loader to iterate over
            optimizer.zero_grad()
            ddp(inputs).square().mean().backward()
            phase("host")
            optimizer.step()
    return watched.traces  # of all ranks


if __name__ == "__main__":
    dist.init_process_group("gloo")
    traces = train(sys.argv[1])
    if dist.get_rank() == 0:
        print(diagnose(traces))
    dist.destroy_process_group()
