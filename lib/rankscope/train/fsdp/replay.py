"""What `fully_shard` does in one forward and backward: its groups, and its actions in the order of issue.

This follows torch/distributed/fsdp/_fully_shard (as of torch 2.13), function by function: `Replay` has the
state of ``FSDPState`` (_fsdp_state.py) and ``FSDPParamGroup`` (_fsdp_param_group.py), without any tensor.
"""

from __future__ import annotations

import inspect
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import msgspec

from ...common.checks import check_field, optional, several, whole
from ...ranks.host import MOST_RANKS
from .step import ModuleStep, ShardedParameter, StepEvent

MOST_SHARDS = 1_000_000
MOST_PREFETCH = 1000
_MOST_EXAMPLES = 8  # names of submodules in an error message
ITEMSIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
assert MOST_SHARDS >= MOST_RANKS  # so that whatever runs on real ranks can be predicted
NO_GROUP = -1  # the item of a span of the compute lane that belongs to no group: a wait, or the optimizer


# ---- settings


def dtype_name(name: str, value: Any) -> str:
    """Return the name of a dtype; torch's own dtypes are accepted."""
    word = str(value).removeprefix("torch.")
    if word not in ITEMSIZES:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, ITEMSIZES))} or None, got {value!r}")
    return word


def _reshard(name: str, value: Any) -> bool | int | None:
    """Return what `fully_shard` accepts as ``reshard_after_forward``: a bool, None, or a number of ranks from 2 up."""
    if value is None or isinstance(value, bool):
        return value
    try:
        return whole(name, value, 2, MOST_SHARDS)
    except ValueError:
        raise ValueError(f"{name} must be True, False, None or a number of ranks from 2 up, got {value!r}") from None


class ShardSettings(msgspec.Struct, frozen=True):
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

    num_ranks: int
    num_replicas: int = 1
    reshard_after_forward: bool | int | None = True
    prefetch: int = 0
    param_dtype: str | None = None
    reduce_dtype: str | None = None

    def __post_init__(self) -> None:
        check_field(self, "num_ranks", whole, 2, MOST_SHARDS)
        check_field(self, "num_replicas", whole, 1, MOST_SHARDS)
        check_field(self, "reshard_after_forward", _reshard)
        check_field(self, "prefetch", whole, 0, MOST_PREFETCH)
        check_field(self, "param_dtype", optional, dtype_name)
        check_field(self, "reduce_dtype", optional, dtype_name)
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
        """Return the bytes per element in a reduce-scatter: without `reduce_dtype` those of the gradient.

        The gradient has the dtype in which the parameter was gathered (``foreach_reduce``).
        """
        if self.reduce_dtype is None:
            return self.gathered_itemsize(parameter)
        return ITEMSIZES[self.reduce_dtype]

    def reshards(self, is_root: bool) -> bool:
        """Return whether a group's parameters are freed after its forward."""
        if self.reshard_after_forward is None:
            return not is_root
        return self.reshard_after_forward is not False


# ---- groups


class ShardedGroup(msgspec.Struct, frozen=True):
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

    Raises ValueError for an entry that matches no module, or one that `fully_shard` refuses.
    """
    submodules = [name for name in step.modules if name]  # without the root, which is always wrapped
    matching_names: list[str] = []
    for pattern in several("wrap", wrap, "names of submodules"):
        matches = [name for name in submodules if _matches(name, pattern)]
        if not matches:
            examples = ", ".join(map(repr, submodules[:_MOST_EXAMPLES])) or "none here"
            raise ValueError(f"wrap must have names of submodules, such as {examples}, got {pattern!r}")
        for name in matches:
            if name in step.containers:
                raise ValueError(f"wrap must have modules with a forward method, got {name!r}, a mere container")
        matching_names += matches
    return tuple(dict.fromkeys(matching_names))  # each once, although several patterns may match it


def _matches(name: str, pattern: Any) -> bool:
    if not isinstance(pattern, str):
        return False
    parts = name.split(".")
    pattern_parts = pattern.split(".")
    if len(parts) != len(pattern_parts):
        return False
    return all(fnmatchcase(part, pattern_part) for part, pattern_part in zip(parts, pattern_parts, strict=True))


def groups_of(step: ModuleStep, wrapped: Sequence[str], settings: ShardSettings) -> tuple[ShardedGroup, ...]:
    """Return the root's group and that of each wrapped module, also those without parameters.

    Each parameter belongs to the innermost wrapped module around it (``_get_managed_states`` in _fsdp_init.py). Raises
    ValueError for a parameter that modules of different groups share, as torch does in
    ``FSDPState._validate_no_duplicate_params``, or that two of them would have because a module inside both is
    registered twice, which `fully_shard` refuses; and for a group whose trainable parameters have several dtypes or no
    elements, which torch refuses at the first step (``FSDPParamGroup._init_mp_dtypes``).
    """
    members: dict[str, list[ShardedParameter]] = {"": []}
    for name in wrapped:
        members[name] = []
    for parameter in step.parameters:
        owners = [_owner(name, members, step.further_names) for name in parameter.names]
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


def _owner(parameter_name: str, wrapped: Container[str], further_names: Mapping[str, str]) -> str:
    """The innermost wrapped module on the path to a parameter, "" for the root; see `ModuleStep.further_names`."""
    path, _, _ = parameter_name.rpartition(".")
    while path:
        module = further_names.get(path, path)
        if module in wrapped:
            return module
        path, _, _ = path.rpartition(".")  # the module around it
    return ""


# ---- actions


class FSDPAction(NamedTuple):
    """One action of FSDP or of the module, in the order in which the process issues them.

    `kind` is "gather" (all-gather with its copy-in), "copy_out" (wait for it, and copy to the parameters), "reshard"
    (free gathered parameters), "reduce_wait" (wait for the previous reduce-scatter, and free its input), "reduce"
    (reduce-scatter with its copy-in, and the all-reduce of HSDP), "drop" (free a gathered buffer that nothing used),
    "hooks" (FSDP's own code around a group's forward or backward), "flush" (the outermost forward has ended: free the
    buffer that its last copy-out kept), "finish" (backward has ended), or one of the events "forward", "backward" and
    "gradient". `group` is the index of the group, or of the innermost group that computes. `num_bytes` are those of the
    gathered or reduced buffer. `event` is the module's own, `parameters` are those of a reduce-scatter. `is_forward`
    says for "copy_out", "reshard" and "hooks" whether they belong to forward; the forward that activation checkpointing
    repeats belongs to backward.
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
    """The state of one ``FSDPParamGroup``, and of the ``FSDPState`` of its module.

    Both have a ``_training_state`` in torch: "idle", "forward", "pre_backward" or "post_backward". They may differ,
    because only a group that has parameters changes its own.
    """

    def __init__(self, group: ShardedGroup) -> None:
        self.group = group
        self.training = "idle"  # of the FSDPParamGroup
        self.module_training = "idle"  # of the FSDPState
        self.is_unsharded = False
        self.is_pending = False  # an all-gather was issued, and not waited for
        # The positions of this group in the order in which groups ended their forward, one for each of its calls.
        self.post_forward_indices: list[int] = []
        self.ready: list[str] = []  # parameters whose unsharded gradients are there
        self.forward_prefetch: list[int] = []  # the groups that it gathers ahead, by index
        self.backward_prefetch: list[int] = []

    @property
    def has_parameters(self) -> bool:
        return bool(self.group.parameters)


class Replay:
    """Issues the actions of a step. `groups` begin with the root's; `actions` are complete after `run`.

    Groups are known by their index in `groups`.
    """

    def __init__(self, step: ModuleStep, wrapped: Sequence[str], settings: ShardSettings) -> None:
        self.groups = groups_of(step, wrapped, settings)
        self.actions: list[FSDPAction] = []
        self._step = step
        self._settings = settings
        self._states = [_GroupState(group) for group in self.groups]
        self._group_of_module = {group.name: index for index, group in enumerate(self.groups)}
        self._group_of_parameter: dict[str, int] = {}
        for index, group in enumerate(self.groups):
            for parameter in group.parameters:
                self._group_of_parameter[parameter.name] = index
        self._post_forward_order: list[int] = []  # the groups in the order in which their forward ended
        # Whether the input of a reduce-scatter is still allocated: it is freed when a later group has waited for it.
        self._has_reduce_input = False
        # The groups whose modules are being called, the innermost last. The root is always among them, so that whatever
        # no wrapped module computes belongs to it.
        self._open = [0]
        self._forward_root: int | None = None  # the outermost of them: ``FSDPStateContext.iter_forward_root``
        self._is_backward = False  # whether the step's backward has begun, in which checkpoints repeat a forward
        self._set_prefetch(wrapped)

    def _set_prefetch(self, wrapped: Sequence[str]) -> None:
        """Have each group gather the `prefetch` groups ahead that follow it in forward, or precede it for backward.

        The nearest group comes first.
        """
        depth = self._settings.prefetch
        groups = [self._group_of_module[name] for name in wrapped]
        for position, index in enumerate(groups):
            state = self._states[index]
            state.forward_prefetch = groups[position + 1 : position + 1 + depth]
            state.backward_prefetch = groups[max(position - depth, 0) : position][::-1]

    def run(self) -> Replay:
        """Go through the events of the step, and end the backward."""
        for event in self._step.events:
            if event.kind in ("pre_backward", "backward", "gradient", "post_backward"):
                self._is_backward = True
            if event.kind == "forward":
                self._issue("forward", self._open[-1], event=event)
            elif event.kind == "backward":
                self._issue("backward", self._innermost_group(event.name), event=event)
            elif event.kind == "gradient":
                index = self._group_of_parameter[event.name]
                self._states[index].ready.append(event.name)
                self._issue("gradient", index, event=event)
            else:
                self._run_hook(event)
        self._finish()
        return self

    def _run_hook(self, event: StepEvent) -> None:
        """Do what FSDP's hook does at this event of a module; only wrapped modules and the root have hooks."""
        index = self._group_of_module.get(event.name)
        if index is None:
            return
        state = self._states[index]
        if event.kind == "enter":
            self._enter(state, index)
        elif event.kind == "leave":
            self._leave(state, index)
        elif event.kind == "pre_backward":
            self._pre_backward(state, index)
        elif event.kind == "post_backward" and state.has_parameters:  # without parameters, torch registers no such hook
            self._post_backward(state, index)

    def _innermost_group(self, name: str) -> int:
        """Return the group of the innermost wrapped module that is or contains a module; the root contains all."""
        while name and name not in self._group_of_module:
            name, _, _ = name.rpartition(".")  # the module around it
        return self._group_of_module[name]

    def _issue(self, kind: str, index: int, num_bytes: int = 0, **details: Any) -> None:
        self.actions.append(FSDPAction(kind, index, num_bytes, **details))

    # ---- parameters

    def _unshard(self, index: int) -> None:
        """``FSDPParamGroup.unshard``: issue the all-gather, unless it was issued or the parameters are there."""
        state = self._states[index]
        if state.is_pending or state.is_unsharded or not state.has_parameters:
            return
        state.is_pending = True
        self._issue("gather", index, state.group.gathered_bytes)

    def _wait(self, index: int, is_forward: bool) -> None:
        """``FSDPParamGroup.wait_for_unshard``: wait for an all-gather that was issued, and copy its buffer out."""
        state = self._states[index]
        if not state.is_pending:
            return
        state.is_pending = False
        state.is_unsharded = True
        self._issue("copy_out", index, state.group.gathered_bytes, is_forward=is_forward)

    def _reshard(self, index: int, is_forward: bool = False) -> None:
        """``FSDPParamGroup.reshard``: free the gathered parameters if they are there."""
        state = self._states[index]
        if state.is_unsharded:
            state.is_unsharded = False
            self._issue("reshard", index, state.group.gathered_bytes, is_forward=is_forward)

    # ---- forward

    def _enter(self, state: _GroupState, index: int) -> None:
        """``FSDPState._pre_forward`` and ``FSDPParamGroup.pre_forward``: gather the group and what it prefetches."""
        if state.module_training == "pre_backward":  # activation checkpointing computes the forward again
            self._unshard(index)
            self._wait(index, is_forward=False)
            return
        state.module_training = "forward"
        self._open.append(index)
        if self._forward_root is None:
            self._forward_root = index
        self._issue("hooks", index, is_forward=True)
        if state.has_parameters:
            state.training = "forward"
            self._unshard(index)
            self._wait(index, is_forward=True)
        for target in state.forward_prefetch:
            self._unshard(target)

    def _leave(self, state: _GroupState, index: int) -> None:
        """``FSDPState._post_forward`` and ``FSDPParamGroup.post_forward``.

        A forward that activation checkpointing repeats within backward neither reshards nor counts in the order of
        forwards. If a checkpoint is around the module, its own backward has not begun then, but that of the step has.
        """
        if state.module_training == "pre_backward":
            return
        state.module_training = "idle"
        self._open.pop()
        if state.has_parameters:
            if not self._is_backward:
                if self._settings.reshards(state.group.is_root):
                    self._reshard(index, is_forward=True)
                state.post_forward_indices.append(len(self._post_forward_order))
                self._post_forward_order.append(index)
            state.training = "idle"
        if self._forward_root == index:
            self._forward_root = None
            self._issue("flush", index)

    # ---- backward

    def _pre_backward(self, state: _GroupState, index: int) -> None:
        """``FSDPState._pre_backward`` and ``FSDPParamGroup.pre_backward``: gather the group and what it prefetches.

        It runs once for each tensor that the module returned.
        """
        if state.module_training != "pre_backward":  # the first of these tensors: the hooks' time counts once
            self._issue("hooks", index)
        state.module_training = "pre_backward"
        if state.has_parameters and state.training != "pre_backward":
            state.training = "pre_backward"
            self._unshard(index)
            self._wait(index, is_forward=False)
            if not state.backward_prefetch:  # torch's default applies only without prefetching of one's own
                self._default_prefetch(state)
        for target in state.backward_prefetch:
            self._unshard(target)

    def _default_prefetch(self, state: _GroupState) -> None:
        """``FSDPParamGroup._backward_prefetch``: gather the group whose forward ended before this one's.

        If the group was called several times, each backward is that of the last call whose backward has not run yet.
        """
        if not state.post_forward_indices:  # a second backward through the same forward
            return
        position = state.post_forward_indices.pop()
        if position > 0:
            self._unshard(self._post_forward_order[position - 1])

    def _post_backward(self, state: _GroupState, index: int) -> None:
        """``FSDPParamGroup.post_backward``: reshard the group, and reduce those of its gradients that are ready.

        First, even if the group has no gradients, it waits for the reduce-scatter of an earlier group, whose input is
        then freed.
        """
        state.training = "post_backward"
        names = [parameter.name for parameter in state.group.parameters if parameter.name in state.ready]
        self._reshard(index)
        if self._has_reduce_input:
            self._has_reduce_input = False
            self._issue("reduce_wait", index)
        if not names:
            return
        state.ready.clear()
        self._has_reduce_input = True
        self._issue("reduce", index, state.group.reduced_bytes(names), parameters=tuple(names))

    def _finish(self) -> None:
        """``FSDPState._root_post_backward_final_callback``: end the backward of all groups.

        Autograd has not ended that of a group whose inputs require no gradient, as those of the first layer. torch goes
        through the groups in the order of ``named_modules()``.
        """
        order = [self._group_of_module[name] for name in self._step.modules if name in self._group_of_module]
        for index in order:
            state = self._states[index]
            if not state.has_parameters:
                continue
            if state.training != "post_backward":
                self._post_backward(state, index)
            state.training = "idle"
            if state.is_pending:  # gathered ahead, and never needed: ``FSDPParamGroup.finalize_backward``
                state.is_pending = False
                self._issue("drop", index, state.group.gathered_bytes)
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
