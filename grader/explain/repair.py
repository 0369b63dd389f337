"""Search for one small edit of a student's function that makes a wrong part right on all small public inputs.

The line of such an edit is the line of the mistake, or one at which the mistake can be corrected. All edits are
compiled together (`grader.source.edited_source`), and each is called on the smallest wrong input first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from grader.assignment.records import Case
from grader.backends import binding
from grader.explain.judged_part import EditedBuild, JudgedPart, Kernel, OtherBuilds
from grader.source import dataflow, edited_source, edits
from grader.source.edited_source import Edit

#: Limits: seconds until the last build begins, and for the calls of one build. Then attempts at a build, edits in a
#: build, lines in a message, and elements of a compared output.
BUDGET_S, SEARCH_S, MOST_BUILDS, MOST_TOGETHER, MOST_LINES, LARGEST = 12.0, 8.0, 8, 800, 3, 1 << 16


def repairs(
    judged: JudgedPart,
    second: OtherBuilds,
    smallest: Mapping[str, int] | None = None,
    near: Collection[int] = (),
) -> str:
    """Return sentences with the edits that correct the function, one for each line; "" if no edit does.

    Edits are first called at the `smallest` sizes that fail, if these are known. Edits of the lines `near` come first:
    after a crash each edit needs a new runner, and the time is limited. A second build has the less likely edits.
    """
    body, part = judged.kernel.body, judged.kernel.part
    if body is None or part.table:
        return ""
    source = judged.source.read_text(errors="replace")
    names = [at.body.name for at in dataflow.reached(body)]
    cases, file = _small(judged.kernel), judged.source.name
    text, macros = edited_source.bracketed(source)
    plain = second.edited(part, text) if 0 < len(macros) <= MOST_LINES else None
    if plain is not None and not plain.bad and all(_is_right(plain, case, 0) for case in cases):
        lines = [f"  {file}:{line}: {body.rows[line - 1].strip()[:160]}" for line in macros]
        words = "With brackets around the whole text of this macro, and around each parameter there, it is"
        return "\n".join([f"{words} right on all {len(cases)} inputs that were tried:", *lines])
    tried, found = edits.candidates(source, names), dict[int, Edit]()
    tried.sort(key=lambda edit: edit.line not in near)
    deadline = time.monotonic() + BUDGET_S
    for begin in range(0, len(tried), MOST_TOGETHER):
        if not found and time.monotonic() < deadline:
            found = _found(judged, second, source, tried[begin : begin + MOST_TOGETHER], cases, smallest)
    if not found:
        return ""
    found = dict(list(found.items())[:MOST_LINES])
    shown = {line: _words(edit) for line, edit in found.items()}
    # If an edit sets a variable again, also show the line of its declaration, the only line that sets it.
    shown |= {
        edit.declared: "only here until now" for edit in found.values() if edit.declared not in (0, *shown)
    }
    lines = [
        f"  {file}:{line}: {body.rows[line - 1].strip()[:160]}   ({words})" for line, words in shown.items()
    ]
    change = "this change" if len(found) == 1 else "one of these changes"
    return "\n".join([f"With {change} it is right on all {len(cases)} inputs that were tried:", *lines])


def _found(
    judged: JudgedPart,
    second: OtherBuilds,
    source: str,
    tried: Sequence[Edit],
    cases: Sequence[Case],
    smallest: Mapping[str, int] | None,
) -> dict[int, Edit]:
    """Return the first edits that make the function right on all cases, by line."""
    numbered = sorted(tried, key=lambda edit: edit.places)
    built = _built(judged, second, source, numbered)
    if built is None or built.bad:
        return {}
    # This build without an edit may be right by chance, for example if the kernel reads outside of an array.
    wrong = [case for case in reversed(cases) if not _is_right(built, case, 0, fresh=True)][::-1]
    if not wrong:
        return {}
    tiny = [replace(case, shape={**case.shape, **smallest}) for case in wrong[:1] if smallest]
    # A call with a single number cannot choose an edit and returns None. No edit has this number.
    runs = [(case, built.call(case, len(numbered) + 1, fresh=True)) for case in tiny]
    wrong = [*(case for case, run in runs if run is not None and not run.is_right), *wrong]
    cases = [*wrong, *(case for case in cases if case not in wrong)]
    numbers = {edit: number for number, edit in enumerate(numbered, 1)}
    found, deadline = dict[int, Edit](), time.monotonic() + SEARCH_S
    for edit in tried:
        if time.monotonic() > deadline or len(found) > MOST_LINES:
            break
        if edit.line in found or not _is_right(built, cases[0], numbers[edit]):
            continue
        number = numbers[edit]
        if all(_is_right(built, case, number, fresh=k == 0, waits=True) for k, case in enumerate(cases)):
            found[edit.line] = edit
    return found


def _built(judged: JudgedPart, second: OtherBuilds, source: str, tried: Sequence[Edit]) -> EditedBuild | None:
    """Build all edits that compile; return None if too many fail.

    On a line with an error, first leave out the edits that add a statement, then all edits of the line.
    """
    bad, lines = set[Edit](), set[int]()
    for _ in range(MOST_BUILDS):
        text = edited_source.combined(source, judged.kernel.part.function, tried, bad)
        built = second.edited(judged.kernel.part, text) if text else None
        if built is None or not built.bad:
            return built
        for line in {line - 1 for line in built.bad}:
            on_line = {edit for edit in tried if line in edit.lines(source)} - bad
            bad |= on_line if line in lines else {edit for edit in on_line if edit.is_insertion} or on_line
            lines.add(line)
    return None


def _is_right(
    built: EditedBuild, case: Case, number: int, *, fresh: bool = False, waits: bool = False
) -> bool:
    run = built.call(case, number, fresh=fresh, waits=waits)
    if run is not None and run.call.signal_name == "SIGABRT" and not fresh:
        run = built.call(case, number, fresh=True, waits=waits)
    return run is not None and run.call.status == "ok" and run.is_right


def _words(edit: Edit) -> str:
    if edit.words:
        return edit.words
    return f"{edit.new} in place of {edit.old}" if edit.new else f"without {edit.old}"


def _small(kernel: Kernel) -> list[Case]:
    """Return the public cases with a small output, the smallest first."""
    sized = [
        (math.prod(binding.output_shape(kernel.part, {**kernel.shape, **case.shape})), case)
        for case in kernel.part.cases
        if not case.hidden
    ]
    return [case for size, case in sorted(sized, key=lambda each: (each[0] < 2, each[0])) if size <= LARGEST]
