"""Handling of exceptions in code that explains a wrong result: a sentence is left out, and the verdict does not change.

The author of a lab writes code that finds the cause of a wrong result. A flag reports an exception in this code with
file and line, and judging goes on.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from grader.core.results import Diagnosis, Flag

_T = TypeVar("_T")
_U = TypeVar("_U")
UNEXPLAINED = Diagnosis("wrong_values", "The result is wrong.")
_LIBRARIES = ("site-packages", "dist-packages", "lib/python")
_failed: ContextVar[tuple[str, ...]] = ContextVar("_failed", default=())


def attempt(
    explain: Callable[[], _T], otherwise: _U, *, expected: tuple[type[Exception], ...] = ()
) -> _T | _U:
    """Return `explain()`, or `otherwise` if it raises. Exceptions that are not of an `expected` type are recorded."""
    try:
        return explain()
    except expected:
        return otherwise
    except Exception as error:  # A lab's code may raise any exception.
        _failed.set((*_failed.get(), f"{_place(error)}: {type(error).__name__}: {error}"[:300]))
        return otherwise


def flags() -> list[Flag]:
    """Return a flag for each exception recorded since the last call of this function."""
    found = dict.fromkeys(_failed.get())
    _failed.set(())
    return [
        Flag("explanation_failed", f"the explanation lacks a sentence, the verdict is unchanged: {each}")
        for each in found
    ]


def _place(error: Exception) -> str:
    """Return the innermost line of the traceback that is not a library's, as "labs/attention/oracle.py:31"."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(part in frame.filename for part in _LIBRARIES)] or frames
    return f"{'/'.join(Path(own[-1].filename).parts[-3:])}:{own[-1].lineno}"
