"""What DistributedDataParallel does, compared with the original: torchrun --nproc-per-node 2 ddp_in_30_lines.py"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")  # torchrun sets rank, world size and the address of rank 0
torch.manual_seed(dist.get_rank())  # every rank has its own samples and, at first, its own weights
samples, model = torch.randn(32, 64), nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
for tensor in model.state_dict().values():  # 1. all ranks start with rank 0's weights and buffers
    dist.broadcast(tensor, src=0)
torchs = DistributedDataParallel(copy.deepcopy(model))

buckets = [list(model[2].parameters()), list(model[0].parameters())]  # 2. the last layer's gradients come first
missing, launched = [set(bucket) for bucket in buckets], []


def ready(parameter):  # 3. this gradient is ready; the backward pass goes on while allreduces run
    for left in missing:
        left.discard(parameter)
    while len(launched) < len(buckets) and not missing[len(launched)]:  # in the same order on every rank
        flat = torch.cat([each.grad.flatten() for each in buckets[len(launched)]]) / dist.get_world_size()
        launched.append((flat, dist.all_reduce(flat, async_op=True)))


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(ready)
model(samples).square().mean().backward()
for bucket, (flat, work) in zip(buckets, launched, strict=True):  # 4. wait, and copy the averages back
    work.wait()
    for parameter, mean in zip(bucket, flat.split([each.numel() for each in bucket]), strict=True):
        parameter.grad.copy_(mean.view_as(parameter))

torchs(samples).square().mean().backward()
torch.testing.assert_close([each.grad for each in model.parameters()], [each.grad for each in torchs.parameters()])
print(f"rank {dist.get_rank()}: the gradients are those of torch's DistributedDataParallel\n", end="")
dist.destroy_process_group()
