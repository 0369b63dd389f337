"""Sources built for both kinds of runner, with torch and without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from building import write

from grader.build import nativebuild
from grader.build.torchbuild import build
from grader.run.nativehost import NativeHost
from grader.run.session import Session
from grader.run.zygote import Zygote


def program(folder: Path, text: str, **options: Any) -> Path:
    """The native program of a source that has to compile."""
    made = nativebuild.build(write(folder, text), **options)
    assert made.ok and made.program is not None, made.diagnostics
    return made.program


class Both:
    """One source in both kinds of runner."""

    def __init__(self, zygote: Zygote, host: NativeHost, source: Path) -> None:
        with_torch = build(source)
        assert with_torch.ok, with_torch.diagnostics
        self.zygote, self.host = zygote, host
        self.object_path = with_torch.object_path
        self.program = program(source.parent, source.read_text())

    def python(self, *, threads: int = 1, **options: Any) -> Session:
        assert self.object_path is not None
        return self.zygote.spawn("student", self.object_path, threads=threads, **options)

    def native(self, *, threads: int = 1, **options: Any) -> Session:
        return self.host.spawn(self.program, threads=threads, **options)

    def sessions(self, **options: Any) -> Iterator[Session]:
        """One of each kind, the second started when the first is done with."""
        yield self.python(**options)
        yield self.native(**options)
