"""Reader of JSON that the kit wrote and others may have changed. Has size limits; converts to records of known types.

`parse` limits the depth of nesting and the length of numbers. Python's own recursion limit is not used, because it
counts the callers of `parse`, too. `record` converts the values to a dataclass, field by field. Both raise only
ValueError.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from typing import Any, Literal, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

MOST_DEPTH = 32
"""Limit on nested lists and objects. The deepest nesting that the kit writes is seven."""
MOST_DIGITS = 19
"""Digits of the largest count of bytes (2^63). A whole number may have one character more, such as a sign."""
_NO_BRACKETS = bytes(sorted({*range(256)} - {*b"[]{}"}))
T = TypeVar("T")


def parse(data: bytes) -> Any:
    """Parse UTF-8 bytes as one JSON value. Raises ValueError for invalid JSON, deep nesting and long numbers."""
    _refuse_depth(data)
    return json.loads(
        data.decode("utf-8"), parse_int=_whole, parse_float=_fraction, parse_constant=_no_constant
    )


def _refuse_depth(data: bytes) -> None:
    # Without escaped characters, each quotation mark begins or ends a string. So every second piece of the split is
    # outside of strings. This is wrong for a text with a backslash outside of a string, but no JSON reader accepts it.
    outside = data.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2]
    depth = 0
    for mark in b"".join(outside).translate(None, _NO_BRACKETS):
        depth += 1 if mark in b"[{" else -1
        if depth > MOST_DEPTH:
            raise ValueError(f"lists or objects more than {MOST_DEPTH} deep")


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS + 1:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _fraction(digits: str) -> float:
    if len(digits) > 400 or not math.isfinite(number := float(digits)):
        raise ValueError("a number too large for float64")
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


# ---- records


def record(kind: type[T], value: Any, place: str = "") -> T:
    """Convert a parsed JSON object to the dataclass `kind`. Unknown keys are ignored: a later kit may write some.

    Raises ValueError for a value of a wrong type. Its message names the value by a path that begins with `place`.
    """
    try:
        return cast(T, _reader(cast(Any, kind))(value))
    except _Misfit as misfit:
        at = f"{place}{misfit.path}".lstrip(".")
        raise ValueError(f"{at or 'it'} {misfit.what}") from None


Reader = Callable[[Any], Any]


class _Misfit(Exception):
    """Error for a value of a wrong type. `path` leads to the value (".parts[2].id").

    The readers of the enclosing lists and objects, from inside to outside, each put a step before `path`.
    """

    def __init__(self, what: str, path: str = "") -> None:
        super().__init__(what)
        self.what, self.path = what, path


@cache
def _reader(wanted: Any) -> Reader:
    """Return the function that converts a JSON value to the type `wanted`. Cached: results have thousands of values."""
    origin, choices = get_origin(wanted), get_args(wanted)
    if is_dataclass(wanted):
        return _record_reader(cast(type, wanted))
    if origin in (Union, types.UnionType):
        read = _reader(next(choice for choice in choices if choice is not type(None)))
        return lambda value: None if value is None else read(value)
    if origin is Literal:
        return partial(_one_of, choices)
    if origin is tuple and choices[-1] is Ellipsis:
        return partial(_list, _reader(choices[0]))
    if origin is tuple:
        return partial(_row, tuple(map(_reader, choices)))
    if origin in (dict, Mapping):
        return partial(_mapping, _reader(choices[1]))
    if wanted is float:
        return _float
    return partial(_plain, wanted)


def _record_reader(kind: type) -> Reader:
    """Return a reader that converts a JSON object to the dataclass `kind`."""
    hints = get_type_hints(kind)
    known = [item for item in fields(kind) if item.init]
    readers = [(item.name, _reader(hints[item.name])) for item in known]
    needed = {item.name for item in known if item.default is MISSING and item.default_factory is MISSING}

    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _Misfit("should be an object")
        given: dict[str, Any] = {}
        for name, reader in readers:
            if name in value:
                try:
                    given[name] = reader(value[name])
                except _Misfit as misfit:
                    misfit.path = f".{name}{misfit.path}"
                    raise
            elif name in needed:
                raise _Misfit("is missing", f".{name}")
        return kind(**given)

    return read


def _one_of(choices: tuple[Any, ...], value: Any) -> Any:
    if value not in choices:
        raise _Misfit(f"should be one of {', '.join(map(str, choices))}")
    return value


def _list(reader: Reader, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _Misfit("should be a list")
    return tuple(_each((reader, item) for item in value))


def _row(readers: tuple[Reader, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _Misfit("should be a list")
    if len(readers) != len(value):
        raise _Misfit(f"should hold {len(readers)} values")
    return tuple(_each(zip(readers, value, strict=True)))


def _each(items: Iterable[tuple[Reader, Any]]) -> list[Any]:
    """Read each item with its reader. If an item does not fit, put its index before the path in the error."""
    found: list[Any] = []
    try:
        for reader, item in items:
            found.append(reader(item))
    except _Misfit as misfit:
        misfit.path = f"[{len(found)}]{misfit.path}"
        raise
    return found


def _mapping(reader: Reader, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Misfit("should be an object")
    found = {}
    key = ""
    try:
        for key, item in value.items():
            found[key] = reader(item)
    except _Misfit as misfit:
        misfit.path = f".{key[:40]}{misfit.path}"
        raise
    return found


def _float(value: Any) -> float:
    if type(value) is float:
        return value
    if value is None:
        return math.nan  # non-finite numbers are written as null: JSON has none
    if type(value) is int:
        return float(value)
    raise _Misfit("should be of the kind 'float'")


def _plain(wanted: Any, value: Any) -> Any:
    if (wanted in (int, str, bool) and type(value) is wanted) or wanted is object:
        return value
    raise _Misfit(f"should be of the kind '{wanted.__name__}'")
