"""Sources built for both kinds of runner, with torch and without; requests to them, and replies to compare."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from conftest import write

from grader.backends.native import nativebuild
from grader.backends.native.nativehost import NativeHost
from grader.backends.torch.torchbuild import build
from grader.backends.torch.zygote import Zygote
from grader.core.arrays import np
from grader.runner.calls import Call, Request
from grader.runner.session import Session

Sizes = tuple[int, ...]


def program(folder: Path, text: str, **options: Any) -> Path:
    made = nativebuild.build(write(folder, text), **options)
    assert made.ok and made.program is not None, made.diagnostics
    return made.program


def floats(*shape: int) -> Any:
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


def asked(function: str, *values: object, shape: Sizes = (4,), output: Sizes = (4,)) -> Request:
    arguments = [{"input": 0}, *({"value": value} for value in values)]
    return Request(function, arguments, [floats(*shape)], output)


def plain(call: Call) -> Call:
    """Return the call without its measured fields, and with lists in place of tensors."""
    output = None if call.output is None else (call.output.tolist(), str(call.output.dtype))
    echoes = tuple(echo.tolist() for echo in call.echoes)
    return replace(
        call, wall_s=0.0, cpu_s=None, idle_s=None, own_s=None, peak_bytes=None, output=output, echoes=echoes
    )


class Both:
    def __init__(self, zygote: Zygote, host: NativeHost, source: Path) -> None:
        with_torch = build(source)
        assert with_torch.ok, with_torch.diagnostics
        self.zygote, self.host, self.object_path = zygote, host, str(with_torch.object_path)
        self.program = program(source.parent, source.read_text())

    def native(self, *, threads: int = 1, **options: Any) -> Session:
        return self.host.spawn(self.program, threads=threads, **options)

    def sessions(self, *, threads: int = 1, **options: Any) -> Iterator[Session]:
        """Yield one session of each kind; the second starts when the first has ended."""
        yield self.zygote.spawn("student", self.object_path, threads=threads, **options)
        yield self.native(threads=threads, **options)
