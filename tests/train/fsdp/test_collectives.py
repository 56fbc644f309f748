"""The predicted collectives: worked out by hand for small modules, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankscope.train import fsdp
from rankscope.train.fsdp.step import StepEvent

from ...small import Tied
from .models import Detached, Passing, Residual, Shared, Siamese, Tokens, Unused, drawn_case


def rows(*sizes: int) -> nn.Sequential:
    """Layers without bias of 3 columns, so that n rows on two ranks take 12 · (n rounded up to even) bytes."""
    return nn.Sequential(*(nn.Linear(3, size, bias=False) for size in sizes))


def gathers(calls: list[fsdp.CollectiveCall]) -> list[int]:
    return [call.num_bytes for call in calls if call.kind == "allgather"]


def reduces(calls: list[fsdp.CollectiveCall]) -> list[int]:
    return [call.num_bytes for call in calls if call.kind == "reduce_scatter"]


def test_dimension_0_is_padded_and_each_group_has_one_buffer() -> None:
    calls = fsdp.collectives(rows(3, 5), num_ranks=2, reshard_after_forward=False)
    assert calls == [("allgather", 12 * (4 + 6)), ("reduce_scatter", 12 * (4 + 6))]
    calls = fsdp.collectives(rows(3, 5), num_ranks=4, reshard_after_forward=False)
    assert calls == [("allgather", 12 * (4 + 8)), ("reduce_scatter", 12 * (4 + 8))]


def test_the_roots_default_is_to_keep_its_parameters() -> None:
    module = rows(2, 4, 6)
    every = fsdp.collectives(module, num_ranks=2, wrap=["0", "1"])
    assert gathers(every) == [72, 24, 48, 72, 48, 24]
    default = fsdp.collectives(module, num_ranks=2, wrap=["0", "1"], reshard_after_forward=None)
    assert gathers(default) == [72, 24, 48, 48, 24]
    never = fsdp.collectives(module, num_ranks=2, wrap=["0", "1"], reshard_after_forward=False)
    assert gathers(never) == [72, 24, 48]
    # the first layer's input needs no gradient, so autograd does not end there, and the root's callback reduces it
    assert reduces(every) == reduces(default) == reduces(never) == [48, 72, 24]


def test_prefetching_changes_the_order_alone() -> None:
    module = rows(2, 4, 6, 8)
    wrap = ["0", "1", "2"]
    orders = []
    for prefetch in range(3):
        calls = fsdp.collectives(module, num_ranks=2, wrap=wrap, prefetch=prefetch, reshard_after_forward=None)
        orders.append(gathers(calls)[:4])
        assert sorted(calls) == sorted(fsdp.collectives(module, num_ranks=2, wrap=wrap, reshard_after_forward=None))
    assert orders == [[96, 24, 48, 72], [96, 24, 48, 72], [96, 24, 48, 72]]
    backward = [fsdp.collectives(module, num_ranks=2, wrap=wrap, prefetch=depth)[4:] for depth in range(3)]
    kinds = [[call.kind for call in calls][:5] for calls in backward]
    assert kinds[0] == ["allgather", "allgather", "allgather", "reduce_scatter", "allgather"]
    assert kinds[2] == ["allgather", "allgather", "allgather", "allgather", "reduce_scatter"]


def test_mixed_precision_changes_bytes() -> None:
    module = rows(4)
    half = fsdp.collectives(module, num_ranks=2, reshard_after_forward=None, param_dtype="bfloat16")
    assert half == [("allgather", 24), ("reduce_scatter", 24)]
    full = fsdp.collectives(
        module, num_ranks=2, reshard_after_forward=None, param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    assert full == [("allgather", 24), ("reduce_scatter", 48)]
    module.register_parameter("codes", nn.Parameter(torch.zeros(8, dtype=torch.int8), requires_grad=False))
    codes = fsdp.collectives(module, num_ranks=2, reshard_after_forward=None, param_dtype="bfloat16")
    assert codes == [("allgather", 24 + 8), ("reduce_scatter", 24)]


def test_frozen_parameters_are_gathered_and_not_reduced() -> None:
    module = rows(2, 4, 6)
    module[1].requires_grad_(False)
    calls = fsdp.collectives(module, num_ranks=2, wrap=["0", "1"], reshard_after_forward=None)
    assert gathers(calls) == [72, 24, 48, 48, 24]
    assert reduces(calls) == [72, 24]
    # a frozen first layer is not needed in backward, but the layer after it gathers it ahead all the same
    first = rows(2, 4, 6)
    first[0].requires_grad_(False)
    calls = fsdp.collectives(first, num_ranks=2, wrap=["0", "1"], reshard_after_forward=None)
    assert gathers(calls) == [72, 24, 48, 48, 24]
    assert reduces(calls) == [72, 48]


def test_hsdp_reduces_each_shard_over_the_replicas() -> None:
    calls = fsdp.collectives(rows(4), num_ranks=4, num_replicas=2, reshard_after_forward=None)
    assert calls == [("allgather", 48), ("reduce_scatter", 48), ("allreduce", 24)]


def test_parameters_shared_within_a_group_count_once() -> None:
    module = Tied()
    (gather, *_) = fsdp.collectives(module, num_ranks=2, wrap=["middle"], reshard_after_forward=None)
    assert gather == ("allgather", 4 * (102 * 33 + 2))


def test_a_star_stands_for_one_part_of_a_name() -> None:
    module = Tokens([Residual(12), Passing(Residual(12))], 12)
    by_star = fsdp.collectives(module, num_ranks=2, wrap=["blocks.*"])
    assert by_star == fsdp.collectives(module, num_ranks=2, wrap=["blocks.0", "blocks.1"])


class OfData(nn.Module):
    """Its code depends on data, so that fx cannot read it, and calls its layers against the order of definition."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 2, bias=False)
        self.first = nn.Linear(3, 3, bias=False)

    def forward(self, batch: Tensor) -> Tensor:
        if batch.sum() > 1e9:
            return batch
        output: Tensor = self.last(self.first(batch))
        return output


def test_a_loss_shows_the_order_of_code_that_depends_on_data() -> None:
    def loss(module: Any, rank: int, number: int) -> Any:
        return module(torch.ones(1, 3)).sum()

    module = OfData()
    observed = fsdp.collectives(module, num_ranks=2, wrap=["last", "first"], loss=loss)
    assert gathers(observed)[:2] == [48, 24]
    assumed = fsdp.collectives(module, num_ranks=2, wrap=["last", "first"])
    assert gathers(assumed)[:2] == [24, 48]


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_what_is_read_from_the_code_is_what_a_run_shows(num_ranks: int) -> None:
    """Also where branches are not used, results are detached, or a module is called twice."""
    for seed in range(12):
        case = drawn_case(500 + seed, num_ranks)
        read = fsdp.collectives(case.module, wrap=case.wrap, **case.settings)
        assert read == fsdp.collectives(case.module, wrap=case.wrap, loss=case.loss, **case.settings), str(case)


def kinds_of(module: nn.Module, wrap: list[str]) -> list[str]:
    return [call.kind for call in fsdp.collectives(module, num_ranks=2, wrap=wrap)]


def test_a_branch_that_leads_to_no_loss_is_gathered_and_not_reduced() -> None:
    for module, without_gradient in ((Unused(4), ["unused", "gate"]), (Detached(4), ["target", "teacher"])):
        for name in without_gradient:  # the only reduce-scatter is the root's
            kinds = kinds_of(module, [name])
            assert kinds.count("reduce_scatter") == 1
            assert kinds.count("allgather") >= 3


def test_a_module_that_is_called_twice_is_gathered_for_each_call() -> None:
    module = Siamese(nn.Linear(4, 4), 4)
    calls = fsdp.collectives(module, num_ranks=2, wrap=["encoder"])
    # root and encoder twice in forward; in backward each once, as the encoder's inputs need no gradient, so that it
    # keeps its parameters until the end
    assert gathers(calls) == [80, 80, 80, 80, 80]
    assert reduces(calls) == [80, 80]


def test_a_caller_without_gradients_gets_the_same_collectives() -> None:
    module = rows(2, 4)
    calls = fsdp.collectives(module, num_ranks=2, wrap=["0"])
    assert reduces(calls)
    with torch.no_grad():
        assert fsdp.collectives(module, num_ranks=2, wrap=["0"]) == calls


def test_a_module_with_two_names_is_one_module() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    module.append(module[0])
    weight, bias = fsdp.module_step(module).parameters
    assert (weight.names, bias.names) == (("0.weight", "2.weight"), ("0.bias", "2.bias"))
    assert kinds_of(module, ["0"]) == kinds_of(Passing(module), ["inner.0"])


@pytest.mark.parametrize("wrap", [["first"], ["second"], ["first", "second"]])
def test_a_module_inside_two_groups_is_refused_unless_it_is_its_own(wrap: list[str]) -> None:
    """torch refuses it with an error about overlapping meshes, because its parameters would be sharded twice."""
    message = "wrap must keep the modules that share 'first.0.weight' and 'second.0.weight' in one group"
    with pytest.raises(ValueError, match=message):
        fsdp.collectives(Shared(4), num_ranks=2, wrap=wrap)
    assert fsdp.collectives(Shared(4), num_ranks=2, wrap=[*wrap, "first.0"])


def test_a_module_on_the_meta_device_shows_its_activations() -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss(model: nn.Module, rank: int, number: int) -> Tensor:
        device = next(model.parameters()).device
        return model(torch.ones(4, 8, device=device)).sum()

    steps = [fsdp.observed_step(made, loss) for made in (module, copy.deepcopy(module).to("meta"))]
    kept_bytes = [sum(event.activation_bytes for event in step.events if event.kind == "forward") for step in steps]
    assert kept_bytes[0] == kept_bytes[1] > 0


def test_layers_by_hand_are_as_the_module() -> None:
    layers = [
        fsdp.ShardedLayer(str(place), [fsdp.ShardedParameter(f"{place}.weight", (size, 3))])
        for place, size in enumerate((2, 4, 6))
    ]
    step = fsdp.ModuleStep.of_layers(layers)
    assert fsdp.collectives(step, num_ranks=2, wrap=["0", "1"]) == fsdp.collectives(
        rows(2, 4, 6), num_ranks=2, wrap=["0", "1"]
    )


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)

    def forward(self, batch: Tensor) -> Tensor:
        output: Tensor = self.encoder(batch)
        return output


def test_modules_inside_those_of_torch_are_found() -> None:
    calls = fsdp.collectives(Outer(), num_ranks=2, wrap=["encoder.layers.*"], reshard_after_forward=None)
    assert len(gathers(calls)) == 4  # torch's layers have no parameters outside of them
    assert len(reduces(calls)) == 2


def inside_itself() -> nn.Module:
    module = nn.Sequential(nn.Linear(2, 2), nn.Sequential())
    inner = module[1]
    assert isinstance(inner, nn.Sequential)
    inner.append(module)
    return module


def doubled(times: int) -> nn.Module:
    """A layer with 2 ** times names, because each module around it has the one inside twice."""
    module: nn.Module = nn.Linear(2, 2)
    for _ in range(times):
        module = nn.Sequential(module, module)
    return module


SIZES = {"num_ranks": 2}
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: fsdp.collectives(nn.ReLU(), **SIZES), "module must have parameters to shard, got a ReLU without any"),
    (lambda: fsdp.collectives([1], **SIZES), r"module must be a Module, got \[1\]"),  # type: ignore[arg-type]
    (
        lambda: fsdp.collectives(inside_itself(), **SIZES),
        "module must not contain itself, got a Sequential that is inside itself",
    ),
    (
        lambda: fsdp.collectives(doubled(40), **SIZES),
        "module must have at most 1000000 names of modules, got 2199023255551: a module inside a shared one has",
    ),
    (lambda: fsdp.collectives(rows(2), num_ranks=1), "num_ranks must be a whole number from 2 to .*, got 1"),
    (lambda: fsdp.collectives(rows(2), num_ranks=2, wrap="0"), "wrap must be a list of names of submodules, got '0'"),
    (
        lambda: fsdp.collectives(rows(2), num_ranks=2, wrap=["fc"]),
        "wrap must have names of submodules, such as '0', got 'fc'",
    ),
    (lambda: fsdp.collectives(rows(2), num_ranks=2, wrap=[""]), "wrap must have names of submodules, .* got ''"),
    (
        lambda: fsdp.collectives(Tokens([Residual(12)], 12), num_ranks=2, wrap=["blocks"]),
        "wrap must have modules with a forward method, got 'blocks'",
    ),
    (
        lambda: fsdp.collectives(Tied(), num_ranks=2, wrap=["embed"]),
        "wrap must keep the modules that share 'embed.weight' and 'head.weight' in one group",
    ),
    (
        lambda: fsdp.collectives(rows(2), num_ranks=6, num_replicas=4),
        "num_replicas must divide the 6 ranks into meshes of equal size, got 4",
    ),
    (
        lambda: fsdp.collectives(rows(2), num_ranks=4, num_replicas=4),
        "num_replicas must leave at least 2 shards of 4 ranks, got 1",
    ),
    (
        lambda: fsdp.collectives(rows(2), num_ranks=4, reshard_after_forward=3),
        "reshard_after_forward must divide the 4 shards, got 3",
    ),
    (
        lambda: fsdp.collectives(rows(2), num_ranks=4, reshard_after_forward="yes"),
        "reshard_after_forward must be True, False, None or a number of ranks from 2 up, got 'yes'",
    ),
    (lambda: fsdp.collectives(rows(2), num_ranks=2, prefetch=-1), "prefetch must be a whole number from 0 to .*, got"),
    (lambda: fsdp.collectives(rows(2), num_ranks=2, param_dtype="int8"), "param_dtype must be one of .*, got 'int8'"),
    (lambda: fsdp.collectives(rows(2), num_ranks=2, loss=3), "loss must be a function of .*, got 3"),  # type: ignore[arg-type]
    (lambda: fsdp.observed_step(rows(2), lambda *_: None), "loss must return a tensor of one element .*, got NoneType"),
    (
        lambda: fsdp.observed_step(rows(2), lambda model, *_: model(torch.ones(4, 3))),
        r"loss must return a tensor of one element .*, got one of shape \(4, 2\)",
    ),
    (lambda: fsdp.observed_step(rows(2), lambda *_: torch.ones(())), "loss must return .*, got one that requires none"),
    (
        lambda: fsdp.collectives(nn.ParameterList([nn.Parameter(torch.ones(()))]), num_ranks=2),
        "0 must have at least one dimension for fully_shard, got a scalar",
    ),
    (lambda: fsdp.ShardedLayer("0", [1.5]).specs(), "parameters of '0' must be a whole number from 0 to .*, got 1.5"),
    (lambda: fsdp.ModuleStep.of_layers([fsdp.ShardedLayer("0", [1])] * 2), "layers must have names that differ"),
    (lambda: fsdp.ModuleStep.of_layers([fsdp.ShardedLayer("0", [])]), "a step must have parameters to shard"),
    (
        lambda: fsdp.ModuleStep((fsdp.ShardedParameter("w", (1,)),), ("",), (StepEvent("gradient", "x"),)),
        "events must be of the step's parameters, got a gradient of 'x'",
    ),
    (
        lambda: fsdp.ModuleStep((fsdp.ShardedParameter("w", (1,)),), ("",), (StepEvent("enter", "x"),)),
        "events must be of the step's modules, got enter of 'x'",
    ),
    (
        lambda: fsdp.ModuleStep((fsdp.ShardedParameter("w", (1,)),), ("",), (StepEvent("begin", "x"),)),
        "the kind of an event in events must be one of .*, got 'begin'",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_wrong_input(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
