"""Edits of loops and conditions: another bound, a missing condition, loops exchanged. See `grader.source.edits`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations, islice, pairwise

from grader.source.edited_source import MOST_DEPTH, Edit, insertion, ranked_edit, replaced, wrapped
from grader.source.landmarks import closed
from grader.source.scopes import (
    TILE_END,
    WORD,
    Name,
    collapsed,
    for_loops,
    hiding,
    in_scope,
    is_whole,
    line_of,
    loop_bodies,
    outer_loops,
    row_before,
    scope_end,
    statement_end,
    while_loops,
)

#: Limits on `if`s of a function, uses of a counter that hides an outer variable, loops and pairs to exchange.
MOST_IFS, MOST_HIDDEN, MOST_LOOPS, MOST_PAIRS = 12, 4, 64, 40
#: The head of a `for` up to the end of its condition. Group 1 is the condition.
_CONDITION = re.compile(r"\bfor\s*\([^;{}]*;\s*([^;{}]*?)\s*(?=;)")
_FOR = re.compile(
    r"\bfor\s*\(" r"[\w:\s]*?\b(\w+)\s*=([^;]*);\s*\1\s*<\s*([^;&|]+);(?:\s*\1\s*\+=\s*([^;)]+)|[^;)]*)"
)
#: The right side of a comparison, if it is one name.
_COMPARED = re.compile(r"[<>]=?\s*([A-Za-z_]\w*)(?=\s*(?:&&|\|\||[;)?]))")
#: A loop that is left at its last piece: `if (hi > n) break;`. Groups: end of the piece, size, statement.
#: A condition that is one comparison. Groups: what it follows, the first operand, the operator, the second operand.
_TEST = re.compile(
    r"(\bif\s*\(|[=(])((?:[\w.\s*+-]|\[[^][]*\])+?)(?<![<>=-])([<>]=?)(?![<>=])"
    r"((?:[\w.\s*+-]|\[[^][]*\])+)(?=\)\s*(?![;,+*/<>=.)&|-])|\?)"
)
#: The condition of a loop over whole tiles only. Groups: all of it, first index, length, end.
_WHOLE_TILES = re.compile(r"(?<=;)\s*((\w+)\s*\+\s*(\w+)\s*<=\s*(\w+))(?=\s*;)")
_JUMPS = re.compile(r"\b(?:continue|break|return|goto)\b[^;]{0,200};\s*\}$")
_LEFT_OUT = re.compile(r"\bif\s*\(\s*([\w.]+)\s*>=?\s*(\w+)\s*\)\s*\{?\s*(break|continue)(?=\s*;)")
#: A value from a call with plain arguments, as in `blocks = split(N, Br);`, and the value of an exp() of a difference.
_OF_CALL = re.compile(r"[\w>]\s+\w+\s*=\s*((\w+)\((?:\w+,\s*)*\w+\))(?=\s*;)")
_EXPONENTIAL = re.compile(r"[^=!<>+*/-]=\s*((?:std::)?expf?\([^-;?()]+-[^-;?()]+\))(?=\s*[;,])")
#: A division by a name: `a /= b;` (groups 1 and 2) or `= a / b;` (groups 3 and 4).
_DIVIDED = re.compile(r"(?<=[;{}])\s*(\w+)\s*/=\s*(\w+)\s*;|=\s*(\w+|\([^()]*\))\s*/\s*(\w+)\s*;")
#: A test that skips. Group 1 is its jump. NEARBY is the largest distance of a test, in characters.
_SKIPS = re.compile(r"\bif\s*\([^;{}]*\)\s*(continue|return -1)\s*;")
NEARBY = 300
#: A step of a pointer by a name or a product of names. Groups: pointer, step. MOST_SIZES limits the sizes in a product.
_POINTER_STEP = re.compile(r"\b([A-Za-z_]\w*)\s*\+=\s*([A-Za-z_]\w*(?:\s*\*\s*[A-Za-z_]\w*)*)(?=\s*[;,)])")
MOST_SIZES = 8
#: A sum of integers that is compared with a size, as in `j0 + Bc == N`.
_REACHED = re.compile(r"([A-Za-z_]\w*\s*\+\s*\w+)\s*([=!]=)\s*([A-Za-z_]\w*)(?=\s*[;,)&|?])")


def thread_counts(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that replace the number of threads by the thread's number, or by that of the next region.

    Other edits start all threads in place of a fixed number, for which other lines do not allow.
    """
    for one in re.compile(r"\bomp_get_(?:num|max)_threads\(\)\s*-\s*1\b").finditer(code, begin, end):
        new = "omp_get_thread_num()"
        yield ranked_edit(code, 0, one.start(), one[0], new, replaced(one.span(), new))
    for one in re.compile(r"\bomp_get_(?:num|max)_threads(?=\(\))").finditer(code, begin, end):
        for new in ("omp_get_max_threads", "omp_get_thread_num")[one[0] == "omp_get_max_threads" :]:
            yield ranked_edit(code, 0, one.start(), f"{one[0]}()", f"{new}()", [(*one.span(), new)])
    new = "omp_get_max_threads()"
    for one in re.compile(r"\bnum_threads\s*\(\s*(\d+)\s*\)").finditer(code, begin, end):
        yield ranked_edit(code, 0.7, one.start(1), one[1], new, replaced(one.span(1), new))


def unsigned_counters(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that make an unsigned counter signed if its loop ends only below 0."""
    for one in re.compile(r"(?<=;)\s*(\w+)\s*>=\s*0\s*(?=;)").finditer(code, begin, end):
        name, shown = one[1], one[0].strip()
        kind = re.compile(rf"\b(?:unsigned|size_t|uint\d+_t)\b[^;{{}}()]*\b{name}\b")
        if kind.search(code, begin, one.start()):
            words = f"with a signed {name}: an unsigned number is always >= 0"
            cast = [insertion(one.start(1), f"@ ? (sizeof {name} < 8 ? (int){name} : (long){name}) >= 0 : ")]
            yield ranked_edit(code, 0, one.start(1), shown, "", cast, words)


def clipped(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that limit the end of a last piece in place of leaving the loop: `hi = n` for `break`."""
    for one in _LEFT_OUT.finditer(code, begin, end):
        new = f"{one[1]} = {one[2]}"
        place = insertion(one.start(3), f" if (@) {new}; else ")
        yield ranked_edit(code, 0.8, one.start(3), one[3], new, [place])


def exchanged_loops(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that exchange a loop with the loops directly in it, which have the same bounds."""
    heads = list(_FOR.finditer(code, begin, end))[:MOST_LOOPS]
    begun = [(one, closed(code, code.find("(", one.start()) + 1, "()")) for one in heads]
    loops = [(one.start(), body, statement_end(code, body), one[1]) for one, body in begun]
    for at, body, last, name in loops:
        inside = [loop for loop in loops if body <= loop[0] and loop[2] <= last]
        direct = [loop for loop in inside if not any(one[1] <= loop[0] < one[2] for one in inside)]
        begins, ends = [body, *(loop[2] for loop in direct)], [*(loop[0] for loop in direct), last]
        rest = "".join(code[a:b] for a, b in zip(begins, ends, strict=True))
        same = [re.sub(rf"\b{loop[3]}\b", name, code[loop[0] : loop[1]]) == code[at:body] for loop in direct]
        is_one = len({loop[3] for loop in direct}) == 1
        if not is_one or not all(same) or re.search(rf"\b{name}\b", rest):
            continue
        other, places = direct[0][3], list[tuple[int, int, str]]()
        for loop in direct:
            kept = f" {{ const auto gpt149_a = {name}, gpt149_b = {other}; {{ "
            new = f"auto {name} = @ ? gpt149_b : gpt149_a, {other} = @ ? gpt149_a : gpt149_b; "
            # `_order` sorts closing braces by `mark`: the braces of this loop come after those of inner loops.
            depth = sum(body <= loop[0] < last for _, body, last in for_loops(code, begin, end))
            mark = f"/*{MOST_DEPTH - depth - 1:03}+*/"
            places += [insertion(loop[1], kept + new), insertion(loop[2], f"{mark} }} }}")]
        words = f"with this loop over {other} and the loop of line {line_of(code, direct[0][0])} over {name}"
        yield ranked_edit(code, 1.2, at, name, other, places, words)


def exchanged_exps(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that exchange the values of two factors of a running softmax."""
    exps = [one.span(1) for one in _EXPONENTIAL.finditer(code, begin, end)]
    for at, to in islice(pairwise(exps), MOST_PAIRS):
        early, late = code[slice(*at)], code[slice(*to)]
        if early != late and not re.search(r"[{}]", code[at[1] : to[0]]):
            places = [*replaced(at, late), *replaced(to, early)]
            lines = line_of(code, at[0]), line_of(code, to[0])
            words, note = f"{late} in place of {early}", f"{early} in place of {late}"
            shown = f"{words}, and {note} in line {lines[1]}"
            yield 0.8, Edit(lines[0], early, late, tuple(places), shown, declared=lines[1], note=note)


def exchanged_names(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that swap two integers: two bounds of one condition, two initial values of a form, two loops' steps.

    For example, an edit exchanges Br and Bc in `Tc = N / Br, Tr = N / Bc`.
    """
    found = _COMPARED.finditer(code, begin, end)
    bounds = [one for one in found if is_whole(in_scope(known, one.start()).get(one[1], ""))]
    for first, second in pairwise(bounds):
        if first[1] != second[1] and not re.search(r"[;{}]", code[first.end() : second.start()]):
            swapped = ((*first.span(1), second[1]), (*second.span(1), first[1]))
            old, new = f"{first[1]}, {second[1]}", f"{second[1]}, {first[1]}"
            words = f"{first[1]} and {second[1]} exchanged"
            yield ranked_edit(code, 1.0, first.start(), old, new, swapped, words)
    steps = [one.span(1) for one in re.compile(r"\+=\s*(\w+)(?=\s*\))").finditer(code, begin, end)]
    alike = {"": steps}
    """Spans of expressions by their form: the text with "w" in place of each word; "" for steps of loops."""
    for each in known:
        if begin <= each.begin < end and is_whole(each.kind):
            set_ = re.compile(rf"\b{each.name}\s*=(?!=)\s*")
            for name in list(set_.finditer(code, max(begin, each.begin - 200), each.begin))[-1:]:
                form = WORD.sub("w", code[name.end() : each.begin])
                # Leave out expressions with `?`: other edits put brackets around the condition alone, and those would
                # overlap with the brackets that this edit puts around the whole expression.
                if form != "w" and "?" not in form:
                    alike.setdefault(form, []).append((name.end(), each.begin))
    done = {span for same in alike.values() for span in same}
    for one in _OF_CALL.finditer(code, begin, end):
        if one.span(1) not in done:
            alike.setdefault(one[2] + WORD.sub("w", one[1]), []).append(one.span(1))
    pairs = [pair for same in alike.values() for pair in islice(combinations(same, 2), MOST_PAIRS)]
    for spans in pairs:
        texts, scopes = [code[at:last] for at, last in spans], [in_scope(known, at) for at, _ in spans]
        line, other = (line_of(code, at) for at, _ in spans)
        for old, new in dict.fromkeys(zip(*map(WORD.findall, texts), strict=True)):
            is_number = all(is_whole(scope.get(name, "")) for name in (old, new) for scope in scopes)
            if old == new or not is_number:
                continue
            places = list[tuple[int, int, str]]()
            for span, text, a, b in zip(spans, texts, (old, new), (new, old), strict=True):
                other_text = re.sub(rf"\b{a}\b", b, text)
                places += replaced(span, f"(decltype({text}))({other_text})")
            words, note = f"{new} in place of {old}", f"{old} in place of {new}"
            shown = f"{words}, and {note} in line {other}"
            yield 1.0, Edit(line, old, new, tuple(places), shown, declared=other, note=note)


def comparisons(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that exchange `<` and `<=`."""
    for one in re.compile(r"\b(\w+)\s*(<=?)(?![<=])\s*(?=[\w(])(?!\w+\s*[;)])").finditer(code, begin, end):
        if is_whole(in_scope(known, one.start()).get(one[1], "")):
            by, new = ("1", "<=") if one[2] == "<" else ("-1", "<")
            place = insertion(one.end(), f"(@ ? {by} : 0) + ")
            yield ranked_edit(code, 1.1, one.start(), f"{one[1]} {one[2]}", f"{one[1]} {new}", [place])
    # The index of the largest element so far is compared in place of the element.
    for one in re.compile(
        r"\b([A-Za-z_]\w*)\[\w+\]\s*[<>]=?\s*([A-Za-z_]\w*)(?=\s*(?:[)?]|&&|\|\|))"
    ).finditer(code, begin, end):
        scope = in_scope(known, one.start())
        if is_whole(scope.get(one[2], "")) and not is_whole(scope.get(one[1], "float")):
            new = f"{one[1]}[{one[2]}]"
            yield ranked_edit(code, 0.3, one.start(2), one[2], new, replaced(one.span(2), new))
    # The limits of a loop or of an array are whole numbers. In a condition, other numbers are compared, too.
    for test in _TEST.finditer(code, begin, end):
        by = test[3][0] if "=" in test[3] else f"{test[3]}="
        old, new = f"{test[2].strip()} {test[3]}", f"{test[2].strip()} {by}"
        places = wrapped((test.start(2), test.end(4)), f"(@ ? ({new} {test[4].strip()}) : (", "))")
        yield ranked_edit(code, 1.1, test.start(2), old, new, places)


def conditions(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that negate the condition of an `if` or before a `?`, or that drop an `if`."""
    for one in re.compile(r"\bif\s*\(").finditer(code, begin, end):
        last = closed(code, one.end(), "()") - 1
        for rank, opened, words in (
            (1.2, "(@) != (", "with the opposite condition"),
            (1.5, "(@) || (", "without the condition"),
            (1.7, "!(@) && (", "without what this `if` does"),
        ):
            places = [insertion(one.end(), opened), insertion(last, ")")]
            yield ranked_edit(code, rank, one.start(), "if", "", places, words)
        opened_at = re.compile(r"\)\s*\{").match(code, last)
        ended = closed(code, opened_at.end(), "{}") if opened_at else end
        around = [
            stop for first, stop in loop_bodies(code, begin, end) if first <= one.start() < ended < stop
        ]
        if (
            around
            and re.compile(r"\s*(?!else\b)\w").match(code, ended)
            and not _JUMPS.search(code[last:ended])
        ):
            place = insertion(ended - 1, " if (@) continue; ")
            yield ranked_edit(
                code, 1.0, ended - 1, "", "continue;", [place], "before this `}` add `continue;`"
            )
    for one in re.compile(r"(?:=|\breturn|\()(\s*[^=?;(){},]*[<>]=?[^=?;{},]*)\?").finditer(code, begin, end):
        places, words = wrapped(one.span(1), " (@) != (", ") "), f"with the opposite of {one[1].strip()}"
        yield ranked_edit(code, 1.2, one.start(1), one[1], "", places, words)


def whole_rests(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that do the rest after a loop by whole blocks in a loop: `for (; i < n; i++)` for `if (i < n)`."""
    for one in re.compile(r"\bif\s*\(\s*(\w+)\s*<\s*(\w+)\s*\)").finditer(code, begin, end):
        blocks = re.compile(rf"\bfor\s*\([^;{{}}]*;\s*{one[1]}\s*\+[^;{{}}]*<=?[^;{{}}]*;\s*{one[1]}\s*\+=")
        if blocks.search(code, begin, one.start()) and not re.compile(r"\s*else\b").match(
            code, statement_end(code, one.end())
        ):
            new, kept = f"for (; {one[1]} < {one[2]}; {one[1]}++)", f"gpt149_once_{one.start()}"
            text = f"for (bool {kept} = true; {one[1]} < {one[2]} && {kept}; {kept} = @, {one[1]} += {kept})"
            yield ranked_edit(code, 0.3, one.start(), one[0], new, [(*one.span(), text)])


def stray_ends(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that remove a `;` after the head of a loop or of an `if`, which leaves it without a body."""
    for head in re.compile(r"\b(?:for|if)\s*\(").finditer(code, begin, end):
        if stray := re.compile(r"\s*(;)\s*(?=[\w*(])").match(code, closed(code, head.end(), "()")):
            at, text = stray.end(), " ".join(code[stray.end() : statement_end(code, stray.end())].split())
            places = [(*stray.span(1), f" if (@) {{ {text} }} "), insertion(at, "if (!(@)) ")]
            words = "without the `;` at the end of this line"
            yield ranked_edit(code, 0.2, head.start(), ";", "", places, words)


def exchanged_parameters(
    code: str, begin: int, end: int, known: Sequence[Name]
) -> Iterator[tuple[float, Edit]]:
    """Yield edits that exchange two parameters of the function that follow one another: two sizes, say."""
    body = code.find("{", begin, end)
    given = re.compile(r"\bint\s+(\w+)\s*,\s*int\s+(?=(\w+)\b)")
    for pair in given.finditer(code, begin, body):
        one, other = pair.groups()
        new = f" if (@) {{ int gpt149_kept_{one} = {one}; {one} = {other}; {other} = gpt149_kept_{one}; }} "
        words = f"{other}, {one} in place of {one}, {other}"
        yield ranked_edit(code, 1.0, pair.start(1), one, other, [insertion(body + 1, new)], words)


def repeated_ifs(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that make an `if` on a number below a limit a `while`, if its body changes the number."""
    for head in islice(
        re.compile(r"\bif\s*(\(\s*(\w+)\s*<=?[^()&|]*\))").finditer(code, begin, end), MOST_IFS
    ):
        last = statement_end(code, head.end())
        body = code[head.end() : last]
        changes = re.search(rf"\b{head[2]}\s*(?:\+\+|\+=)|\+\+{head[2]}\b", body)
        leaves = re.search(r"\b(?:break|continue|return)\b", body) or re.match(r"\s*else\b", code[last:])
        if changes and not leaves:
            new = f"for (bool gpt149_first = true; {head[1]} && (gpt149_first || @); gpt149_first = false)"
            place, words = (*head.span(), new), f"`while {head[1]}` in place of `if {head[1]}`"
            yield ranked_edit(code, 0.8, head.start(), head[0], f"while {head[1]}", [place], words)


def restarted(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that set a counter back before an inner loop that would begin where its last turn ended."""
    loops = [*for_loops(code, begin, end), *while_loops(code, begin, end)]
    for at, _, _ in loops[:MOST_LOOPS]:
        head = re.compile(r"(?:while\s*\(|for\s*\(\s*;)\s*(\w+)\s*<").match(code, at)
        around = max((body for _, body, ended in loops if body < at < ended), default=0)
        before = code[max(begin, at - NEARBY) : at].rstrip()
        if head is None or not around or not before.endswith((";", "{", "}")):
            continue
        is_set = re.compile(rf"\b{head[1]}\s*=(?!=)\s*(\w+)\s*[,;]")
        first = is_set.search(code, begin, around)
        if first is None or is_set.search(code, around, at):
            continue
        new = f"{head[1]} = {first[1]};"
        place, words = insertion(at, f" if (@) {new} "), f"before it add `{new}`"
        yield ranked_edit(code, 0.4, at, head[1], "", [place], words)


def whole_vectors(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that end a loop over vectors before an incomplete one: `c + 8 <= n` in place of `c < n`."""
    head = re.compile(r";\s*(\w+)\s*<\s*([\w.]+)\s*;\s*\1\s*\+=\s*(4|8|16)\s*\)")
    for one in head.finditer(code, begin, end):
        old, new = f"{one[1]} < {one[2]}", f"{one[1]} + {one[3]} <= {one[2]}"
        yield ranked_edit(code, 0.5, one.start(1), old, new, [(one.start(1), one.end(2), new)])


def last_tiles(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits of conditions that leave out the last tile if it is incomplete."""
    # The last tile may end beyond the size, so that `==` never holds. The edit writes `a >= b` as a == max(a, b).
    for one in _REACHED.finditer(code, begin, end):
        if is_whole(in_scope(known, one.start()).get(one[3], "")):
            sum_, size, new = one[1], one[3], ">=" if one[2] == "==" else "<"
            place = (*one.span(3), f"({sum_} < {size} ? {size} : {sum_})")
            words = f"{sum_} {new} {size} in place of {one[0]}"
            yield ranked_edit(code, 0.7, one.start(), one[0], new, [place], words)
    # A loop over tiles that stops before an incomplete tile: `i + T <= N` in place of `i < N`.
    for one in re.compile(r";\s*(\w+)\s*\+\s*[A-Za-z_]\w*\s*<=?\s*(\w+)\s*(?=;)").finditer(code, begin, end):
        shown, new = one[0].strip("; "), f"{one[1]} < {one[2]}"
        places = [insertion(one.start(1), f"(@) ? {new} : ")]
        yield ranked_edit(code, 0.9, one.start(1), shown, new, places)


def tile_ends(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that limit the end of each tile, inside a loop over tiles, to the end of all tiles.

    In a function that works on one tile, an end is limited to the sizes to which other ends are limited.
    """
    tile = re.compile(r"(?:(?<!\()\bint\s+|,\s*)(\w+)\s*=\s*([^;,?()]+)(?=[;,])")
    heads = [(head, scope_end(code, head.end(1), ())) for head in _FOR.finditer(code, begin, end)]
    for outer, last in [each for each in heads if (each[0][4] or "1").strip() != "1"]:
        size, counter = outer[3].strip(), outer[1]
        for head, _ in heads:
            row = code.rfind("\n", 0, head.start())
            is_parallel = "#" in code[code.rfind("\n", 0, row) + 1 : head.start()]
            is_size = re.fullmatch(r"[A-Z]|d", head[3].strip()) and head[3].strip() != outer[4].strip()
            if outer.end() < head.start() < last and not is_parallel and not is_size:
                index = head[1] if counter in WORD.findall(head[2]) else f"{counter} + {head[1]}"
                at, words = head.end(3), f"`&& {index} < {size}`"
                place = insertion(at, f" && !((@) && {index} >= {size})")
                yield ranked_edit(code, 1.2, at, "", words, [place], f"with {words}")
        for one in tile.finditer(code, outer.end(), last):
            if "min" not in one[2]:
                most = size if counter in WORD.findall(one[2]) else f"{size} - {counter}"
                new = f"std::min({one[2].strip()}, {most})"
                places = wrapped(one.span(2), f"gpt149_least(@, {most}, ")
                yield ranked_edit(code, 1.0, one.start(2), one[2], new, places)
    # Whole tiles only: the condition and the end of the tile have to change together.
    for head in _WHOLE_TILES.finditer(code, begin, end):
        old, first, length, most = head.groups()
        reached = re.compile(rf"=\s*({first}\s*\+\s*{length})\s*;")
        if end_of_tile := reached.search(code, head.end(), scope_end(code, head.end(), ())):
            condition = replaced(head.span(1), f"{first} < {most}")
            places = [*condition, *wrapped(end_of_tile.span(1), f"gpt149_least(@, {most}, ")]
            limited = f"std::min({end_of_tile[1]}, {most}) in line {line_of(code, end_of_tile.start(1))}"
            words = f"{first} < {most} in place of {old}, and {limited}"
            yield ranked_edit(code, 0.7, head.start(1), old, "", places, words)
    included = set(re.compile(r"<=\s*(\w+)\s*;").findall(code, begin, end))
    last_indices = set[str]()
    for one in TILE_END.finditer(code, begin, end):
        if re.search(r"-\s*1\s*$", one[2]):
            last_indices.add(one[1])
        elif one[1] in included and (sum_ := re.search(r"\b[A-Za-z_]\w*\s*\+\s*\w+\b", one[2])):
            at, old = one.start(2) + sum_.end(), sum_[0]
            yield ranked_edit(code, 0.7, at, old, f"{old} - 1", [insertion(at, " - (@ ? 1 : 0)")])
    for head in re.compile(r"\b(\w+)\s*<\s*(?=(\w+)\s*;)").finditer(code, begin, end):
        if head[2] in last_indices:
            new, place = f"{head[1]} <= {head[2]}", insertion(head.end(), "(@ ? 1 : 0) + ")
            yield ranked_edit(code, 0.6, head.start(), f"{head[1]} < {head[2]}", new, [place])
    limits = " ".join(re.findall(r"\bmin(?:<\w+>)?\(([^;]{0,200}?)\)", code[begin:end]))
    for one in tile.finditer(code, begin, end):
        around = any(head.end() < one.start() < last for head, last in heads)
        ends = (
            dict.fromkeys(re.findall(r"\b(?:[A-Z]\w?|d)\b", limits)) if "+" in one[2] and not around else ()
        )
        for most in [size for size in ends if size not in WORD.findall(one[2])]:
            new, places = (
                f"std::min({one[2].strip()}, {most})",
                wrapped(one.span(2), f"gpt149_least(@, {most}, "),
            )
            yield ranked_edit(code, 1.0, one.start(2), one[2], new, places)


def missing_conditions(
    code: str, begin: int, end: int, known: Sequence[Name]
) -> Iterator[tuple[float, Edit]]:
    """Yield edits that add to the condition of an `if` a term of another `if`, perhaps with other variables.

    A loop gets a term of another loop with the same first term, perhaps with another counter.
    """
    heads = islice(re.compile(r"\bif\s*\(").finditer(code, begin, end), MOST_IFS)
    ifs = [(head.end(), closed(code, head.end(), "()") - 1) for head in heads]
    shared, done = {at for nest in collapsed(code, begin, end) for at, _ in nest}, set[tuple[int, str]]()
    loops = [one.span(1) for one in _CONDITION.finditer(code, begin, end) if one.start() not in shared]
    for at, last in ifs:
        # The other sizes of a tile, in a condition such as `rows == T && columns == T`.
        terms = _operands(code[at:last])
        full = re.fullmatch(r"\s*\w+\s*==\s*([A-Za-z_]\w*)\s*", terms[0]) if terms else None
        if full and "||" not in terms:
            cut = re.findall(rf"\b(\w+)\s*=\s*(?:std::)?min\s*\([^;]*?\b{full[1]}\b", code[begin:at])
            for name in dict.fromkeys(cut):
                if name in in_scope(known, at) and name not in WORD.findall(code[at:last]):
                    new = f"{name} == {full[1]}"
                    places = [insertion(at, "("), insertion(last, f") && (!(@) || {new})")]
                    yield ranked_edit(code, 0.7, at, "", new, places, f"with `&& {new}`")
    for at, last in [*ifs, *loops[:MOST_LOOPS]]:
        own, spans = _operands(code[at:last]), ifs if (at, last) in ifs else loops[:MOST_LOOPS]
        scope = in_scope(known, at).keys()
        for other in (_operands(code[a:b]) for a, b in spans if a != at):
            if len(other) < 2 or (len(own) > 1 and own[1::2] != other[1 : len(own) : 2]):
                continue
            # Terms of the same form show how to rename variables: `tw < 0` here and `th < 0` there rename th to tw.
            names = {
                old: new
                for mine in own[::2]
                for term in other[::2]
                if mine not in other and term not in own and WORD.sub("w", mine) == WORD.sub("w", term)
                for old, new in zip(WORD.findall(term), WORD.findall(mine), strict=True)
            }
            if spans is not ifs and sum(old != new for old, new in names.items()) > 1:
                continue
            for term in other[::2] if names or set(own[::2]) & set(other[::2]) else ():
                pieces = re.findall(r"\w+|\W+", term)
                new = "".join(names.get(piece, piece) for piece in pieces)
                used = {name for name in WORD.findall(new) if not name.isdigit()}
                if new in own or (at, new) in done or not used <= scope:
                    continue
                done.add((at, new))
                by, sign = other[1], "!" if other[1] == "&&" else ""
                places = wrapped((at, last), "(", f") {by} {sign}((@) && {sign}({new}))")
                words = f"with `{by} {new}`, as in a similar condition"
                yield ranked_edit(code, 0.8, at, "", new, places, words)


def missing_multiples(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that skip a number that its divisor does not divide, as a test nearby skips others.

    The gradient of a strided convolution needs such a test: not each element was the middle of a window.
    """
    for part in islice(_DIVIDED.finditer(code, begin, end), MOST_IFS):
        around = code[max(begin, part.start() - NEARBY) : min(end, part.end() + NEARBY)]
        (number, by), jump = filter(None, part.groups()), _SKIPS.search(around)
        if jump is not None and is_whole(in_scope(known, part.start()).get(by, "")):
            at, side = (part.start(1), "before") if part[1] else (part.end(), "after")
            place = insertion(at, f" if (@ && ({number}) % {by} != 0) {jump[1]}; ")
            words = f"{side} it add `if ({number} % {by} != 0) {jump[1]};`"
            yield ranked_edit(code, 0.6, part.end() - 1, number, "", [place], words)


def _operands(condition: str) -> list[str]:
    """Split a condition at its `&&` or `||` into [term, operator, term, ...]; return [] if it has both operators."""
    parts = [part.strip() for part in re.split(r"(&&|\|\|)", condition)]
    return parts if len(set(parts[1::2])) < 2 else []


def pointers(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that set a pointer back after a loop that moves it, or that also move another pointer in the loop."""
    for at, body, last in outer_loops(code, begin, end):
        around = [each for each in known if each.begin <= at < each.end]
        for name in [each.name for each in around if each.kind.endswith("pointer")]:
            if re.compile(rf"\b{name}\s*(?:\+\+|\+=)|\+\+{name}\b").search(code, body, last):
                kept = f"gpt149_kept_{name}_{at}"
                places = wrapped((at, last), f" auto {kept} = {name}; ", f" if (@) {name} = {kept}; ")
                words = f"after this loop set {name} back to its value before the loop"
                yield ranked_edit(code, 0.9, body, name, "", places, words)
        # A step may need the product of two sizes.
        for step in _POINTER_STEP.finditer(code, body, last):
            scope = in_scope(known, step.start())
            sizes = [
                name for name, kind in scope.items() if is_whole(kind) and re.fullmatch(r"[A-Z]\w?|d", name)
            ]
            pairs = [
                pair for pair in combinations(sizes[-MOST_SIZES:], 2) if {*pair} != {*WORD.findall(step[2])}
            ]
            for k, pair in enumerate(pairs if scope.get(step[1], "").endswith("pointer") else ()):
                new = " * ".join(pair)
                yield ranked_edit(
                    code, 1.2 + 0.02 * k, step.start(), step[2], new, replaced(step.span(2), new)
                )
        # Another pointer that the loop uses but does not move may need the same step.
        moved = r"\b(\w+)\s*\+=([^;,()=]*(?:\([^()]*\)[^;,()=]*)*)(?=[;,)])"
        names = {name for name, kind in in_scope(known, body).items() if kind.endswith("pointer")}
        for move in [one for one in re.finditer(moved, code[at:last]) if one[1] in names][-1:]:
            begun, ended = at + move.start(), at + move.end()
            is_step = begun < body
            for name in sorted(names) if is_step or code[ended] == ";" else ():
                changes = re.compile(rf"\b{name}\s*(?:\+\+|\+?=)|\+\+{name}\b").search(code, at, last)
                if changes is None and re.compile(rf"\b{name}\b").search(code, body, last):
                    new = f"{name} +={move[2]}"
                    text = f", (void)(@ ? {new} : {name})" if is_step else f" if (@) {new};"
                    place = insertion(ended + (not is_step), text)
                    shown = f"with `{move[0]}, {new}`" if is_step else f"after it add `{new};`"
                    yield ranked_edit(code, 0.5, begun, move[0], "", [place], shown)


def hidden_counters(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that use an outer integer inside a loop (or loop macro) whose counter of the same name hides it."""
    for each in known:
        if not (begin <= each.begin < end) or each.kind != "int":
            continue
        row = row_before(code, each.begin)
        name = rf"\s*\(\s*(?:\w+\s+)?{each.name}"
        head = re.search(rf"\b\w+{name}$|\bfor{name}\s*=[^;]*$", row)
        same = [one for one in known if one.name == each.name and is_whole(one.kind)]
        outer = [one for one in same if one.begin < each.begin < one.end]
        if head is None or not outer:
            continue
        at = each.begin - len(row) + head.start()
        if not re.search(r"[;{}]\s*$", code[max(begin, at - 200) : at]):
            continue
        body = code.find(")", each.begin) + 1
        uses = list(re.compile(rf"(?<![\w.]){each.name}\b").finditer(code, body, each.end))[:MOST_HIDDEN]
        for mask in range(1, 1 << len(uses)):
            kept = f"gpt149_outer_{each.name}_{at}_{mask}"
            places = [insertion(at, f" const int {kept} = {each.name}; ")]
            places += [(*use.span(), kept) for k, use in enumerate(uses) if mask >> k & 1]
            hidden = f"this {each.name} hides the {each.name} of line {line_of(code, outer[-1].begin)}"
            words = f"with another name for its counter: {hidden}"
            yield ranked_edit(code, 0.4, at, each.name, "", places, words)


def hidden_numbers(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that use an outer number in place of an inner one of the same name, which hides the outer one."""
    for at, span, name, words in hiding(code, begin, end, known):
        hidden = f"gpt149_hidden_{name}_{at}"
        places = [insertion(at, f" const auto* {hidden} = &{name}; "), *replaced(span, f"*{hidden}")]
        yield ranked_edit(code, 0.3, span[0], name, "", places, f"without this declaration of {words}")
