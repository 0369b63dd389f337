"""Folders one in another, deeper than a path may be long."""

from __future__ import annotations

import os
from pathlib import Path


def nest(top: Path, depth: int, name: str = "d") -> None:
    """Make folders one in another, each with a file, by steps that no length of path stops."""
    here = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
