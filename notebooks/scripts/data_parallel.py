"""One step of torch's DataParallel, and every copy that it makes: python data_parallel.py 4

torch implements `scatter`, `replicate`, `parallel_apply` and `gather` for GPUs only: on a CPU, nn.DataParallel runs the
whole batch at once. Here torch's own DataParallel.forward calls four methods that do the same on a CPU, where a device
is a number, and note each copy. With two GPUs or more, the script also compares with torch's nn.DataParallel on them.
"""

import copy
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import nn

ORDER = ["inputs", "parameters", "outputs", "output gradients", "gradients"]
messages = []  # what was copied, from which device, to which, and how many bytes


class Send(torch.autograd.Function):  # a copy to another device; in the backward pass its gradient comes back
    @staticmethod
    def forward(ctx, tensor, what, src, dst):
        ctx.way_back = {"outputs": "output gradients", "parameters": "gradients"}.get(what), dst, src
        messages.append((what, src, dst, tensor.nbytes))
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        messages.append((*ctx.way_back, gradient.nbytes))
        return gradient.clone(), None, None, None


class CpuDataParallel(nn.DataParallel):
    def __init__(self, module, num_devices):
        nn.Module.__init__(self)  # DataParallel's own looks for GPUs
        self.module = module
        self.device_ids = list(range(num_devices))
        self.output_device = 0
        self.src_device_obj = torch.device("cpu")

    def scatter(self, inputs, kwargs, devices):  # in chunks as torch.chunk makes them; the first stays where it is
        first, *others = inputs[0].chunk(len(devices))
        sent = [Send.apply(chunk, "inputs", 0, device) for device, chunk in enumerate(others, 1)]
        return [(chunk,) for chunk in (first, *sent)], [kwargs] * (1 + len(sent))

    def replicate(self, module, devices):  # device 0 works with the module itself
        return [module, *(self.replica(module, device) for device in devices[1:])]

    def replica(self, module, device):  # all parameters travel as one vector
        vector = Send.apply(nn.utils.parameters_to_vector(module.parameters()), "parameters", 0, device)
        pieces = vector.split([parameter.numel() for parameter in module.parameters()])
        named = zip(module.named_parameters(), pieces, strict=True)
        own = {name: piece.view_as(parameter) for (name, parameter), piece in named}
        return partial(torch.func.functional_call, copy.deepcopy(module), own)

    def parallel_apply(self, replicas, inputs, kwargs):  # in one thread per device
        with ThreadPoolExecutor(len(replicas)) as threads:
            return list(threads.map(lambda replica, chunk: replica(*chunk), replicas, inputs))

    def gather(self, outputs, device):
        sent = [Send.apply(output, "outputs", src, device) for src, output in enumerate(outputs[1:], 1)]
        return torch.cat([outputs[0], *sent])


def gradients(module, inputs, targets):
    loss = nn.functional.cross_entropy(module(inputs), targets)
    return torch.autograd.grad(loss, list(module.parameters()))


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10)).double()
    inputs, targets = torch.randn(24, 64, dtype=torch.float64), torch.randint(0, 10, (24,))
    whole_batch = gradients(model, inputs, targets)
    parallel = CpuDataParallel(model, num_devices=int(sys.argv[1]))
    torch.testing.assert_close(gradients(parallel, inputs, targets), whole_batch)
    for what, src, dst, num_bytes in sorted(messages, key=lambda message: (ORDER.index(message[0]), message)):
        print(f"{what:16} {src} -> {dst}  {num_bytes:6,} bytes")
    print("the gradients are those of the whole batch on one device")
    if torch.cuda.device_count() > 1:
        on_gpus = gradients(nn.DataParallel(model.cuda()), inputs.cuda(), targets.cuda())
        torch.testing.assert_close(on_gpus, whole_batch, check_device=False)
        print("and so are those of nn.DataParallel on the GPUs")
