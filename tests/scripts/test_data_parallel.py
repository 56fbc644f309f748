"""A step of DataParallel on the CPU: gradients of the whole batch, and the copies that the model predicts."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from rankscope.train.data_parallel import StepSizes
from rankscope.train.data_parallel.model import messages_of
from tests.small import CROSS, batch, mlp

from .running import lines_of, text_of

PARAMETERS = "nn.utils.parameters_to_vector(module.parameters())"
PRINTED = re.compile(r"(.*?) +(\d) -> (\d) +([\d,]+) bytes")
Copy = tuple[str, int, int, int]  # what, from which device, to which, bytes


def script(*changes: tuple[str, str]) -> dict[str, Any]:
    """The names that the script defines, without running it as a program."""
    names: dict[str, Any] = {"__name__": "data_parallel"}
    exec(compile(text_of("data_parallel.py", *changes), "data_parallel.py", "exec"), names)
    return names


def copies_of(names: dict[str, Any], module: nn.Module, size: int, num_devices: int) -> list[Copy]:
    """The copies of one step. AssertionError if its gradients are not those of the whole batch."""
    inputs, targets = batch(size)
    names["messages"].clear()
    gradients = names["gradients"](names["CpuDataParallel"](module, num_devices), inputs, targets)
    whole_batch = torch.autograd.grad(CROSS(module(inputs), targets), list(module.parameters()))
    torch.testing.assert_close(gradients, whole_batch)
    return sorted(names["messages"])


def predicted(module: nn.Module, size: int, num_devices: int) -> list[Copy]:
    parameter_bytes = sum(parameter.nbytes for parameter in module.parameters())
    sizes = StepSizes(size, input_bytes=6 * 8, output_bytes=4 * 8, parameter_bytes=parameter_bytes)
    return sorted(tuple(message)[1:] for message in messages_of(sizes, num_devices))


@pytest.mark.parametrize("num_devices", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("size", [9, 16])
def test_gradients_are_those_of_the_whole_batch_and_copies_those_of_the_model(size: int, num_devices: int) -> None:
    assert copies_of(script(), mlp(), size, num_devices) == predicted(mlp(), size, num_devices)


@pytest.mark.slow
def test_as_a_program_it_prints_the_copies_in_the_order_of_the_model() -> None:
    *rows, last = lines_of(text_of("data_parallel.py"), "4")
    matches = [row for row in map(PRINTED.fullmatch, rows) if row]
    printed = [(row[1], int(row[2]), int(row[3]), int(row[4].replace(",", ""))) for row in matches]
    sizes = StepSizes(24, input_bytes=64 * 8, output_bytes=10 * 8, parameter_bytes=(65 * 128 + 129 * 10) * 8)
    assert printed == [tuple(message)[1:] for message in messages_of(sizes, 4)]
    assert last == "the gradients are those of the whole batch on one device"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("return gradient.clone(), None", "return 0 * gradient, None"),
        ('Send.apply(output, "outputs", src, device)', "output"),
        ('Send.apply(nn.utils.parameters_to_vector(module.parameters()), "parameters", 0, device)', PARAMETERS),
        ("inputs[0].chunk(len(devices))", "inputs[0].tensor_split(len(devices))"),
    ],
    ids=["gradients lost", "outputs not sent", "parameters not sent", "other chunks"],
)
def test_a_broken_copy_is_refused(right: str, wrong: str) -> None:
    with pytest.raises(AssertionError):
        assert copies_of(script((right, wrong)), mlp(), 9, 4) == predicted(mlp(), 9, 4)


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_on_gpus_torchs_own_functions_give_the_same_gradients() -> None:
    assert lines_of(text_of("data_parallel.py"), "4")[-1] == "and so are those of nn.DataParallel on the GPUs"
