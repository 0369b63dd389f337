"""Edits of single terms and factors: a sign, a divisor, a call of exp(), a copy. See `grader.source.edits`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, product

from grader.source.edited_source import Edit, insertion, ranked_edit, replaced, scaled, wrapped
from grader.source.landmarks import closed
from grader.source.scopes import Name, in_scope, is_whole, line_of, row_before
from grader.source.word_edits import FLOAT, LONGEST_CALL, MOST_ALIKE, MOST_UNUSED, MOST_WORDS

#: Limit on the variables that keep a product.
MOST_PRODUCTS = 8
#: The name of a function that reads an element: `twoDimRead`, `read`.
READER = re.compile(r"\w*(?<![tT]h)[rR]ead")
#: The beginning of a call of exp2(), and of exp().
_EXP2 = re.compile(r"\b(?:std::)?exp2f?\s*\(")
EXP = re.compile(r"\b(?:std::)?expf?\s*\(")
#: The last operand of a text: a name or number, with its index or arguments.
OPERAND = re.compile(r"(?:[\w.]*(?:\[[^][]*\]|\([^()]*\))|[\w.]+|.)$")
#: The beginning of a line that computes a pointer.
_POINTS = re.compile(r"\*\s*(?:const\s+|__restrict(?:__)?\s+)*\w+\s*=|\.data\(\)|\.begin\(\)")
_ADDS_UP = r"\b(?:std::)?(?:accumulate|inner_product|(?:transform_)?reduce)\s*\((?:[^;()]|\([^;()]*\))*?,\s*"
#: A library call that adds up from the whole number 0, or from an element, which is group 1.
_ACCUMULATED = re.compile(rf"{_ADDS_UP}0(?=\s*[,)])")
_BEGUN = re.compile(rf"{_ADDS_UP}(\*\s*\w+|[A-Za-z_]\w*(?:\[[^][]*\]|\([^()]*\)))(?=\s*[,)])")
#: A copy of an array's element. Groups: the copy, the element.
_COPIED = re.compile(
    r"(?<![\w.])([A-Za-z_]\w*(?:\[[^][]*\])?)\s*=(?!=)\s*([A-Za-z_]\w*\[[^][]*\])(?=\s*[;,])"
)
#: A function template with one type. Group 1 is its name.
_TEMPLATE = re.compile(r"\btemplate\s*<\s*(?:typename|class)\s+\w+\s*>[^;{}()]{0,200}?\b(\w+)\s*\(")
#: A number, a variable or an element.
ATOM = r"[\w.]+(?:\[[^][]*\])?"
#: A variable that is set to a product. Groups: it, the two factors.
_PRODUCT_OF_TWO = re.compile(
    r"\b(?:float|double|auto)\s+(\w+)\s*=\s*([\w.]+(?:\[[^][]*\])*)\s*\*\s*([\w.]+(?:\[[^][]*\])*)\s*;"
)


def integer_sums(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that add up floats from 0.0f or 0.0 in place of 0, or from 0.0f in place of an element."""
    for one, zero in product(_ACCUMULATED.finditer(code, begin, end), ("0.0f", "0.0")):
        first, last = one.end() - 1, closed(code, code.find("(", one.start()) + 1, "()")
        new = f"{code[one.start() : first]}{zero}{code[first + 1 : last]}"
        cast = replaced((one.start(), last), new)
        words = f"with {zero} as the first value: from 0 each partial sum is cut to a whole number"
        rank, edit = ranked_edit(code, -1, first, "0", zero, cast, words)
        yield rank, replace(edit, is_sure=True)
    for one in _BEGUN.finditer(code, begin, end):
        cleared = replaced(one.span(1), "0.0f")
        words = f"with 0.0f in place of {one[1]}, the first value of this sum"
        yield ranked_edit(code, 0.3, one.start(1), one[1], "0.0f", cleared, words)


def template_floats(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that compute a float in a function template: `mean<float>(n)` in place of `mean(n)`, an integer."""
    for name in islice(dict.fromkeys(_TEMPLATE.findall(code)), MOST_UNUSED):
        call = re.compile(rf"\bfloat\s+\w+\s*=\s*({name}(?=\s*\())")
        for one in call.finditer(code, begin, end):
            last = closed(code, code.find("(", one.end()) + 1, "()")
            new = f"{name}<float>{code[one.end() : last]}"
            yield ranked_edit(
                code, 0.3, one.start(1), code[one.start(1) : last], new, replaced((one.start(1), last), new)
            )


def _exp_calls(code: str, begin: int, end: int) -> list[tuple[int, int, int]]:
    """Return the calls of exp(): begin, begin of the argument, and end of each."""
    return [(one.start(), one.end(), closed(code, one.end(), "()")) for one in EXP.finditer(code, begin, end)]


def powers_of_two(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that multiply the argument of exp2() by the factor that other calls of exp2() have, such as LOG2E."""
    calls = [
        (one.end(), closed(code, one.end(), "()", LONGEST_CALL) - 1)
        for one in _EXP2.finditer(code, begin, end)
    ]
    texts = [re.search(r"\)?\s*\*\s*(\w+)$", code[at:last]) for at, last in calls]
    for factor in islice(dict.fromkeys(found[1] for found in texts if found), MOST_UNUSED):
        for at, last in [call for call, found in zip(calls, texts, strict=True) if found is None]:
            places = wrapped((at, last), "(", f") * (@ ? {factor} : 1)")
            yield ranked_edit(code, 0.3, at, code[at:last], f"({code[at:last]}) * {factor}", places)


def signs(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that exchange the signs + and -, or negate a difference: `exp(old - new)` for `exp(new - old)`."""
    exponents = [(first, last) for first, _, last in _exp_calls(code, begin, end)]
    for sign in re.compile(r"(?<=[\w\])]) ?([-+]) ?(?=[\w(])").finditer(code, begin, end):
        row = row_before(code, sign.start()).lstrip()
        # Do not try `exp(score + maximum)`: it can hide a wrong maximum.
        hides = sign[1] == "-" and any(first < sign.start() < last for first, last in exponents)
        if not hides and not _POINTS.search(row) and not re.search(r"\d[eE]$", row):
            old, other = f"{OPERAND.findall(row)[0]} {sign[1]}", "-" if sign[1] == "+" else "+"
            place = (sign.start(), sign.end(), f" {sign[1]} (@ ? -1 : 1) * ")
            yield ranked_edit(code, 1.8, sign.start(), old, f"{old[:-1]}{other}", [place])
    value = r"\s*((?:\((?:float|double)\)\s*)?[\w.]+(?:\[[^][]*\])?)\s*"
    for call in re.compile(rf"{EXP.pattern}{value}-{value}(?=\))").finditer(code, begin, end):
        places = wrapped((call.start(1), call.end()), "(@ ? -1.0f : 1.0f) * (")
        old, new = f"{call[1]} - {call[2]}", f"{call[2]} - {call[1]}"
        yield ranked_edit(code, 1.2, call.start(1), old, new, places)


def scaled_sums(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that multiply a whole sum by the factor of its last term: `(b * H + h) * N` for `b * H + h * N`."""
    tails = re.compile(r"(?<=[\w)\]])(?=\s*\+\s*\w+((?:\s*\*\s*\w+)+)\b(?!\s*[\[(.]))")
    for tail in tails.finditer(code, begin, end):
        at, factor = tail.start(), tail[1].strip()
        before = row_before(code, at)
        name = re.findall(r"[A-Za-z_]?\w*$", before)[0]
        is_number = not name or name.isdigit() or is_whole(in_scope(known, at).get(name, ""))
        if is_number and not re.search(rf"{_POINTS.pattern}|&\s*[\w.]+\[[^][]*\]$", before):
            words = f"with brackets around the sum before {factor}"
            yield ranked_edit(code, 0.9, at, "", factor, [scaled(at, factor[1:])], words)


def distributed(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that multiply one term of a sum in place of both: `a * c - b` for `(a - b) * c`."""
    for one in re.compile(rf"\(({ATOM}) ?([-+]) ?({ATOM})\) ?\* ?([\w.:]+)(\(|\[)?").finditer(
        code, begin, end
    ):
        last = closed(code, one.end(), "()" if one[5] == "(" else "[]") if one[5] else one.end()
        by, span = code[one.start(4) : last], (one.start(), last)
        if not re.compile(r"\s*[\[(.]").match(code, last):
            for new in (f"{one[1]} * {by} {one[2]} {one[3]}", f"{one[1]} {one[2]} {one[3]} * {by}"):
                yield ranked_edit(code, 0.9, span[0], code[slice(*span)], new, replaced(span, new))


def removed_factors(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that remove a factor or a divisor."""
    for factor in re.compile(r"\s*([*/])\s*([A-Za-z_]\w*)\b(?!\s*[\[(.])").finditer(code, begin, end):
        kind = in_scope(known, factor.start(2)).get(factor[2], "")
        if kind.endswith(("int", "float")):
            place = (*factor.span(2), "1.0f" if kind.endswith("float") else "1")
            yield ranked_edit(code, 1.7, factor.start(2), factor[0].strip(), "", [place])
    of_floats, values = ("vector", "pointer", "array", "tensor"), r"[A-Za-z_]\w*(?:\[[^][]+\]|\([^()]+\))"
    for factor in re.compile(rf"\s*([*/])\s*({values})(?=\s*[-+;,)])").finditer(code, begin, end):
        name = re.findall(r"\w+", factor[2])[0]
        kind = in_scope(known, factor.start(2)).get(name, "float vector" if READER.match(name) else "")
        if kind.endswith(of_floats) and not kind.startswith("int"):
            places = replaced(factor.span(2), "1.0f")
            yield ranked_edit(code, 1.7, factor.start(2), factor[0].strip(), "", places)
    for lead in re.compile(r"(?<=[=(+])\s*([A-Za-z_]\w*\[[^][]+\])\s*\*(?!=)").finditer(code, begin, end):
        places = replaced(lead.span(1), "1.0f")
        yield ranked_edit(code, 1.2, lead.start(1), f"{lead[1]} *", "", places)


def removed_terms(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that remove a superfluous term: a small number, as in `/ (sum + 1e-6f)`, or a name."""
    exponents = [(first, last) for first, _, last in _exp_calls(code, begin, end)]
    added = rf"(?<=[\w\])])\s*([-+])\s*({FLOAT}|[A-Za-z_]\w*(?:\.\w+)?)(?!\s*(?:[\w(*/%[.]|::|<\w))"
    for extra in re.compile(added).finditer(code, begin, end):
        if not any(first < extra.start() < last for first, last in exponents):
            # Without the term, a condition that guards an access may always be true: such an edit is less likely.
            is_guard = re.compile(r"\s*<").match(code, extra.end()) is not None
            likely = (1.6 if extra[2][0].isalpha() else 0.9) + is_guard
            places = replaced(extra.span(2), "0")
            yield ranked_edit(code, likely, extra.start(2), extra[0].strip(), "", places)


def divisors(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that divide 1 by the value of a variable, or divide by another number than a sum in brackets."""
    for copy in re.compile(r"\bfloat\s+\w+\s*=\s*([A-Za-z_]\w*)(?=\s*;)").finditer(code, begin, end):
        yield ranked_edit(code, 1.9, copy.start(1), copy[1], f"1.0f / {copy[1]}")
    sums = re.compile(r"/\s*(\(\s*[\w.]+(?:\[[^][]*\])?\s*\+\s*[\w.]+(?:\[[^][]*\])?\s*\))")
    for sum_ in sums.finditer(code, begin, end):
        kinds = in_scope(known, sum_.start()).items()
        for name in [name for name, kind in kinds if kind.endswith(("float", "double"))][:6]:
            places = replaced(sum_.span(1), name)
            yield ranked_edit(code, 1.5, sum_.start(1), sum_[1], name, places)


def compared_quotients(
    code: str, begin: int, end: int, known: Sequence[Name]
) -> Iterator[tuple[float, Edit]]:
    """Yield edits that divide the result of a comparison as a float: `(float)(c == label) / N`."""
    quotient = re.compile(
        r"(\((?:[^()=!<>;]|\([^()]{0,40}\)){0,80}[=!<>]=?(?:[^()=!<>;]|\([^()]{0,40}\)){0,80}\)\s*/\s*[A-Za-z_]\w*)(?!\s*[\w(\[.])"
    )
    for one in islice(quotient.finditer(code, begin, end), MOST_WORDS):
        new = f"(float){one[1]}"
        yield ranked_edit(code, 0.3, one.start(), one[1], new, replaced(one.span(1), new))


def stored_exps(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that store an exponential that is only added up: `sum += x[j] = exp(x[j])`."""
    added = re.compile(rf"\+=\s*({EXP.pattern}\s*(\w+\[[^][]*\])\s*\))(?=\s*;)")
    for lone in added.finditer(code, begin, end):
        place = insertion(lone.start(1), f"(@ ? {lone[2]} : gpt149_kept) = ")
        yield ranked_edit(code, 1.4, lone.start(1), lone[1], f"{lone[2]} = {lone[1]}", [place])


def missing_exps(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that take the exponential of a value of which other lines take it: `exp(x[j]) / sum`."""
    calls = _exp_calls(code, begin, end)
    texts = {code[at : last - 1].strip(): code[first:at] for first, at, last in calls}
    for text, call in list(texts.items())[:MOST_UNUSED]:
        for use in re.compile(rf"(?<![\w.&])(?<!\* ){re.escape(text)}(?!\s*[-+*/]?=(?!=)|\w)").finditer(
            code, begin, end
        ):
            if re.search(r"[\[(]", text) and not any(at <= use.start() < last for _, at, last in calls):
                new = f"{call}{text})"
                yield ranked_edit(code, 0.9, use.start(), text, new, replaced(use.span(), new))


def guarded_exps(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that replace exp() of a difference by 0 where it is NaN: if two maxima are both -INFINITY."""
    for first, at, last in _exp_calls(code, begin, end):
        if "-" in code[at:last]:
            call = code[first:last]
            words = f"0 in place of {call} where it is NaN, because -INFINITY is subtracted from -INFINITY"
            yield ranked_edit(code, 1.4, first, call, "0", wrapped((first, last), "gpt149_number(@, "), words)


def kept_copies(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that read the copy of an element after the element itself is set again: `Li[r]` for `L[i + r]`."""
    for copy in islice(_COPIED.finditer(code, begin, end), MOST_WORDS):
        element = re.escape(copy[2])
        again = re.compile(rf"(?<![\w.]){element}\s*[-+*/]?=(?!=)").search(code, copy.end(), end)
        if again is None:
            continue
        uses = re.compile(rf"(?<![\w.]){element}(?!\s*[-+*/]?=(?!=)|\s*[\[(.\w])")
        for use in islice(uses.finditer(code, again.end(), end), MOST_ALIKE):
            names = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", copy[1]))
            if names <= in_scope(known, use.start()).keys():
                places = replaced(use.span(), copy[1])
                rank, edit = ranked_edit(code, 0.6, use.start(), copy[2], copy[1], places)
                yield rank, replace(edit, declared=line_of(code, again.start()), note="sets it before that")


def single_factors(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that use one factor of a product in place of the variable that keeps the product."""
    ends = {(each.name, line_of(code, each.begin)): each.end for each in known}
    for made in islice(_PRODUCT_OF_TWO.finditer(code, begin, end), MOST_PRODUCTS):
        last = ends.get((made[1], line_of(code, made.start())), end)
        for use in re.compile(rf"(?<![\w.]){made[1]}\b(?!\s*[-+*/]?=(?!=))").finditer(code, made.end(), last):
            for factor in made.group(2, 3):
                yield ranked_edit(code, 1.6, use.start(), made[1], factor)
