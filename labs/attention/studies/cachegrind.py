"""Lines that a student's own kernel fetches, counted by valgrind's cachegrind.

The kernel runs in a program of its own (`grader.study.standalone`), optimised as usual, on one head and one thread. Of
cachegrind's two levels only the first is looked at, given the size in question: its second level sees no more than what
misses the first. What the program does besides is counted by a run without the call, and taken off.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from grader.assignment.records import Part
from grader.backends import binding
from grader.backends.native import nativebuild
from grader.core.errors import KitError, UsageError
from grader.study.laboratory import tell
from grader.study.options import Settings
from grader.study.standalone import Kit, Unsuitable, build_program, ran

from .traffic import Model, Shape, Walk

#: As judged programs are: it is the sum of all lines that is read, so no names are needed.
KIT = Kit(flags=nativebuild.OWN_FLAGS)
TIMEOUT_S = 900.0
EVENTS = re.compile(r"^events: (.*)$", re.MULTILINE)
SUMMARY = re.compile(r"^summary: (.*)$", re.MULTILINE)
#: cachegrind wants a number of sets that is a power of two; up to this many ways it simulates in bearable time.
MOST_WAYS = 1 << 14


def valgrind() -> str:
    """The path of valgrind. Raises UsageError, saying how to get it, where there is none."""
    program = shutil.which("valgrind")
    if program is None:
        raise UsageError(
            "--cachegrind needs valgrind, which is not on the PATH: on Debian and Ubuntu 'apt install valgrind'"
        )
    return program


def counts(walks: Sequence[Walk], settings: Settings) -> dict[Walk, int | None]:
    """Count each walk of a kernel that is a part of the student's; None for any other kernel."""
    program = valgrind()
    parts = {part.id: part for part in settings.assignment.parts if part.reference}
    counted: dict[Walk, int | None] = {}
    for walk in walks:
        kernel, model, shape = walk
        tell(f"cachegrind: {kernel}, N={shape.N} d={shape.d}, {model.size_bytes} bytes")
        part = parts.get(kernel)
        counted[walk] = None if part is None else count(program, part, shape, model, settings)
    tell("")
    return counted


def count(
    program: str,
    part: Part,
    shape: Shape,
    model: Model,
    settings: Settings,
) -> int:
    """Lines fetched by one call. Raises UsageError where the file is no such program or the kernel fails in it."""
    try:
        built = build_program(settings.source, KIT, {"TILE_SIZE": str(shape.tile)})
    except Unsuitable as why:
        raise UsageError(f"--cachegrind cannot run {settings.source}: {why}") from why
    sizes = {**settings.sizes, "B": 1, "H": 1, "threads": 1}
    sizes |= {"N": shape.N, "d": shape.d, "Br": shape.Br, "Bc": shape.Bc}
    request = binding.request(
        part, sizes, settings.assignment.typical_inputs(part, sizes, settings.seed or 0)
    )
    ways = model.ways or model.size_bytes // model.line_bytes
    sets = model.size_bytes // (ways * model.line_bytes)
    if ways > MOST_WAYS or sets & (sets - 1) or sets * ways * model.line_bytes != model.size_bytes:
        raise UsageError(
            f"cachegrind cannot simulate {model.size_bytes} bytes in {ways} ways: choose a power of two, or --ways 16"
        )
    prefix = [
        *(program, "--tool=cachegrind", "--vgdb=no", "--cache-sim=yes", "--cachegrind-out-file=counts"),
        *(f"--D1={model.size_bytes},{ways},{model.line_bytes}", "-q"),
    ]
    misses = []
    for prepared_only in (False, True):
        with ran(
            built,
            request,
            without_the_call=prepared_only,
            prefix=prefix,
            tool_files=_tool_files(program),
            timeout_s=TIMEOUT_S,
            memory_bytes=8 << 30,
        ) as run:
            file = run.folder / "counts"
            if run.finished.timed_out:
                raise UsageError(
                    f"cachegrind did not end within {TIMEOUT_S:.0f} s: choose a smaller -N or -d"
                )
            if run.call is None or run.call.status != "ok" or not file.is_file():
                said = (
                    run.call.message if run.call else (run.output.strip().splitlines() or ["no message"])[-1]
                )
                raise UsageError(f"{part.function} fails under cachegrind: {said[:200]}")
            misses.append(data_misses(file.read_text(errors="replace")))
    return max(0, misses[0] - misses[1])


def _tool_files(program: str) -> list[Path]:
    """Files of valgrind's, which Debian starts by a script."""
    folders = [Path(place, "valgrind") for place in ("/usr/libexec", "/usr/lib", "/usr/local/libexec")]
    return [Path(program), Path(f"{program}.bin"), *folders]


def data_misses(text: str) -> int:
    """First-level data misses, reads and writes, of a cachegrind file. Raises KitError for one without."""
    events, summary = EVENTS.search(text), SUMMARY.search(text)
    if events is None or summary is None:
        raise KitError("cachegrind wrote no summary: is its version older than 3.0?")
    counts = dict(zip(events[1].split(), map(int, summary[1].split()), strict=False))
    return counts.get("D1mr", 0) + counts.get("D1mw", 0)
