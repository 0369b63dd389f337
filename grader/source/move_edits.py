"""Edits that move a statement, a loop or a declaration. See `grader.source.edits`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from grader.source.edited_source import Edit, insertion, ranked_edit
from grader.source.landmarks import closed
from grader.source.scopes import (
    WORD,
    Name,
    collapsed,
    for_loops,
    in_scope,
    line_of,
    outer_loops,
    simple_statements,
    statement_end,
    while_loops,
    words_declared,
    words_in,
)
from grader.source.statement_edits import (
    ACTS,
    ADDED_TO,
    MOST_LEVELS,
    MOST_STEPS,
    MOST_UNITS,
    OWN,
    SET_OF,
    braces,
    can_leave,
)
from grader.source.word_edits import FLOAT

#: Limit on the characters of a statement to move.
LONGEST_UNIT = 400
#: A declaration with a first value. Groups: type, name, first value.
_FIRST_VALUE = re.compile(
    r"([A-Za-z_][\w:]*(?:<[^;<>]*>)?)\s+(\w+)(\s*\([^;{}]*\)|\s*=\s*-?[\w.:<>()]*(?:\d|INF|max|MAX)[\w.:<>()]*)$"
)
_SET_BEFORE = re.compile(r"([A-Za-z_]\w*)\s*(?:\[[^][]*\])?\s*[-+*/]?=(?!=)")


def moves(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that move a statement: past a statement or loop beside it, or into or out of a loop."""
    loops = list(outer_loops(code, begin, end))
    statements = simple_statements(code, begin, end)
    blocks = {one.block: closed(code, one.block, "{}") for one in statements}
    variables = {each.name for each in known}
    units = [(one.block, (one.begin, one.end, 0)) for one in statements if not one.is_bare]
    beside = {block: [unit for of, unit in units if of == block] for block in blocks}
    """Statements and loops by their block: begin, end, and the offset after the head of a loop (0: no loop)."""
    for at, body, last in loops:
        if around := [block for block, ended in blocks.items() if block <= at < ended]:
            beside[max(around)].append((at, last, body))
    for one in statements[:MOST_UNITS]:
        # To "move" a declaration, keep it, and assign its value to the variable again at the new place.
        own = OWN.match(one.text)
        # Do not assign a constant again: the variable would lose a value that later lines read, such as a maximum.
        is_constant = own and re.match(rf"\s*(?:{FLOAT}|\d+)\s*(?:,|$)", one.text[own.end() :])
        if one.is_bare or is_constant or not (own or ACTS.match(one.text)):
            continue
        text = one.text[own.start(2) :] if own else one.text
        # Move the statement only to places at which all of its variables are in scope.
        names = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*\b(?!\s*(?:\(|::))", one.text))
        names |= words_in(code, one.text) & variables
        to = list[tuple[int, str]]()
        is_set = ADDED_TO.match(text)
        changed = "|".join(names if is_set is None else re.findall(r"\w+", is_set[1])[:1])
        passed = rf"\b(?:{changed})\b|{SET_OF.format('|'.join(names))}"
        row = sorted(beside[one.block])
        k = [each[0] for each in row].index(one.begin)
        for step, side, edge in ((1, "after", "start"), (-1, "before", "end")):
            is_tried = k + step >= 0 and (not own or step > 0)
            for at, last, body in row[k + step :: step][:MOST_STEPS] if is_tried else ():
                line = line_of(code, body or at)
                if line == line_of(code, one.begin) or not re.search(passed, code[at:last]):
                    continue
                # Before a loop that adds it up, a sum is still 0.
                if step < 0 and any(_is_begun_by(code, name, one.block, at, last) for name in names):
                    continue
                to.append((last if step > 0 else at, f"{side} {'the loop of ' if body else ''}line {line}"))
                if step > 0 and not own and body:
                    # The loop inside that loop may be the one that needs the statement again.
                    nested = [one for one in loops if body < one[0] and one[2] <= last][:MOST_STEPS]
                    for _, inner, ended in nested:
                        opened = re.compile(r"\s*\{").match(code, inner)
                        if opened and re.search(passed, code[inner:ended]):
                            where = f"at the start of the loop of line {line_of(code, inner)}"
                            to.append((opened.end(), where))
                if body and (inside := re.compile(r"\s*\{").match(code, body)):
                    place = inside.end() if step > 0 else last - 1
                    to.append((place, f"at the {edge} of the loop of line {line}"))
        for at, where in to:
            # At later places in the statement's own block, all its names are in scope.
            if one.begin < at < blocks[one.block] or names <= in_scope(known, at).keys():
                places = [insertion(at, f" if (@) {{ {text}; }} ")]
                places += [] if own else [insertion(one.begin, "if (!(@)) ")]
                words = f"this line {where}"
                yield ranked_edit(code, 1.4, one.begin, f"`{one.text};`", "", places, words)


def _is_begun_by(code: str, name: str, block: int, at: int, last: int) -> bool:
    """Return True if a loop from `at` to `last` adds up a variable that its block declares with a constant."""
    declared = rf"\b(?:float|double|auto)\s+{name}\s*(?:=\s*(?:{FLOAT}|0)\s*)?;"
    is_declared = re.compile(declared).search(code, block, at) is not None
    return is_declared and re.compile(rf"(?<![\w.]){name}\s*\+?=(?!=)").search(code, at, last) is not None


def moved_loops(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that move a short loop before or after the loop around it, or before the loop directly before it."""
    loops = list(outer_loops(code, begin, end))
    for at, _, last in loops[:MOST_UNITS]:
        around, text = [loop for loop in loops if loop[1] <= at < loop[2]], " ".join(code[at:last].split())
        if not around or len(text) > LONGEST_UNIT or "#" in text:
            continue
        for first, body, _ in [loop for loop in loops if loop[2] <= at and not code[loop[2] : at].strip()]:
            places = [insertion(first, f" if (@) {{ {text} }} "), insertion(at, "if (!(@)) ")]
            words = f"this loop before the loop of line {line_of(code, body)}"
            yield ranked_edit(code, 1.3, at, f"`{text.split('{')[0].strip()}`", "", places, words)
        own = {*words_declared(code, text), *(each.name for each in known if at <= each.begin < last)}
        used = " ".join([text, *(words_in(code, text) & {each.name for each in known})])
        first, body, ended = around[-1]
        for place, side in ((first, "before"), (ended, "after")):
            if can_leave(code, used, code[first:ended], own):
                places = [insertion(place, f" if (@) {{ {text} }} "), insertion(at, "if (!(@)) ")]
                words = f"this loop {side} the loop of line {line_of(code, body)}"
                yield ranked_edit(code, 1.45, at, f"`{text.split('{')[0].strip()}`", "", places, words)


def own_loops(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that move a statement out of the loops around it, to the place before or after one of these loops.

    The moved statement may still need the loops that it leaves. So some edits put copies of these loops around it: of
    all, or of all but the outermost one.
    """
    apart = {at for at, _, _ in outer_loops(code, begin, end)}
    shared = {at for nest in collapsed(code, begin, end) for at, _ in nest}
    loops = sorted([*for_loops(code, begin, end), *while_loops(code, begin, end)])
    sets = re.compile(r"(?<=[;{})])\s*(?!for\b|if\b)[\w.]+(?:\[[^][]*\])*\s*[-+*/]?=(?!=)")
    for at, last in islice(_units(code, loops), MOST_UNITS):
        acts = sets.search(code, at, last)
        acts_on = line_of(code, acts.end()) if acts else 0
        used = words_in(code, code[at:last])
        around = [loop for loop in loops if loop[1] <= at < loop[2]][: -MOST_LEVELS - 1 : -1]
        for level, (outer, body, ended) in enumerate(around):
            if outer in shared:
                continue
            inner = [code[one[0] : one[1]] for one in around[level - 1 :: -1]] if level else []
            own = words_declared(code, code[outer:body])
            inside = {each.name for each in known if body < each.begin < at < each.end}
            inside |= words_declared(code, code[body:at])
            inside -= words_declared(code, f"{' '.join(inner)} {code[at:last]}")
            words = used | words_in(code, " ".join(inner))
            # If the statement uses constants that the loop declares, copy their declarations, too.
            needed = sorted(words & inside)
            declared = [_constant(code, name, body, at) for name in needed] if not level else [""]
            declared = [text if len(inside & set(WORD.findall(text))) == 1 else "" for text in declared]
            for copied in (inner, [code[outer:body], *inner]):
                if (copied is inner and words & (own | inside)) or (words & inside and not all(declared)):
                    continue
                copy = " ".join(f"{' '.join(copied)} {{ {' '.join(declared)} {code[at:last]} }}".split())
                text = f" if (@) {{ {copy} }} "
                how = "this statement" if "\n" in code[at:last] else "this line"
                how += f" and the declaration of {' and '.join(needed)}" if any(declared) else ""
                how += " in a loop of its own" if copied else ""
                # Add braces if this loop is another loop's body without braces.
                opens, closes = braces(outer, loops, is_in_block=outer in apart)
                for side in ("before", "after"):
                    shown = f"{how} {side} the loop of line {line_of(code, outer)}"
                    beside = [insertion(outer, opens + text), insertion(ended, closes)]
                    if side == "after":
                        beside = [insertion(outer, opens), insertion(ended, closes[:-2] + text + closes[-2:])]
                    places = [*(each for each in beside if each[2]), insertion(at, "if (!(@)) ")]
                    # An edit is weak if the loop sets values that the statement then uses too early.
                    is_weak = side == "before" and bool(used & set(_SET_BEFORE.findall(code, body, at)))
                    rank = 1.3 + 0.05 * len(copied)
                    _, edit = ranked_edit(code, rank, at, code[at:last], "", places, shown)
                    other = acts_on if acts_on != edit.line else 0
                    yield rank, replace(edit, is_weak=is_weak, declared=other, note="the same statement")


def _constant(code: str, name: str, begin: int, end: int) -> str:
    """Return the declaration of the constant or pointer `name` between two offsets; "" without one."""
    kind = rf"(?:const(?:expr)?\s+\w+\s*\*?|\w+\s*\*)\s*{name}\s*=[^;{{}}]*;"
    found = re.compile(kind).search(code, begin, end)
    return found[0] if found else ""


def _units(code: str, loops: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of the statements that may be moved, in each loop with braces. `for` and `if` are included."""
    for _, body, last in loops:
        opened = re.compile(r"\s*\{").match(code, body)
        at = opened.end() if opened else last
        while at < last - 1:
            at += len(code[at:last]) - len(code[at:last].lstrip())
            ended = statement_end(code, at)
            while (other := re.compile(r"\s*else\b").match(code, ended)) is not None:
                ended = statement_end(code, other.end())
            text = code[at:ended]
            is_moved = len(text) <= LONGEST_UNIT and (ACTS.match(text) or re.match(r"(?:for|if)\b", text))
            if is_moved and not re.search(r"#|\b(?:return|break|continue)\b", text):
                yield at, ended
            at = max(ended, at + 1)


def kept(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that move a declaration out of the loop around it, so that its variable keeps its value."""
    loops = list(outer_loops(code, begin, end))
    for one in simple_statements(code, begin, end):
        own = _FIRST_VALUE.match(one.text)
        around = [loop for loop in loops if loop[1] <= one.begin < loop[2]]
        if own is None or not around:
            continue
        # Leave out first values with a name that the loop declares.
        if set(WORD.findall(own[3])) & words_declared(code, code[around[-1][0] : one.begin]):
            continue
        (kind, name, value), kept = own.groups(), f"gpt149_kept_{own[2]}_{one.begin}"
        places = [
            insertion(around[-1][0], f" {kind} {kept}{value}; "),
            insertion(one.begin + own.start(2), "gpt149_new_"),
            insertion(one.end - 1, f"; {kind}& {name} = @ ? {kept} : gpt149_new_{name}"),
        ]
        words = f"this line before the loop of line {line_of(code, around[-1][1])}"
        yield ranked_edit(code, 1.3, one.begin, f"`{one.text};`", "", places, words)
