"""What `fully_shard` does in one forward and backward: its groups, and its actions in the order of issue.

This follows torch/distributed/fsdp/_fully_shard (as of torch 2.13), function by function: `Replay` has the
state of ``FSDPState`` (_fsdp_state.py) and ``FSDPParamGroup`` (_fsdp_param_group.py), without any tensor.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from ...common.checks import several, whole
from ...common.frozen import checked, frozen, optional
from ...ranks.host import MOST_RANKS
from .step import ModuleStep, ShardedParameter, StepEvent

MOST_SHARDS = 1_000_000
MOST_PREFETCH = 1000
ITEMSIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
assert MOST_SHARDS >= MOST_RANKS


# ---- settings


def dtype_name(name: str, value: Any) -> str:
    """Return the name of a dtype; torch's own dtypes are accepted."""
    word = str(value).removeprefix("torch.")
    if word not in ITEMSIZES:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, ITEMSIZES))} or None, got {value!r}")
    return word


def _reshard(name: str, value: Any) -> bool | int | None:
    """Return what `fully_shard` takes as ``reshard_after_forward``; the number of ranks to reshard to is from 2 up."""
    if value is None or isinstance(value, bool):
        return value
    try:
        return whole(name, value, 2, MOST_SHARDS)
    except ValueError:
        raise ValueError(f"{name} must be True, False, None or a number of ranks from 2 up, got {value!r}") from None


@frozen
class ShardSettings:
    """The settings of `fully_shard` that decide what is communicated.

    `reshard_after_forward` is passed to every call, the root's included. None is torch's default, which keeps the root
    and reshards the others (``FSDPState._lazy_init``); a number reshards to groups of so many ranks. `prefetch` is how
    many groups each one gathers ahead by ``set_modules_to_forward_prefetch`` and ``set_modules_to_backward_prefetch``,
    in the order of `wrap`; 0 is torch's default, in which a backward gathers the group of the one before it.
    `num_replicas` above 1 is HSDP: each shard exists so many times. `param_dtype` and `reduce_dtype` are those of
    MixedPrecisionPolicy.

    Raises ValueError for one rank, for a mesh that does not divide, and for numbers out of range.

    >>> ShardSettings(num_ranks=6, num_replicas=4)
    Traceback (most recent call last):
    ValueError: num_replicas must divide the 6 ranks into meshes of equal size, got 4
    >>> ShardSettings(num_ranks=1)
    Traceback (most recent call last):
    ValueError: num_ranks must be a whole number from 2 to 1000000, got 1
    """

    num_ranks: int = checked(whole, 2, MOST_SHARDS)
    num_replicas: int = checked(whole, 1, MOST_SHARDS, default=1)
    reshard_after_forward: bool | int | None = checked(_reshard, default=True)
    prefetch: int = checked(whole, 0, MOST_PREFETCH, default=0)
    param_dtype: str | None = checked(optional, dtype_name, default=None)
    reduce_dtype: str | None = checked(optional, dtype_name, default=None)

    def __attrs_post_init__(self) -> None:
        if self.num_ranks % self.num_replicas:
            raise ValueError(
                f"num_replicas must divide the {self.num_ranks} ranks into meshes of equal size, "
                f"got {self.num_replicas}"
            )
        if self.num_shards < 2:
            raise ValueError(f"num_replicas must leave at least 2 shards of {self.num_ranks} ranks, got 1")
        size = self.reshard_after_forward
        if isinstance(size, int) and not isinstance(size, bool) and self.num_shards % size:
            raise ValueError(f"reshard_after_forward must divide the {self.num_shards} shards, got {size}")

    @classmethod
    def of(cls, num_ranks: int, settings: Mapping[str, Any]) -> ShardSettings:
        """Return the settings that a caller passed by name. Raises TypeError if a name is not that of a setting."""
        names = [name for name in inspect.signature(cls).parameters if name != "num_ranks"]
        for name in settings:
            if name not in names:
                raise TypeError(f"settings must be among {', '.join(names)}, got {name!r}")
        return cls(num_ranks, **settings)

    @property
    def num_shards(self) -> int:
        """The ranks among which each parameter is divided."""
        return self.num_ranks // self.num_replicas

    @property
    def reshard_size(self) -> int | None:
        """The number of ranks to which forward reshards, None for all (``_get_post_forward_mesh_info``)."""
        size = self.reshard_after_forward
        if size is None or isinstance(size, bool) or size == self.num_shards:
            return None
        return size

    def gathered_itemsize(self, parameter: ShardedParameter) -> int:
        """Return the bytes per element in an all-gather (``FSDPParam.init_dtype_attrs``)."""
        if self.param_dtype is None or not parameter.floating:
            return parameter.itemsize
        return ITEMSIZES[self.param_dtype]

    def reduced_itemsize(self, parameter: ShardedParameter) -> int:
        """Return the bytes per element in a reduce-scatter (``foreach_reduce``): else those of the gradient."""
        if self.reduce_dtype is None:
            return self.gathered_itemsize(parameter)
        return ITEMSIZES[self.reduce_dtype]

    def reshards(self, is_root: bool) -> bool:
        """Return whether a group's parameters are freed after its forward."""
        if self.reshard_after_forward is None:
            return not is_root
        return self.reshard_after_forward is not False


# ---- groups


@frozen
class ShardedGroup:
    """The parameters that one call of `fully_shard` communicates together, and their bytes on one rank.

    `gathered_bytes` are those of the whole gathered, padded buffer. `name` is the module's, "" for the root.
    """

    name: str
    parameters: tuple[ShardedParameter, ...]
    settings: ShardSettings

    @property
    def is_root(self) -> bool:
        return self.name == ""

    @property
    def label(self) -> str:
        return self.name or "root"

    @property
    def stored_bytes(self) -> int:
        """What the rank keeps all the time: its shard, in the parameters' own dtype."""
        num_shards = self.settings.num_shards
        return sum(p.shard_elements(num_shards) * p.itemsize for p in self.parameters)

    @property
    def gathered_bytes(self) -> int:
        """The bytes of the all-gather's output: one buffer for all parameters (``foreach_all_gather``)."""
        settings = self.settings
        num_bytes = 0
        for parameter in self.parameters:
            num_bytes += parameter.padded_elements(settings.num_shards) * settings.gathered_itemsize(parameter)
        return num_bytes

    @property
    def is_cast(self) -> bool:
        """Whether parameters are cast into a buffer of their own before the all-gather."""
        return any(self.settings.gathered_itemsize(p) != p.itemsize for p in self.parameters)

    def reduced_bytes(self, ready: Iterable[str]) -> int:
        """Return the bytes of the reduce-scatter's input if the gradients of these parameters are there."""
        settings = self.settings
        names = set(ready)
        num_bytes = 0
        for parameter in self.parameters:
            if parameter.name in names:
                num_bytes += parameter.padded_elements(settings.num_shards) * settings.reduced_itemsize(parameter)
        return num_bytes

    def shard_gradient_bytes(self, ready: Iterable[str]) -> int:
        """Return the bytes of the rank's gradients after the reduce-scatter, in the parameters' own dtype."""
        names = set(ready)
        num_shards = self.settings.num_shards
        return sum(p.shard_elements(num_shards) * p.itemsize for p in self.parameters if p.name in names)


def matching(step: ModuleStep, wrap: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the modules to wrap, in the order of `wrap`; "*" in it stands for one part of a name.

    Raises ValueError for an entry that matches no module, or only modules that `fully_shard` refuses.
    """
    names: dict[str, None] = {}
    for pattern in several("wrap", wrap, "names of submodules"):
        matches = [name for name in step.modules if name and _matches(name, pattern)]
        if not matches:
            some = ", ".join(map(repr, [name for name in step.modules if name][:8]))
            raise ValueError(f"wrap must have names of submodules, such as {some or 'none here'}, got {pattern!r}")
        for name in matches:
            if name in step.containers:
                raise ValueError(f"wrap must have modules with a forward method, got {name!r}, a mere container")
        names |= dict.fromkeys(matches)
    return tuple(names)


def _matches(name: str, pattern: Any) -> bool:
    if not isinstance(pattern, str):
        return False
    parts = name.split(".")
    pattern_parts = pattern.split(".")
    if len(parts) != len(pattern_parts):
        return False
    return all(fnmatchcase(part, wanted) for part, wanted in zip(parts, pattern_parts, strict=True))


def groups_of(step: ModuleStep, wrapped: Sequence[str], settings: ShardSettings) -> tuple[ShardedGroup, ...]:
    """Return the root's group and that of each wrapped module, also those without parameters.

    Each parameter belongs to the innermost wrapped module around it (``_get_managed_states`` in _fsdp_init.py). Raises
    ValueError for a parameter that modules of different groups share, as torch does in
    ``FSDPState._validate_no_duplicate_params``, and for a group whose trainable parameters have several dtypes or no
    elements, which torch refuses at the first step (``FSDPParamGroup._init_mp_dtypes``).
    """
    members: dict[str, list[ShardedParameter]] = {"": []}
    for name in wrapped:
        members[name] = []
    for parameter in step.parameters:
        owners = [_owner(name, wrapped) for name in parameter.names]
        if len(set(owners)) > 1:
            raise ValueError(
                f"wrap must keep the modules that share {parameter.names[0]!r} and {parameter.names[-1]!r} in one group"
            )
        members[owners[0]].append(parameter)
    for name, parameters in members.items():
        _check_trainable(name, parameters)
    return tuple([ShardedGroup(name, tuple(parameters), settings) for name, parameters in members.items()])


def _check_trainable(group: str, parameters: Iterable[ShardedParameter]) -> None:
    """Refuse trainable parameters that one reduce-scatter cannot take, as `fully_shard` does at the first step."""
    trainable = [parameter for parameter in parameters if parameter.trainable]
    where = f"in the group of {group!r}" if group else "in the root's group"
    # A ShardedParameter has no dtype, but other bytes per element are another dtype.
    first_of_itemsize: dict[int, ShardedParameter] = {}
    for parameter in trainable:
        first_of_itemsize.setdefault(parameter.itemsize, parameter)
    if len(first_of_itemsize) > 1:
        examples = []
        for itemsize, parameter in sorted(first_of_itemsize.items()):
            examples.append(f"{parameter.name!r} with {itemsize} bytes per element")
        raise ValueError(
            f"trainable parameters {where} must have one dtype, got {' and '.join(examples)}: "
            "convert them, or wrap their modules separately"
        )
    for parameter in trainable:
        if not parameter.num_elements:
            raise ValueError(f"trainable parameters {where} must have elements, got {parameter.name!r} without any")


def _owner(name: str, wrapped: Sequence[str]) -> str:
    """The innermost wrapped module that contains a parameter, "" for the root."""
    around = [module for module in wrapped if name.startswith(f"{module}.")]
    return max(around, key=len, default="")


# ---- actions


class FSDPAction(NamedTuple):
    """One action of FSDP or of the module, in the order in which the process issues them.

    `kind` is "gather" (all-gather with its copy-in), "copy_out" (wait for it, and copy to the parameters), "reshard"
    (free gathered parameters), "reduce_wait" (wait for the previous reduce-scatter, and free its input), "reduce"
    (reduce-scatter with its copy-in, and the all-reduce of HSDP), "drop" (free a gathered buffer that nothing used),
    "hooks" (FSDP's own code around a group's forward or backward), "flush" (the outermost forward has ended), "finish"
    (backward has ended), or one of the events "forward", "backward" and "gradient". `group` is the place of the group,
    or the innermost group that computes. `num_bytes` are those of the gathered or reduced buffer. `event` is the
    module's own, `parameters` are those of a reduce-scatter.
    """

    kind: str
    group: int
    num_bytes: int = 0
    is_forward: bool = False
    event: StepEvent | None = None
    parameters: tuple[str, ...] = ()


class CollectiveCall(NamedTuple):
    """One collective: its kind, and the bytes of the whole gathered, padded buffer.

    For an all-reduce they are those of the rank's shard, which is reduced over the replicas.
    """

    kind: str
    num_bytes: int


class _GroupState:
    """The state of one ``FSDPParamGroup``."""

    def __init__(self, group: ShardedGroup) -> None:
        self.group = group
        self.training = "idle"
        self.module_training = "idle"  # of its FSDPState, which modules without parameters have, too
        self.is_unsharded = False
        self.is_pending = False  # an all-gather was issued, and not waited for
        self.post_forward_indices: list[int] = []
        self.ready: list[str] = []  # parameters whose unsharded gradients are there
        self.forward_prefetch: list[int] = []
        self.backward_prefetch: list[int] = []

    @property
    def has_parameters(self) -> bool:
        return bool(self.group.parameters)


class Replay:
    """Issues the actions of a step. `groups` begin with the root's; `actions` are complete after `run`."""

    def __init__(self, step: ModuleStep, wrapped: Sequence[str], settings: ShardSettings) -> None:
        self.groups = groups_of(step, wrapped, settings)
        self.actions: list[FSDPAction] = []
        self._step = step
        self._settings = settings
        self._states = [_GroupState(group) for group in self.groups]
        self._place = {group.name: place for place, group in enumerate(self.groups)}
        self._owner_of: dict[str, int] = {}
        for place, group in enumerate(self.groups):
            for parameter in group.parameters:
                self._owner_of[parameter.name] = place
        self._post_forward_order: list[int] = []
        # Whether the input of a reduce-scatter is still allocated: it is freed when a later group has waited for it.
        self._has_reduce_input = False
        self._open = [0]  # the groups whose modules are being called
        self._forward_root: int | None = None  # the outermost of them: ``FSDPStateContext.iter_forward_root``
        self._is_backward = False
        self._set_prefetch(wrapped)

    def _set_prefetch(self, wrapped: Sequence[str]) -> None:
        depth = self._settings.prefetch
        places = [self._place[name] for name in wrapped]
        for number, place in enumerate(places):
            self._states[place].forward_prefetch = places[number + 1 : number + 1 + depth]
            before = places[max(number - depth, 0) : number]
            self._states[place].backward_prefetch = before[::-1]

    def run(self) -> Replay:
        """Go through the events of the step, and end the backward."""
        handlers = {
            "enter": self._enter,
            "leave": self._leave,
            "pre_backward": self._pre_backward,
            "post_backward": self._post_backward_of,
        }
        for event in self._step.events:
            if event.kind in ("pre_backward", "backward", "gradient", "post_backward"):
                self._is_backward = True
            if event.kind in handlers:
                place = self._place.get(event.name)
                if place is not None:
                    handlers[event.kind](self._states[place], place)
            elif event.kind == "gradient":
                place = self._owner_of[event.name]
                self._states[place].ready.append(event.name)
                self._issue("gradient", place, event=event)
            else:
                place = self._open[-1] if event.kind == "forward" else self._place[self._around(event.name)]
                self._issue(event.kind, place, event=event)
        self._finish()
        return self

    def _around(self, name: str) -> str:
        """The innermost wrapped module that is or contains a module."""
        while name and name not in self._place:
            name = name.rpartition(".")[0]
        return name

    def _issue(self, kind: str, place: int, num_bytes: int = 0, **details: Any) -> None:
        self.actions.append(FSDPAction(kind, place, num_bytes, **details))

    # ---- parameters

    def _unshard(self, place: int) -> None:
        """``FSDPParamGroup.unshard``."""
        state = self._states[place]
        if state.is_pending or state.is_unsharded or not state.has_parameters:
            return
        state.is_pending = True
        self._issue("gather", place, state.group.gathered_bytes)

    def _wait(self, place: int, is_forward: bool) -> None:
        """``FSDPParamGroup.wait_for_unshard``."""
        state = self._states[place]
        if not state.is_pending:
            return
        state.is_pending = False
        state.is_unsharded = True
        self._issue("copy_out", place, state.group.gathered_bytes, is_forward=is_forward)

    def _reshard(self, place: int, is_forward: bool = False) -> None:
        """``FSDPParamGroup.reshard``."""
        state = self._states[place]
        if state.is_unsharded:
            state.is_unsharded = False
            self._issue("reshard", place, state.group.gathered_bytes, is_forward=is_forward)

    # ---- forward

    def _enter(self, state: _GroupState, place: int) -> None:
        """``FSDPState._pre_forward``."""
        if state.module_training == "pre_backward":  # activation checkpointing computes the forward again
            self._unshard(place)
            self._wait(place, is_forward=False)
            return
        state.module_training = "forward"
        self._open.append(place)
        if self._forward_root is None:
            self._forward_root = place
        self._issue("hooks", place, is_forward=True)
        if state.has_parameters:
            state.training = "forward"
            self._unshard(place)
            self._wait(place, is_forward=True)
        for target in state.forward_prefetch:
            self._unshard(target)

    def _leave(self, state: _GroupState, place: int) -> None:
        """``FSDPState._post_forward`` and ``FSDPParamGroup.post_forward``.

        A forward that activation checkpointing repeats within backward neither reshards nor counts as an order.
        """
        if state.module_training == "pre_backward":
            return
        state.module_training = "idle"
        self._open.pop()
        if state.has_parameters:
            if not self._is_backward:
                if self._settings.reshards(state.group.is_root):
                    self._reshard(place, is_forward=True)
                state.post_forward_indices.append(len(self._post_forward_order))
                self._post_forward_order.append(place)
            state.training = "idle"
        if self._forward_root == place:
            self._forward_root = None
            self._issue("flush", place)

    # ---- backward

    def _pre_backward(self, state: _GroupState, place: int) -> None:
        """``FSDPState._pre_backward`` and ``FSDPParamGroup.pre_backward``."""
        if state.module_training != "pre_backward":
            self._issue("hooks", place)
        state.module_training = "pre_backward"
        if state.has_parameters and state.training != "pre_backward":
            state.training = "pre_backward"
            self._unshard(place)
            self._wait(place, is_forward=False)
            if not state.backward_prefetch:
                self._default_prefetch(state)
        for target in state.backward_prefetch:
            self._unshard(target)

    def _default_prefetch(self, state: _GroupState) -> None:
        """``FSDPParamGroup._backward_prefetch``: the group whose forward ended before this one's."""
        if not state.post_forward_indices:
            return
        index = state.post_forward_indices.pop()
        if index > 0:
            self._unshard(self._post_forward_order[index - 1])

    def _post_backward_of(self, state: _GroupState, place: int) -> None:
        if state.has_parameters:
            self._post_backward(state, place)

    def _post_backward(self, state: _GroupState, place: int) -> None:
        """``FSDPParamGroup.post_backward``: reshard the group, and reduce those of its gradients that are ready.

        First, even if the group has no gradients, it waits for the reduce-scatter of an earlier group, whose input is
        then freed.
        """
        state.training = "post_backward"
        names = [parameter.name for parameter in state.group.parameters if parameter.name in state.ready]
        self._reshard(place)
        if self._has_reduce_input:
            self._has_reduce_input = False
            self._issue("reduce_wait", place)
        if not names:
            return
        state.ready.clear()
        self._has_reduce_input = True
        self._issue("reduce", place, state.group.reduced_bytes(names), parameters=tuple(names))

    def _finish(self) -> None:
        """``FSDPState._root_post_backward_final_callback``: states in the order of ``named_modules()``."""
        order = [self._place[name] for name in self._step.modules if name in self._place]
        for place in order:
            state = self._states[place]
            if not state.has_parameters:
                continue
            if state.training != "post_backward":
                self._post_backward(state, place)
            state.training = "idle"
            if state.is_pending:  # gathered ahead, and never needed: ``FSDPParamGroup.finalize_backward``
                state.is_pending = False
                self._issue("drop", place, state.group.gathered_bytes)
        self._has_reduce_input = False
        self._issue("finish", 0)


def collective_calls(replay: Replay, settings: ShardSettings) -> Iterator[CollectiveCall]:
    """Yield the collectives of a replayed step, in the order of issue."""
    for action in replay.actions:
        if action.kind == "gather":
            yield CollectiveCall("allgather", action.num_bytes)
        elif action.kind == "reduce":
            yield CollectiveCall("reduce_scatter", action.num_bytes)
            if settings.num_replicas > 1:
                yield CollectiveCall("allreduce", action.num_bytes // settings.num_shards)
