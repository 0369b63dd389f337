"""Search for one small edit of a student's function that makes a wrong part right on all small public inputs.

The line of such an edit is the line of the mistake, or one at which the mistake can be corrected. All edits are
compiled together (`grader.source.edited_source`), and each is called on the smallest wrong input first. An edit that
only hides the mistake may be right on these inputs by chance, so the found edits are also called on further inputs.

All limits count tries or CPU time: on a busy machine the search takes longer and finds the same edits.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from grader.assignment.records import Case
from grader.explain import size_probe
from grader.explain.edited_calls import LIKELY_S, SMALL_S, TINY, TINY_S, EditedCalls
from grader.explain.judged_part import EditBuilder, EditedBuild, JudgedPart
from grader.explain.repair_inputs import (
    MOST_FURTHER,
    beyond_tiles,
    expected_cpu_s,
    further_cases,
    output_elements,
    public_cases,
    tiny_case,
)
from grader.source import cpptext, dataflow, edited_source, edits, scopes
from grader.source.edited_source import Edit

#: Limits on attempts to build, on edits in one build, on lines in a message, and on elements of a compared output.
MOST_BUILDS, MOST_TOGETHER, MOST_LINES, LARGEST = 8, 800, 3, 1 << 16
#: Limit on the output elements of the public inputs on which only found edits are called.
LARGEST_OF_FOUND = 1 << 20
#: In the first PRECISE builds, a compiler error removes only the edit at its place. In later builds it also removes
#: other edits of the same line (see `_built`).
PRECISE = 3
#: A text of at most this many characters may be written twice in a description.
LONGEST_TWICE = 20
#: Edits near a wrong access are tried first: from ABOVE lines before it to BELOW lines after it.
ABOVE, BELOW = 12, 3
#: A declaration of a variable. Group 1 is its name.
_DECLARED = re.compile(r"\b(?!return\b)[A-Za-z_]\w*(?:<[^<>]*>)?[\s&*]+(\w+)\s*(?=[=;\[{(])")
_SUBTRACTS = re.compile(r"[eE]xp\w*\s*\([^;()]*(?:\([^()]*\)[^;()]*)*-")


def repairs(
    judged: JudgedPart,
    second: EditBuilder,
    smallest: Mapping[str, int] | None = None,
    near: Collection[int] = (),
    facts: Collection[int] = (),
    helper: str = "",
) -> str:
    """Return a text with the edits that correct the function, at most one for each line; "" if no edit does.

    Args:
        smallest: smallest sizes that fail, at which each edit is called first; None if they are unknown.
        near: lines near a wrong access, whose edits are tried first. After a crash each edit needs a new runner, so not
            all edits can be tried.
        facts: lines that the source text shows to be wrong. If there are any, edits that replace text of other lines
            are dropped.
        helper: the only function to edit, if it is not the part's own.

    Only if no edit of the first build is right, the less likely edits are built and tried.
    """
    body, part = judged.kernel.body, judged.kernel.part
    if body is None or part.table:
        return ""
    source = judged.source.read_text(errors="replace")
    reached = [at.body for at in dataflow.reached(body)]
    names = [helper] if helper else [one.name for one in reached if one.name not in judged.tested]
    rows = [row for one in reached for row in one.rows[one.first - 1 : one.last]]
    cases, file = public_cases(judged.kernel, LARGEST), judged.source.name
    sized = size_probe.choose(judged.kernel)
    if (
        smallest
        and sized is not None
        and not any(judged.kernel.wrong.get(case.name) is not None for case in cases)
    ):
        # All wrong cases are large: add a small one.
        cases.insert(0, replace(sized, shape={**sized.shape, **smallest}))
    text, changed = edited_source.bracketed(source, re.findall(r"\w+", "\n".join(rows)))
    plain = second.edited(part, text) if 0 < len(changed) <= MOST_LINES else None
    is_right = partial(EditedCalls(plain).is_right, number=0) if plain is not None and not plain.bad else None
    if is_right is not None and all(map(is_right, cases)):
        lines = [f"  {file}:{line}: {body.rows[line - 1].strip()[:160]}" for line in changed]
        words = "With brackets around the whole text of this macro, and around its parameters, the part is"
        return "\n".join([f"{words} right on all {len(cases)} inputs that were tried:", *lines])
    tried, found, count = edits.candidates(source, names), dict[int, Edit](), len(cases)
    used = set(re.findall(r"\w+", " ".join(body.rows[line - 1] for line in near)))
    likely = {line - k for line in near for k in range(-BELOW, ABOVE)}
    macros = cpptext.macros(cpptext.blanked(source))
    likely |= {scopes.line_of(source, each.begin) for each in macros if each.name in used}
    tried.sort(key=lambda edit: (edit.line not in near, edit.line not in likely))
    for begin in range(0, len(tried), MOST_TOGETHER):
        if not found:
            found, count = _found(
                judged, second, source, tried[begin : begin + MOST_TOGETHER], cases, smallest
            )
    # An edit that only adds a statement, such as a loop that clears an array, makes no wrong access by itself.
    if found and (near or any(edit.old for edit in found.values())):
        found = _clean(judged, second, source, found, cases)
    found = _causes(found, facts)
    if not found:
        return ""
    edited = {line: _words(edit, source) for line, edit in found.items()}
    # If an edit resets a variable, also show the line of the student's file that sets the variable.
    beside = {edit.declared: edit.note for edit in found.values() if edit.declared not in (0, *found)}
    shown, others = (
        [f"  {file}:{line}: {body.rows[line - 1].strip()[:160]}   ({words})" for line, words in each.items()]
        for each in (edited, beside)
    )
    change = "this change" if len(found) == 1 else "one of these changes"
    lead = f"With {change} the part is right on all {count} inputs that were tried:"
    return "\n".join([lead, *shown, *(["See also:"] if others else []), *others])


def _clean(
    judged: JudgedPart,
    second: EditBuilder,
    source: str,
    found: Mapping[int, Edit],
    cases: Sequence[Case],
) -> dict[int, Edit]:
    """Return the edits with which sanitizers find no wrong access: with others, a wrong one may only go unnoticed.

    Without a build with sanitizers, return all edits.
    """
    kept = sorted(found.values(), key=lambda edit: edit.places)
    text = edited_source.combined(source, judged.kernel.part.function, kept)
    built = second.edited(judged.kernel.part, text, checked=True) if text else None
    if built is None or built.bad:
        return dict(found)
    clean = {edit for number, edit in enumerate(kept, 1) if built.is_clean(cases, number)}
    return {line: edit for line, edit in found.items() if edit in clean}


def _causes(found: Mapping[int, Edit], facts: Collection[int]) -> dict[int, Edit]:
    """Return up to MOST_LINES of the edits. If there are `facts`, edits that replace text of other lines are dropped.
    Weak edits are dropped if other edits remain, and all that are not sure if a sure one was found."""
    kept = [edit for edit in found.values() if not facts or edit.line in facts or not edit.old]
    kept = [edit for edit in kept if not edit.is_weak] or kept
    kept = [edit for edit in kept if edit.is_sure] or kept
    return {edit.line: edit for edit in kept[:MOST_LINES]}


def _found(
    judged: JudgedPart,
    second: EditBuilder,
    source: str,
    tried: Sequence[Edit],
    cases: Sequence[Case],
    smallest: Mapping[str, int] | None,
) -> tuple[dict[int, Edit], int]:
    """Return (the first edit of each line that makes the function right on all cases, number of tried inputs)."""
    kernel, numbered = judged.kernel, sorted(tried, key=lambda edit: edit.places)
    built = _built(judged, second, source, numbered)
    if built is None or built.bad:
        return {}, 0
    search = EditedCalls(built)
    # Even without an edit this build may be right by chance (if the kernel reads outside of an array, say): then stop.
    runs = [built.call(case, 0, fresh=True, cpu_s=LIKELY_S) for case in cases]
    measured = [(case, run) for case, run in zip(cases, runs, strict=True) if run and run.call.status == "ok"]
    used = {
        k: 0.0 if run is None else run.call.cpu_s or 0.0
        for k, run in enumerate(runs)
        if run is None or run.call.status != "ok" or not run.is_right
    }
    # Leave out slow inputs if there are others: on slow ones, a right edit would reach the limit of its calls.
    quick = {k for k, cpu_s in used.items() if cpu_s < SMALL_S / 2} or set(used)
    wrong = sorted((cases[k] for k in sorted(quick)), key=lambda case: not built.can_choose(case))
    cases = [case for k, case in enumerate(cases) if k in quick or k not in used]
    if not wrong:
        return {}, 0
    drawn = functools.cache(lambda: [*filter(built.can_choose, further_cases(kernel, wrong))])
    tiny = tiny_case(kernel, search, wrong, smallest, len(numbered) + 1, drawn)
    cases = [*tiny, *wrong, *(case for case in cases if case not in wrong)]
    numbers = {edit: number for number, edit in enumerate(numbered, 1)}
    larger = [
        case
        for case in public_cases(kernel, LARGEST_OF_FOUND)
        if output_elements(kernel, case) > LARGEST and expected_cpu_s(kernel, case, measured) < LIKELY_S
    ]
    larger += filter(built.can_choose, beyond_tiles(kernel, wrong[0], edits.tile_lengths(source)))
    found, further = dict[int, Edit](), list[Case]()
    is_tiny = output_elements(kernel, cases[0]) <= TINY
    search.work = 0
    # Inputs on which exp() overflows unless a maximum is subtracted.
    large = replace(wrong[0], distribution=kernel.oracle.overflowing or wrong[0].distribution)
    body = kernel.body
    subtracts = body is not None and any(
        _SUBTRACTS.search(at.body.all_code()) for at in dataflow.reached(body)
    )
    # Many wrong edits are right on a tiny output: try a second case before `all_right` starts a new runner.
    tries = list(zip(cases, (TINY_S if is_tiny else SMALL_S, SMALL_S), strict=False))
    for edit in search.passing(tried, numbers, tries):
        if len(found) > MOST_LINES:
            break
        if edit.line in found:
            continue
        number = numbers[edit]
        if search.all_right(cases, number):
            further = further or search.by_rightness(drawn())[:MOST_FURTHER]
            # If the function subtracts a maximum, an edit that makes finite numbers infinite hides the mistake.
            if (
                search.all_right(further, number)
                and not search.is_wrong(larger, number)
                and (not subtracts or search.is_finite(large, number) or not search.is_finite(large, 0))
            ):
                found[edit.line] = edit
    if len(found) > 1 and kernel.oracle.overflowing:
        # If any edit is right on these inputs, drop the edits that are wrong on them.
        found = {
            line: edit for line, edit in found.items() if search.is_right(large, numbers[edit], fresh=True)
        } or found
    return found, len(cases) + len(further) + len(larger)


def _built(judged: JudgedPart, second: EditBuilder, source: str, tried: Sequence[Edit]) -> EditedBuild | None:
    """Return a build with all edits that compile; None if MOST_BUILDS tries fail, or no build is possible.

    A compiler error removes edits from the next build. In the first PRECISE builds, an error removes the edit at its
    place. In later builds, or if no edit is at that place, it removes the edits of its line that add a statement. The
    next error of this line removes all other edits of the line. If an error remains at a line without edits, those in
    the declarations of the variables on this line are removed.
    """
    bad, lines = set[Edit](), set[int]()
    for k in range(MOST_BUILDS):
        text = edited_source.combined(source, judged.kernel.part.function, tried, bad)
        built = second.edited(judged.kernel.part, text) if text else None
        if built is None or not built.bad:
            return built
        before, named = len(bad), set[int]()
        places = [(edited_source.number_before(text, *place), place[0]) for place in built.bad]
        for number, line in sorted(places, reverse=True):
            on_line = {edit for edit in tried if line - 1 in edit.lines(source)} - bad
            if number and tried[number - 1] in bad and tried[number - 1].is_insertion:
                continue  # a further error at an edit that is removed already
            if k < PRECISE and number and tried[number - 1] in on_line:
                one = tried[number - 1]
                # The same reset of a variable would not compile in other lines either.
                reset = (one.new, one.declared) if one.declared and not one.old else ()
                bad |= {edit for edit in tried if edit is one or (edit.new, edit.declared) == reset}
                named.add(line)
            elif line in named:
                continue  # probably a consequence of the edit of this line that was removed for an earlier error
            elif line not in lines:
                bad |= {edit for edit in on_line if edit.is_insertion} or on_line
                lines.add(line)
            else:
                bad |= on_line
        if len(bad) == before:
            # An edit in a declaration may remove the variable, or change the type of an `auto`. The error is at a use.
            rows = source.splitlines()
            used = {name for _, line in places for name in re.findall(r"\w+", rows[line - 2])}
            declared = {n for n, row in enumerate(rows, 1) if used & set(_DECLARED.findall(row))}
            bad |= {edit for edit in tried if declared & set(edit.lines(source))}
        if len(bad) == before:
            return None
    return None


def _words(edit: Edit, source: str = "") -> str:
    """Return the description of an edit: "NEW in place of OLD".

    If the line has the old text twice, both texts include the words before it: `j > N - 1` in place of `j > N`.
    """
    if edit.words:
        return edit.words
    begin, old, new = edit.places[0][0], edit.old, edit.new
    if source[:begin].endswith(old):
        begin -= len(old)
    if source.startswith(old, begin) and old:
        first, end = source.rfind("\n", 0, begin) + 1, source.find("\n", begin)
        # Do not stop at an operator or inside brackets.
        while len(re.findall(rf"(?:\b|(?!\w)){re.escape(old)}(?!\w)", source[first:end])) > 1 or (
            old != edit.old
            and (not re.match(r"[\w(]", old) or any(old.count(b) > old.count(a) for a, b in ("()", "[]")))
        ):
            more = re.search(r"(?:\w+|[^\w\s])\s*$", source[first:begin])
            if more is None:
                break
            begin -= len(more[0])
            old, new = more[0] + old, more[0] + new
        after = begin + len(old)
        while old != edit.old and any(old.count(a) > old.count(b) for a, b in ("()", "[]")) and after < end:
            old, new, after = old + source[after], new + source[after], after + 1
    if len(old) > LONGEST_TWICE and new.startswith(old):
        return f"with `{new[len(old) :].strip()}` after {old}"
    return f"{new} in place of {old}" if new else f"without {old}"
