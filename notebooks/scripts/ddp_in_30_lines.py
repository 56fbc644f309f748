"""What DistributedDataParallel does, compared with the original.

torchrun --nproc-per-node 2 ddp_in_30_lines.py
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")  # torchrun sets rank, world size and rank 0's address
torch.manual_seed(dist.get_rank())  # each rank has samples and first weights of its own
samples = torch.randn(32, 64)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
for tensor in model.state_dict().values():  # 1. all ranks start with those of rank 0
    dist.broadcast(tensor, src=0)
torchs = DistributedDataParallel(copy.deepcopy(model))

# 2. the last layer's gradients come first
buckets = [list(model[2].parameters()), list(model[0].parameters())]
missing, launched = [set(bucket) for bucket in buckets], []


def ready(parameter):  # 3. its gradient is ready; backward goes on while allreduces run
    for left in missing:
        left.discard(parameter)
    while len(launched) < len(buckets) and not missing[len(launched)]:  # in this order
        grads = [each.grad.flatten() for each in buckets[len(launched)]]
        flat = torch.cat(grads) / dist.get_world_size()
        launched.append((flat, dist.all_reduce(flat, async_op=True)))


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(ready)
model(samples).square().mean().backward()
for bucket, (flat, work) in zip(buckets, launched, strict=True):  # 4. copy means back
    work.wait()
    means = flat.split([each.numel() for each in bucket])
    for parameter, mean in zip(bucket, means, strict=True):
        parameter.grad.copy_(mean.view_as(parameter))

torchs(samples).square().mean().backward()
for own, its in zip(model.parameters(), torchs.parameters(), strict=True):
    torch.testing.assert_close(own.grad, its.grad)
print(f"rank {dist.get_rank()}: the gradients are those of torch's DDP\n", end="")
dist.destroy_process_group()
