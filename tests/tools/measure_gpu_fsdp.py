"""Peak memory of FSDP on one GPU, for any number of ranks: python tests/tools/measure_gpu_fsdp.py -o peaks.json.

One process is a rank of torch's fake process group, which communicates nothing, so one GPU is enough. Real
`fully_shard` allocates and frees what it would in a real job. The result is compared with `fsdp.observe`, which needs
no GPU.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lib")]

from rankscope.train.fake_group import fake_group  # noqa: E402

FEATURES, NUM_BLOCKS, NUM_ROWS, NUM_CLASSES = 2048, 12, 4096, 1000
NUM_STEPS = 3  # the first allocates the library's workspaces


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(FEATURES)
        self.up = nn.Linear(FEATURES, 4 * FEATURES)
        self.down = nn.Linear(4 * FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        shown: Tensor = x + self.down(torch.relu(self.up(self.norm(x))))
        return shown


class Net(nn.Module):
    """The module that is measured; make it under ``torch.device``."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(NUM_BLOCKS)])
        self.head = nn.Linear(FEATURES, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.head(x)
        return found


def peak_bytes(num_ranks: int, reshard: bool, param_dtype: torch.dtype | None, adamw: bool) -> int:
    """Return the peak of the last step, less what was allocated before the module was made."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    with fake_group(num_ranks):
        before = torch.cuda.memory_allocated()
        with torch.device("cuda"):
            module = Net()
        options: dict[str, Any] = {"mesh": init_device_mesh("cuda", (num_ranks,)), "reshard_after_forward": reshard}
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=param_dtype)
        for part in (*module.blocks, module):
            fully_shard(part, **options)
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4) if adamw else None
        batch = torch.randn(NUM_ROWS, FEATURES, device="cuda")
        for _ in range(NUM_STEPS):
            torch.cuda.reset_peak_memory_stats()
            module(batch).square().mean().backward()
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() - before
            if optimizer is not None:
                optimizer.step()
            module.zero_grad()
    del module, optimizer, batch
    gc.collect()
    return peak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("fsdp_peaks.json"))
    output = parser.parse_args().output
    if not torch.cuda.is_available():
        print("there is no GPU that torch can use", file=sys.stderr)
        return 2
    peak_bytes(2, True, None, False)  # allocates cuBLAS's workspaces
    rows = []
    for num_ranks, reshard, dtype, adamw in itertools.product(
        (2, 8, 64), (True, False), (None, "bfloat16"), (False, True)
    ):
        peak = peak_bytes(num_ranks, reshard, dtype and getattr(torch, dtype), adamw)
        row = {"num_ranks": num_ranks, "reshard_after_forward": reshard, "param_dtype": dtype, "adamw": adamw}
        rows.append({**row, "peak_bytes": peak})
        print(rows[-1])
    provenance = {
        "hardware": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "date": date.today().isoformat(),
        "command": "python tests/tools/measure_gpu_fsdp.py",
    }
    output.write_text(json.dumps({"provenance": provenance, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
