"""Frozen values whose fields are checked: attrs, with rankscope's checks as converters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, dataclass_transform, overload

import attrs

from .checks import of_type, several

Class = TypeVar("Class", bound=type)
Value = TypeVar("Value")


class ReadOnly(dict[Any, Any]):
    """A dict that cannot be changed, for the fields of frozen values: it pickles, and JSON libraries take it.

    >>> ReadOnly(algorithm="ring")["algorithm"] = "tree"
    Traceback (most recent call last):
    TypeError: this mapping is read-only
    """

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("this mapping is read-only")

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        """Let pickle pass the items to the constructor; by default, it sets them one by one."""
        return ReadOnly, (dict(self),)


def mapping(
    name: str, value: Any, checks: Mapping[str, Callable[[str, Any], Any]] | None = None, needed: Iterable[str] = ()
) -> ReadOnly:
    """Return a read-only copy of a mapping. With `checks`, it has only these keys, in this order, and checked values.

    Raises ValueError for anything but a mapping, and, with `checks`, for another key or if a `needed` one is missing.

    >>> mapping("options", [1])
    Traceback (most recent call last):
    ValueError: options must be a mapping, got [1]
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a mapping, got {value!r}")
    if checks is None:
        return ReadOnly(value)
    for key in value:
        if key not in checks:
            raise ValueError(f"{name} may contain only {', '.join(checks)}, got {key!r}")
    for key in needed:
        if key not in value:
            raise ValueError(f"{name} must have {key!r}, but lacks it")
    return ReadOnly({key: check(f"{name}: {key}", value[key]) for key, check in checks.items() if key in value})


def optional(name: str, value: Any, check: Callable[..., Any], *limits: Any, **options: Any) -> Any:
    """Return None for None, and the result of the check for any other value.

    >>> from rankscope.common.checks import whole
    >>> optional("ports", None, whole, 1), optional("ports", 2, whole, 1)
    (None, 2)
    """
    if value is None:
        return None
    return check(name, value, *limits, **options)


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a frozen value by name.

    >>> from rankscope.cluster import Link
    >>> fields_of(Link(1e-6, 1e9))
    {'alpha_s': 1e-06, 'bytes_per_s': 1000000000.0}
    """
    return {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}


def each(name: str, values: Any, check: Callable[..., Any] | type, *limits: Any, **options: Any) -> tuple[Any, ...]:
    """Return a tuple with the result of the check for each of several values; a class checks that they are of it.

    >>> from rankscope.common.checks import number
    >>> each("step_s", [1, 2.5], number, 0)
    (1.0, 2.5)
    >>> each("step_s", [1, -1], number, 0)
    Traceback (most recent call last):
    ValueError: step_s must be a finite number of at least 0, got -1
    """
    if isinstance(check, type):
        limits = (check,)
        check = of_type
    return tuple([check(name, value, *limits, **options) for value in several(name, values)])


def checked(
    check: Callable[..., Any] | type,
    *limits: Any,
    default: Any = attrs.NOTHING,
    factory: Any = None,
    hash: bool | None = None,
    **options: Any,
) -> Any:
    """Declare a field of a frozen value. Its value is the result of ``check(name, argument, *limits, **options)``.

    A class instead of a check means that the value must be of it. `default` and `factory` are those of `attrs.field`,
    which refuses both together; ``hash=False`` excludes a field that cannot be hashed from the value's hash.

    >>> checked(of_type, list, default=[], factory=list)
    Traceback (most recent call last):
    ValueError: The `default` and `factory` arguments are mutually exclusive.
    """
    if isinstance(check, type):
        limits = (check,)
        check = of_type

    def convert(value: Any, field: Any) -> Any:
        """Check an argument; attrs passes the field, which has the name for the message."""
        return check(field.name, value, *limits, **options)

    converter = attrs.Converter(convert, takes_field=True)
    return attrs.field(converter=converter, hash=hash, default=default, factory=factory)


@overload
def frozen(kind: Class) -> Class: ...
@overload
def frozen(*, eq: bool = True) -> Callable[[Class], Class]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(checked, attrs.field))
def frozen(kind: Any = None, *, eq: bool = True) -> Any:
    """Make a class a frozen value: its annotated fields become its parameters, and none can be set again.

    A field that is declared with `checked` needs no other check. Checks of several fields together belong in
    ``__attrs_post_init__``. ``eq=False`` is for values with arrays.

    >>> from rankscope.common.checks import number, whole
    >>> @frozen
    ... class Link:
    ...     alpha_s: float = checked(number, 0)
    ...     num_lanes: int = checked(whole, 1, 16, default=1)
    >>> Link(1)
    Link(alpha_s=1.0, num_lanes=1)
    >>> Link(-1)
    Traceback (most recent call last):
    ValueError: alpha_s must be a finite number of at least 0, got -1
    """
    # None makes a hash of the fields, as equal values need; False leaves the hash of the object itself.
    make = attrs.frozen(eq=eq, hash=None if eq else False)
    if kind is None:
        return make
    return make(kind)


def evolve(value: Value, **changes: Any) -> Value:
    """Return a copy of a frozen value with some fields changed; all fields are checked again.

    >>> from rankscope.cluster import Link
    >>> evolve(Link(alpha_s=1.0, bytes_per_s=2.0), alpha_s=0)
    Link(alpha_s=0.0, bytes_per_s=2.0)
    """
    return attrs.evolve(value, **changes)  # type: ignore[misc]  # to mypy it is a dataclass
