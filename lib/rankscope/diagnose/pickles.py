"""`read_pickle`: what a pickle contains, if that is containers, texts and numbers. No pickle is executed.

A pickle may name one object many times, and a reader that copies it each time takes memory without bound: a file of
4 kB that says "a list of 600 times the list of 600 times the list of 600 numbers" stands for 216 million numbers.
So everything is counted, and objects that are named again are counted again.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, ClassVar

MOST_OPCODES = 1 << 23
MOST_CONTAINERS = 1 << 21  # a dictionary takes up to 232 bytes
MOST_MEMO = 1 << 21  # objects that may be named again; each takes some 80 bytes
MOST_VALUES = 1 << 24  # if each object counts as often as it is named
DEEPEST = 16  # containers within containers; a dump has six

_OPCODES = """
    PROTO FRAME MARK STOP NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE
    EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET
    GLOBAL STACK_GLOBAL
"""  # those of flight-recorder dumps, and those that ask for a class


def read_pickle(raw: bytes) -> Any:
    """Return what a pickle contains: dictionaries, lists (also for tuples of two), texts, numbers, bools and None.

    Raises ValueError where it asks for a class or a function, and where it has more of anything than the limits above.
    A damaged pickle raises whatever Python's own unpickler does, such as EOFError and IndexError.
    """
    contents = _Unpickler(io.BytesIO(raw)).load()
    if _num_values(contents, {}, 0) > MOST_VALUES:
        raise ValueError(f"it stands for more than {MOST_VALUES} values, because it names the same ones many times")
    return contents


def _num_values(value: Any, known: dict[int, int], depth: int) -> int:
    """Return how many values a value stands for, itself included.

    `known` has the results for the containers counted so far, by their id, so that each is counted once.
    """
    if not isinstance(value, list | dict):
        return 1
    if depth > DEEPEST:  # a container that contains itself gets here, too
        raise ValueError(f"it is nested more than {DEEPEST} deep")
    if id(value) not in known:
        # keys are never containers: `_Unpickler` makes a list of a tuple, and a list cannot be a key
        items = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_num_values(item, known, depth + 1) for item in items)
    return known[id(value)]


class _Counted(dict[int, Any]):
    """The functions by opcode; counts how often one is looked up."""

    num_opcodes = 0

    def __getitem__(self, opcode: int) -> Any:
        self.num_opcodes += 1
        if self.num_opcodes > MOST_OPCODES:
            raise ValueError(f"it has more than {MOST_OPCODES} opcodes")
        return super().__getitem__(opcode)


class _Unpickler(pickle._Unpickler):
    """Reads containers, texts and numbers, and calls nothing: whatever class or function a pickle asks for is refused.

    `dispatch` has the function for each opcode. Those below count what they make, and then do what Python's own do. It
    is the unpickler in Python, as the one in C takes as much memory as a damaged file asks for. Tuples become lists,
    which cannot be keys: Python crashes where it hashes deeply nested tuples.
    """

    dispatch: ClassVar[dict[int, Any]] = {
        getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]] for name in _OPCODES.split()
    }

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.dispatch = _Counted(self.dispatch)  # type: ignore[misc]
        self.num_containers = 0

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"it asks for {module}.{name}, which no dump has; nothing was executed")

    def _container(self: Any, empty: Any) -> Any:
        self.num_containers += 1
        if self.num_containers > MOST_CONTAINERS:
            raise ValueError(f"it has more than {MOST_CONTAINERS} lists and dictionaries")
        return empty

    def _mark(self: Any) -> None:
        if len(self.metastack) > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} deep")
        self.load_mark()

    def _empty_list(self: Any) -> None:
        self.append(self._container([]))

    def _empty_dictionary(self: Any) -> None:
        self.append(self._container({}))

    def _list_of_two(self: Any) -> None:
        self.stack[-2:] = [self._container(self.stack[-2:])]

    def _remember(self: Any) -> None:
        if len(self.memo) >= MOST_MEMO:
            raise ValueError(f"it names more than {MOST_MEMO} objects")

    def _memoize(self: Any) -> None:
        self._remember()
        self.load_memoize()

    def _put(self: Any) -> None:
        self._remember()
        self.load_binput()

    def _put_long(self: Any) -> None:
        self._remember()
        self.load_long_binput()

    dispatch |= {
        pickle.MARK[0]: _mark,
        pickle.EMPTY_LIST[0]: _empty_list,
        pickle.EMPTY_DICT[0]: _empty_dictionary,
        pickle.TUPLE2[0]: _list_of_two,
        pickle.MEMOIZE[0]: _memoize,
        pickle.BINPUT[0]: _put,
        pickle.LONG_BINPUT[0]: _put_long,
    }
