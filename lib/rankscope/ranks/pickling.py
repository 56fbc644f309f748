"""How values travel between processes: functions of a notebook by value, arrays and CPU tensors without extra copies.

Pickles are read from this user's own processes only. Without cloudpickle nothing goes by value.
"""

from __future__ import annotations

import inspect
import io
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from ..common.storage import naming

try:
    from cloudpickle import Pickler as _Base
except ImportError:

    class _Base(pickle.Pickler):  # type: ignore[no-redef]
        """Pickles by reference only, and refuses what another process cannot import."""

        def reducer_override(self, value: Any) -> Any:
            """Raise PicklingError for a function or class that has no name in a module, the only values it gets."""
            if value.__module__ == "__main__" or "<" in value.__qualname__:  # as in "<lambda>" and "<locals>"
                where = "a notebook, a script's own file, a lambda or another function"
                raise pickle.PicklingError(
                    f"{value!r} is defined in {where}: sending it needs cloudpickle, which is not installed: "
                    "pip install 'rankscope[torch]'"
                )
            return NotImplemented


PROTOCOL = 5  # arrays go out of band, or straight from where they lie
_OURS = f"{__package__.partition('.')[0]}."  # with which the names of this library's modules begin


class Pickler(_Base):  # type: ignore[misc]
    """Pickles CPU tensors as arrays: torch's own way copies them four times, and sends all that a slice is cut from.

    `modules` are those of this library that whoever loads the pickle will import.
    """

    def __init__(self, file: Any, **options: Any) -> None:
        super().__init__(file, **options)
        self.modules: set[str] = set()

    def reducer_override(self, value: Any) -> Any:
        """Return how to pickle a tensor, or a function or class; NotImplemented for what pickle does by itself.

        cloudpickle's own method decides for functions and classes, which it pickles by value if another process cannot
        import them. Those with a name in a module of numpy or torch can always be imported, so for them the slower
        decision is left out.
        """
        torch = sys.modules.get("torch")  # a process with tensors has imported it
        if torch is not None and type(value) is torch.Tensor and _is_plain(value, torch):
            content = value.contiguous().view(-1).view(torch.uint8).numpy()
            return _tensor, (content, str(value.dtype).removeprefix("torch."), tuple(value.shape))
        if isinstance(value, ModuleType):
            self._add_module(value.__name__)
        elif isinstance(value, type | FunctionType):
            module = value.__module__ or ""  # a function whose code was executed without a module has None
            self._add_module(module)
            package = module.partition(".")[0]
            is_local = "<" in value.__qualname__  # as in "<lambda>" and "<locals>"
            if package not in ("numpy", "torch") or is_local:
                return super().reducer_override(value)
        return NotImplemented

    def _add_module(self, module: str) -> None:
        if module.startswith(_OURS):
            self.modules.add(module)


def write(path: Path, value: Any) -> set[str]:
    """Write a value to a file, and return the modules of this library that whoever reads it will import."""
    with naming(path), open(path, "wb") as file:  # a full disk is an error with the file's name
        pickler = Pickler(file, protocol=PROTOCOL)
        pickler.dump(value)
    return pickler.modules


def read(path: Path) -> Any:
    """Return the value in a file."""
    with open(path, "rb") as file:
        return pickle.load(file)


def to_bytes(value: Any) -> bytes:
    """Return a value as bytes, which `pickle.loads` takes."""
    stream = io.BytesIO()
    Pickler(stream, protocol=PROTOCOL).dump(value)
    return stream.getvalue()


def not_sent(fn: Callable[..., Any], args: tuple[Any, ...], error: Exception) -> ValueError:
    """Return the error for a call that cannot be pickled, naming the argument, or the name used by `fn`, at fault."""
    for name, value in _parts(fn, args):
        try:
            to_bytes(value)
        except Exception as problem:
            return ValueError(f"{name} cannot be sent to another process: {type(problem).__name__}: {problem}")
    return ValueError(f"fn={fn!r} cannot be sent to another process: {type(error).__name__}: {error}")


def _parts(fn: Callable[..., Any], args: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the values that are pickled with a call, each with words for it: the arguments, and what `fn` refers to."""
    for index, value in enumerate(args):
        yield f"args[{index}]={value!r}", value
    if inspect.isfunction(fn):
        used = inspect.getclosurevars(fn)
        for name, value in {**used.globals, **used.nonlocals}.items():
            yield f"{name}={value!r}, which fn={fn.__qualname__} uses,", value


def _is_plain(tensor: Any, torch: Any) -> bool:
    """Whether a tensor can be made again from its bytes, its dtype and its shape alone."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.requires_grad:
        return False
    return not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.__dict__)


def _tensor(content: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """Make a tensor from its bytes, when it is unpickled."""
    import torch

    return torch.from_numpy(content).view(getattr(torch, dtype)).view(shape)
