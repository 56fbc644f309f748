"""``pytest --rankscope``: each finding fails a test, a healthy one passes, and without the option nothing changes."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow
INSTALLED = "rankscope" in {one.name for one in entry_points(group="pytest11")}

SAMPLERS = """
    from torch.utils.data import DistributedSampler

    class Deaf:
        "A sampler that does not hear of epochs."
        def __init__(self, num_ranks, rank):
            self.indices = list(range(rank, 16, num_ranks))
        def __iter__(self):
            return iter(self.indices)

    def of_torch(**options):
        return lambda num_ranks, rank: DistributedSampler(range(20), num_ranks, rank, **options)

    def test_healthy(rankscope_sampler):
        assert rankscope_sampler(of_torch(), dataset_size=20, num_ranks=4).duplicates == 0

    def test_padded(rankscope_sampler):
        rankscope_sampler(of_torch(), dataset_size=20)

    def test_padding_is_known(rankscope_sampler):
        rankscope_sampler(of_torch(), dataset_size=20, allow=["duplicates", "overlap"])

    def test_dropped(rankscope_sampler):
        rankscope_sampler(of_torch(drop_last=True, shuffle=False), dataset_size=20)

    def test_same_order(rankscope_sampler):
        rankscope_sampler(Deaf, dataset_size=16, num_ranks=4)

    def test_uneven(rankscope_sampler):
        rankscope_sampler(lambda num_ranks, rank: range(rank, 20, num_ranks), dataset_size=20, epochs=1)

    def test_unknown_kind(rankscope_sampler):
        rankscope_sampler(of_torch(), dataset_size=20, allow=["padding"])
"""

LOADERS = """
    import numpy as np
    from torch.utils.data import DataLoader

    def same_seed(worker):
        np.random.seed(0)

    def test_healthy(rankscope_loader):
        assert rankscope_loader(DataLoader(range(8), batch_size=4, num_workers=2)).ranks[0].batch_sizes == (4, 4)

    def test_short(rankscope_loader):
        rankscope_loader(DataLoader(range(9), batch_size=4))

    def test_seeded(rankscope_loader):
        rankscope_loader(DataLoader(range(8), batch_size=4, num_workers=2, worker_init_fn=same_seed))
"""

STEPS = """
    import torch
    from torch import nn

    BATCH = torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 1, dtype=torch.float64)
    mse = nn.functional.mse_loss

    def linear():
        return nn.Linear(3, 1, dtype=torch.float64)

    def unsynchronised(ddp, inputs, targets):
        with ddp.no_sync():
            mse(ddp(inputs), targets).backward()

    def test_healthy(rankscope_step):
        assert rankscope_step(linear(), BATCH, mse, num_ranks=4).num_allreduces == 1

    def test_sum(rankscope_step):
        rankscope_step(linear(), BATCH, nn.MSELoss(reduction="sum"))

    def test_no_sync(rankscope_step):
        rankscope_step(linear(), BATCH, mse, step=unsynchronised)

    def test_statistics(rankscope_step):
        norm = nn.Sequential(nn.BatchNorm1d(3), linear()).double()
        rankscope_step(norm, BATCH, mse, allow=["not_the_whole_batch"])
"""


MISTAKES = """
    import pytest

    def test_sampler(rankscope_sampler):
        with pytest.raises(ValueError, match="make_sampler must be a function of .* rank, got 5"):
            rankscope_sampler(5, dataset_size=4)
        with pytest.raises(ValueError, match="num_ranks must be a whole number of at least 1, got 0"):
            rankscope_sampler(range, dataset_size=4, num_ranks=0)
        with pytest.raises(ValueError, match="epochs must be a whole number of at least 1, got 1.5"):
            rankscope_sampler(range, dataset_size=4, epochs=1.5)
"""


def run(pytester: pytest.Pytester, *options: str, **files: str) -> pytest.RunResult:
    pytester.makepyfile(**files)
    plugin = [] if INSTALLED else ["-p", "rankscope.pytest_plugin"]
    return pytester.runpytest_subprocess(*plugin, "-p", "no:cacheprovider", *options)


def test_each_finding_fails_a_test_healthy_ones_pass_and_mistakes_are_named(pytester: pytest.Pytester) -> None:
    files = {"test_samplers": SAMPLERS, "test_loaders": LOADERS, "test_steps": STEPS, "test_mistakes": MISTAKES}
    result = run(pytester, "--rankscope", **files)
    result.assert_outcomes(passed=5, failed=10)
    result.stdout.fnmatch_lines_random(
        [
            "rankscope found:",
            "duplicates: 12 *",
            "overlap: 12 *",
            "dropped: 12 *",
            "never_seen: 4 *16, 17, 18, 19",
            "repeated_order: epochs 0 and 1 *",
            "unbalanced: *2 to 3 samples in epoch 0",
            "*ValueError: allow *, got padding",
            "short_last_batch: *",
            "same_random: *",
            "repeated_random: *",
            "not_the_whole_batch: *0.5 times*",
            "ranks_differ: *",
            "buffers_differ: *0.running_mean*",
        ]
    )
    (padded,) = [part for part in result.stdout.str().split("___ test_") if part.startswith("padded")]
    assert "pytest_plugin" not in padded  # a finding is shown without a traceback


def test_without_the_option_nothing_changes(pytester: pytest.Pytester) -> None:
    others = "def test_other():\n    pass"
    run(pytester, test_samplers=SAMPLERS, test_others=others).assert_outcomes(skipped=7, passed=1)


def test_the_plug_in_itself_imports_nothing_heavy() -> None:
    command = "import sys, rankscope.pytest_plugin; print({'torch', 'numpy', 'attrs'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "set()\n"
