"""Rank 1 fails, and torchrun starts all ranks again: torchrun --nproc-per-node 2 --max-restarts 1 restarted.py FILE"""

import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, start, file = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"]), sys.argv[1]
first_step = torch.load(file) if os.path.exists(file) else 0
for step in range(first_step, 4):
    total = torch.ones(1)
    dist.all_reduce(total)
    if rank == 0:
        print(f"start {start}, step {step}: {total.item():.0f} ranks", flush=True)
        torch.save(step + 1, file)  # where to continue; in training, with model and optimizer
    dist.barrier()
    if (start, rank, step) == (0, 1, 1):
        sys.exit("rank 1 fails")
dist.destroy_process_group()
