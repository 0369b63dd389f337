"""Makes what many tests need before any of them runs: the precompiled headers and the stand-in, for each set of flags.

Two workers that begin with an empty cache would make the same ones side by side. As a program, from the project's
folder: `PYTHONPATH=.:tests python -m headers`. What cannot be made here is left to the tests that need it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from building import PLAIN, SANITIZED

from grader.base.errors import KitError, UsageError
from grader.build import nativebuild, sanitize, standin, torchbuild
from grader.build.toolchain import toolchain
from grader.study import race

T = TypeVar("T")


def all_of_them() -> list[Callable[[], object]]:
    """The makers, those that most tests wait for first."""
    made: list[Callable[[], object]] = [
        nativebuild.precompile,
        partial(nativebuild.precompile, flags=sanitize.FLAGS),
        torchbuild.precompile,
        partial(standin.prepare, PLAIN.flags),
        partial(standin.prepare, SANITIZED.flags),
    ]
    if race.has_thread_sanitizer(toolchain()):
        made.append(partial(standin.prepare, race.KIT.flags))
    return made


def attempt(make: Callable[[], T]) -> T | None:
    try:
        return make()
    except (KitError, UsageError) as error:
        print(f"Not made ahead of the tests: {error}")
        return None


def main() -> None:
    for make in attempt(all_of_them) or ():
        attempt(make)


if __name__ == "__main__":
    main()
