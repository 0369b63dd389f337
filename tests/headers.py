"""Fill the tests' cache before parallel workers start, which would each compile the same headers.

Makes the precompiled headers and the stand-in for torch for each set of flags, where this machine can. Run it from the
project's folder: `PYTHONPATH=.:tests python -m headers`.
"""

from functools import partial

import conftest  # noqa: F401  (it points GPT149_CACHE at the tests' cache)

from grader.backends.native import nativebuild, sanitize, standin
from grader.backends.native.toolchain import toolchain
from grader.backends.torch import torchbuild
from grader.core.errors import KitError, UsageError
from grader.study import race


def prepare_for_races() -> None:
    if race.has_thread_sanitizer(toolchain()):
        standin.prepare(race.KIT.flags)


if __name__ == "__main__":
    sanitized = partial(nativebuild.precompile, flags=sanitize.FLAGS)
    for make in (nativebuild.precompile, sanitized, torchbuild.precompile, prepare_for_races):
        try:
            make()
        except (KitError, UsageError) as error:  # noqa: PERF203
            print(f"Not made ahead of the tests: {error}")
