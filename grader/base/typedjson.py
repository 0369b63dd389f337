"""JSON that the kit has written and others may have changed since: read within limits, into records of known types.

`parse` takes no more than a depth and numbers of a size that the kit writes, whatever Python's own reader would bear:
the depth at which that one fails depends on who calls. `record` makes a dataclass of the values, field by field. Both
raise ValueError, with the place in words, and nothing else.
"""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

MOST_DEPTH = 32
"""Lists and objects one in another. The deepest that the kit writes has seven."""
MOST_DIGITS = 19
"""Of a whole number: a count of bytes has as many."""
_TELLING = re.compile(rb'["\\{}\[\]]')
T = TypeVar("T")


def parse(data: bytes) -> Any:
    """The one value that UTF-8 bytes hold. Raises ValueError."""
    _refuse_depth(data)
    return json.loads(
        data.decode("utf-8"), parse_int=_whole, parse_float=_fraction, parse_constant=_no_constant
    )


def _refuse_depth(data: bytes) -> None:
    depth, in_text, after = 0, False, 0
    for found in _TELLING.finditer(data):
        if found.start() < after:
            continue
        mark = found[0]
        if mark == b"\\":
            after = found.end() + 1
        elif mark == b'"':
            in_text = not in_text
        elif not in_text:
            depth += 1 if mark in b"[{" else -1
            if depth > MOST_DEPTH:
                raise ValueError(f"lists or objects more than {MOST_DEPTH} deep")


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS + 1:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _fraction(digits: str) -> float:
    if len(digits) > 400 or not math.isfinite(number := float(digits)):
        raise ValueError("a number beyond all measure")
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


# ---- records


def record(kind: type[T], value: Any, place: str = "") -> T:
    """`value` as a dataclass; keys that it does not have are ignored, as those of a later kit. Raises ValueError."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{place or 'it'} should be an object")
    given: dict[str, Any] = {}
    for item in fields(cast(Any, kind)):
        if not item.init:
            continue
        here = f"{place}.{item.name}".lstrip(".")
        if item.name in value:
            given[item.name] = _typed(_hints(cast(Any, kind))[item.name], value[item.name], here)
        elif item.default is MISSING and item.default_factory is MISSING:
            raise ValueError(f"{here} is missing")
    return kind(**given)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _typed(wanted: Any, value: Any, place: str) -> Any:
    """`value` as the type that a record's field has."""
    origin, choices = get_origin(wanted), get_args(wanted)
    if is_dataclass(wanted):
        return record(cast(type, wanted), value, place)
    if origin in (Union, types.UnionType):
        rest = [choice for choice in choices if choice is not type(None)]
        return None if value is None else _typed(rest[0], value, place)
    if origin is Literal:
        if value not in choices:
            raise ValueError(f"{place} should be one of {', '.join(map(str, choices))}")
        return value
    if origin is tuple:
        return _tuple(choices, value, place)
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise ValueError(f"{place} should be an object")
        return {key: _typed(choices[1], item, f"{place}.{key[:40]}") for key, item in value.items()}
    return _scalar(wanted, value, place)


def _tuple(choices: tuple[Any, ...], value: Any, place: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{place} should be a list")
    kinds = [choices[0]] * len(value) if choices[-1] is Ellipsis else list(choices)
    if len(kinds) != len(value):
        raise ValueError(f"{place} should hold {len(kinds)} values")
    return tuple(
        _typed(kind, item, f"{place}[{k}]") for k, (kind, item) in enumerate(zip(kinds, value, strict=True))
    )


def _scalar(wanted: Any, value: Any, place: str) -> Any:
    if wanted is float:
        if value is None:
            return math.nan  # written as null, since JSON has no infinities
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    elif (wanted in (int, str, bool) and type(value) is wanted) or wanted is object:
        return value
    raise ValueError(f"{place} should be of the kind '{wanted.__name__}'")
