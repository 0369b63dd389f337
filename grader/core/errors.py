"""Exceptions for the kit's own failures, and the exit codes of every command line.

A fault of the submission is a verdict, never an exception.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

EXIT_PASS, EXIT_SUBMISSION, EXIT_USAGE, EXIT_KIT = 0, 1, 2, 3


class UsageError(Exception):
    """A mistake on the command line or in a config file: one line that says what to change (exit 2)."""


class KitError(Exception):
    """Failure of the kit or of the machine: what is missing and what to do next (exit 3)."""


@contextlib.contextmanager
def explained(what: str, kind: type[Exception] = UsageError, remedy: str = "") -> Iterator[None]:
    """Raise an OSError of the `with` block as an error of this kind: "cannot write FILE: no space left; REMEDY"."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}{remedy and '; '}{remedy}") from error
