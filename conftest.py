"""Which files come first, and what nbval leaves alone."""

from __future__ import annotations

from typing import Any

# Files that take half a minute and more, longest first. Processes that share the files take these first, so that none
# of them is left for the end, when the other processes have nothing to do.
LONGEST = (
    "tests/box/test_profile_command.py",
    "tests/browser/test_site.py",
    "tests/browser/test_make_lab.py",
    "tests/box/test_emulate.py",
    "tests/ranks/test_launch.py",
    "tests/ranks/test_surroundings.py",
    "tests/test_subpackages.py",
    "notebooks/13_other_ways.ipynb",
    "tests/test_pytest_plugin.py",
    "notebooks/12_uneven_inputs.ipynb",
    "notebooks/14_your_own.ipynb",
    "tests/course/test_your_own.py",
    "tests/collectives/test_openmpi.py",
    "notebooks/10_dataparallel_against_ddp.ipynb",
    "tests/test_explorers_shown.py",
    "tests/campaign/test_campaign.py",
    "tests/browser/test_dashboard.py",
    "notebooks/18_pipelines.ipynb",
    "tests/box/test_measure_gpu.py",
    "notebooks/03_how_a_batch_arrives.ipynb",
    "notebooks/00_start_here.ipynb",
    "tests/collectives/test_wire.py",
    "tests/browser/test_jupyterlab.py",
    "tests/box/test_transfers.py",
    "notebooks/09_ddp_buckets_and_overlap.ipynb",
    "notebooks/20_slow_or_stuck.ipynb",
    "tests/pipeline/test_dataloader.py",
    "tests/test_pictures.py",
    "tests/train/zero/test_run.py",
    "tests/test_site.py",
    "tests/collectives/test_simulate.py",
    "tests/sampling/test_libtorch_samplers.py",
    "notebooks/04_part_files.ipynb",
    "tests/box/test_two_nodes.py",
    "lib/rankscope/train/ddp/followed.py",
    "tests/scripts/test_hogwild.py",
    "notebooks/06_allreduce_variants.ipynb",
    "notebooks/11_zero_memory.ipynb",
    "tests/diagnose/test_watch.py",
    "tests/diagnose/test_hangs.py",
    "tests/test_boundaries.py",
    "tests/test_extras.py",
    "tests/test_cli.py",
)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(place)))


def pytest_collectstart(collector: Any) -> None:
    """nbval compares no SVG, as it compares no PNG: what a figure shows is tested in tests/figures."""
    if kinds := getattr(collector, "skip_compare", None):  # a notebook
        collector.skip_compare = (*kinds, "image/svg+xml")
