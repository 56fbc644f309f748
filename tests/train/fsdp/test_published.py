"""llm-foundry's published FULL_SHARD runs on 8 to 512 GPUs of 80 GB: the model says that they fit."""

from __future__ import annotations

from tests.benchmarks.fsdp_published import GPU_BYTES, published_runs


def test_the_dimensions_are_those_of_the_published_numbers_of_parameters() -> None:
    for run in published_runs():
        num_elements = sum(parameter.num_elements for parameter in run.step().parameters)
        assert abs(num_elements / run.num_parameters - 1) < 1e-3


def test_published_runs_fit() -> None:
    for run in published_runs():
        left_bytes = GPU_BYTES - run.predicted().memory.peak_bytes
        assert left_bytes > 0, run
        assert run.activation_bytes < left_bytes, (run, left_bytes, run.activation_bytes)


def test_a_run_that_cannot_fit_is_found() -> None:
    largest = max(published_runs(), key=lambda run: run.num_parameters)
    on_eight = largest._replace(num_gpus=8)
    assert on_eight.predicted().memory.peak_bytes > GPU_BYTES
