"""Exceptions for wrong usage and for failures of the kit, and the exit codes of every command line.

A kernel that is wrong, slow or crashes causes neither exception: it gets a verdict.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

EXIT_PASS, EXIT_SUBMISSION, EXIT_USAGE, EXIT_KIT = 0, 1, 2, 3


class UsageError(Exception):
    """A mistake on the command line or in a config file (exit code 2). The message is one line with the remedy."""


class KitError(Exception):
    """Failure of the kit or of the machine (exit code 3). The message names the cause and the next step."""


@contextlib.contextmanager
def explained(what: str, kind: type[Exception] = UsageError, remedy: str = "") -> Iterator[None]:
    """Turn an OSError of the `with` block into an exception of type `kind`.

    The new exception's message is "WHAT: REASON; REMEDY", such as "cannot write FILE: no space left; set TMPDIR".
    """
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}{remedy and '; '}{remedy}") from error
