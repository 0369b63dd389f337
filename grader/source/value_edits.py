"""Edits of whole values that a statement sets or returns: brackets, a factor, a divisor. See `grader.source.edits`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice, pairwise, product

from grader.source.cpptext import apart
from grader.source.edited_source import Edit, insertion, ranked_edit, replaced, scaled, wrapped
from grader.source.landmarks import closed
from grader.source.scopes import WORD, Name, in_scope, members_of, simple_statements
from grader.source.term_edits import ATOM, EXP, OPERAND

#: Limits on variables to try as operands, on the nearest of them, on brackets to try, and on the tokens of a value.
MOST_ATOMS, MOST_NEAREST, MOST_BRACKETED, MOST_TOKENS = 6, 3, 10, 32
#: Limit on the characters of an expression that a message shows whole. Of a longer one, it shows the last operand.
LONGEST_SHOWN = 48
#: A variable that is a sum, or an array of sums.
_SUMMED = re.compile(r"\b([A-Za-z_]\w*)(?:\[[^][]*\])?\s*(?:\+=|=(?!=)[^;=]*\+[^;=]*;)")
#: A variable or element that is set to exp(a - b), the factor of old sums in a running softmax.
_RESCALING = re.compile(
    r"(?<![\w.])([A-Za-z_]\w*(?:\[\w+\])?)\s*=\s*(?:std::)?expf?\s*\([^-;]+-[^-;]+\)\s*[;,]"
)
#: A call exp(m - new), the factor of an old sum, and a variable that keeps it. Groups: (variable,) function, operands.
_RESCALES = re.compile(r"\b((?:std::)?expf?)\s*\(\s*([\w.]+(?:\[\w+\])?)\s*-\s*([\w.]+(?:\[\w+\])?)\s*\)")
_FACTOR = re.compile(rf"\b(\w+)\s*=\s*{_RESCALES.pattern}\s*[;,]")
#: A variable or element that is set to a maximum, and the first operand.
_MAXIMUM = re.compile(
    r"(?<![\w.])([A-Za-z_]\w*(?:\[\w+\])?)\s*=\s*\*?\s*(?:std::)?f?max\w*\s*\((?:\s*([A-Za-z_]\w*(?:\[\w+\])?)\s*,)?"
)
_CAST = r"\((?:float|double|int|long|size_t|std::size_t)\)\s*"
_SIZED = re.compile(rf"(?:{_CAST})?(?:\d[\w.]*|[A-Z]\w?|d)$|.*\($")
#: The operands, operators and brackets of a value. A call is an operand, but the brackets of exp() and log() can move.
_TOKEN = re.compile(
    rf"(?:std::)?(?:exp|log|sqrt)f?\(|(?:{_CAST})?\d[\w.]*(?:(?<=e)-\d+f?)?|(?:{_CAST})?[\w.:]+"
    r"(?:\[[^][]*(?:\[[^][]*\][^][]*)*\]|\((?:[^()]|\([^()]*\))*\))*|[-+*/()]"
)
#: A variable or element that is set to a sum. Groups: it, the two terms.
_SUM_OF_TWO = re.compile(rf"(?<![\w.])({ATOM})\s*=\s*({ATOM})\s*\+\s*({ATOM})\s*;")


@dataclass(frozen=True)
class _Value:
    """A value that a statement sets, returns or writes, from `begin` to `last` - 1, where a `;`, `,` or `)` ends it."""

    first: int  # begin of the statement
    begin: int
    last: int
    kept: list[tuple[int, int, str]]  # insertions around an argument that may be passed by reference
    atoms: list[str]  # variables and elements that an edit may use

    @property
    def span(self) -> tuple[int, int]:
        return self.begin, self.last - 1

    def places(self, *places: tuple[int, int, str]) -> list[tuple[int, int, str]]:
        """Return the places of an edit inside this value, with `kept` around them."""
        return [*self.kept[:1], *places, *self.kept[1:]]


def of_values(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits of values that are set or returned: brackets, a factor, a divisor, a term, or no call of exp()."""
    summed = {one[1] for one in _SUMMED.finditer(code, begin, end)}
    rescaling = set(_RESCALING.findall(code, begin, end))
    sums = {one[1]: {one[2], one[3]} for one in _SUM_OF_TWO.finditer(code, begin, end)}
    maxima = list(
        dict.fromkeys(name for found in _MAXIMUM.findall(code, begin, end) for name in found if name)
    )
    factors = {name: found for name, *found in _FACTOR.findall(code, begin, end)}
    # The sum to rescale may be a member that another function adds to.
    added = set(_SUMMED.findall(code))
    for value in _values(code, begin, end, known):
        kinds = in_scope(known, value.first)
        partners = [name for name, kind in kinds.items() if kind in ("float", "double") and name in added]
        yield from _rescaled_partners(code, value, {*rescaling, *factors}, partners)
        yield from _other_brackets(code, value)
        yield from _added_operands(code, value, rescaling | _halves(code, value, sums), maxima)
        yield from _rescaled_sums(code, value, maxima)
        yield from _added_up(code, value)
        yield from _new_terms(code, value)
        yield from _rescaled_terms(code, value, maxima, factors)
        yield from _rescaled_quotients(code, value, sums)
        yield from _without_exp(code, value)
        yield from _divided(code, value, summed)


def _values(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[_Value]:
    """Yield the values of floats that the statements of a function set, return or write."""
    # Floats that an edit may use: variables, and elements of arrays. The names in them must be in scope.
    of_floats = ("float", "double", "vector", "pointer", "array")
    names = {each.name: each for each in known if each.kind.endswith(of_floats)}
    elements = re.compile(r"(?<![\w.])([A-Za-z_]\w*)(\[[^\[\]]+\])?(?![\w\[(])").finditer(code, begin, end)
    atoms = dict[str, list[int]]()
    for one in elements:
        if one[1] in names and (one[2] is None) == names[one[1]].kind.endswith(("float", "double")):
            atoms.setdefault(one[0], []).append(one.start())
    for first, at, last in _value_spans(code, begin, end, known, names):
        scope = in_scope(known, first)
        # An argument that may be passed by reference must be a variable: the edited value is stored in gpt149_kept.
        is_passed = code[last - 1] == ")" and re.fullmatch(r"\s*\w+\s*", code[at : last - 1]) is not None
        kept = wrapped((at, last - 1), "(gpt149_kept = ") if is_passed else []
        used = code[at:last]
        fitting = [atom for atom in atoms if not re.search(rf"(?<![\w.]){re.escape(atom)}(?!\w)", used)]
        numbers = {name for name, kind in scope.items() if not kind.endswith(("object", "objects"))}
        fitting = [atom for atom in fitting if set(re.findall(r"[A-Za-z_]\w*", atom)) <= numbers]
        # The same name may be an array in one scope and a number in another: keep what fits the scope here.
        floats = {name for name, kind in scope.items() if kind.endswith(("float", "double"))}
        fitting = [atom for atom in fitting if ("[" in atom) != (WORD.findall(atom)[0] in floats)]
        # Floats come first, then elements; of each, those that are used nearest to this value.
        fitting.sort(key=lambda atom: ("[" in atom, min(abs(use - first) for use in atoms[atom])))
        yield _Value(first, at, last, kept, fitting)


def _value_spans(
    code: str, begin: int, end: int, known: Sequence[Name], names: Collection[str]
) -> Iterator[tuple[int, int, int]]:
    """Yield statements that set, return or write a number: begin, begin of the value, and end."""
    for one in simple_statements(code, begin, end):
        at = one.begin
        for piece in apart(one.text):
            set_ = re.match(r"\s*(?:(?:const\s+)?(?:float|auto)\s+)?(\w+)([^=<>]*)=(?!=)", piece)
            ended = at + len(piece) + 1
            # Edit a value that a number or an element gets, but not an address that a pointer gets.
            is_pointer = in_scope(known, at).get(set_[1], "").endswith("pointer") if set_ else False
            member = re.match(r"(?:\.|->)(\w+)\s*[-+*/]?$", set_[2]) if set_ else None
            is_float = member is not None and member[1] in members_of(code, "float|double")
            is_number = set_ is not None and (set_[1] in names or set_[2].startswith("(") or is_float)
            if set_ and is_number and ("[" in set_[2] or is_float or not is_pointer):
                yield one.begin, at + set_.end(), ended
            at = ended
    for back in re.compile(r"\breturn\s+(\(*([A-Za-z_]\w*)[^;{}?]*;)").finditer(code, begin, end):
        if in_scope(known, back.start()).get(back[2], "").endswith(("float", "double")):
            yield back.start(), back.start(1), back.end()
    for call in re.compile(r"\b\w*[wW]rite\w*(?=\()").finditer(code, begin, end):
        last = closed(code, call.end() + 1, "()")
        yield call.start(), last - 1 - len(apart(code[call.end() + 1 : last - 1])[-1]), last


def _other_brackets(code: str, value: _Value) -> Iterator[tuple[float, Edit]]:
    """Yield edits that add, move or remove a pair of brackets."""
    text = code[slice(*value.span)].strip()
    for k, new in enumerate(islice(_rebracketed(text), MOST_BRACKETED)):
        places, words = value.places(*replaced(value.span, new)), f"with the brackets of `{new}`"
        yield ranked_edit(code, 0.8 + 0.04 * k, value.begin, text, new, places, words)


def _added_operands(
    code: str, value: _Value, rescaling: Collection[str], maxima: Collection[str]
) -> Iterator[tuple[float, Edit]]:
    """Yield edits that add a factor, a divisor or a term. `rescaling` holds the factors of a running softmax.

    An edit that adds one of the `maxima` is weak: it may cancel the maximum in a later exp().
    """
    begin, last = value.begin, value.last
    exps = EXP.finditer(code, begin, last)
    ends = list(_terms_of(code, *value.span))
    places_of = [*((at, "*/") for at in ends), (ends[-1], "+")]
    # The factor of a running softmax may also be missing in a sum in brackets.
    opened = [begin + one.end() for one in re.finditer(r"(?<![\w\])])\(", code[begin:last])]
    sums = [list(_terms_of(code, one, closed(code, one, "()") - 1)) for one in opened]
    places_of += [(at, "*") for each in sums if len(each) > 1 for at in each]
    for at, operators in (*places_of, *((closed(code, each.end(), "()") - 1, "-") for each in exps)):
        old = code[begin:at].strip()
        old = old if len(old) <= LONGEST_SHOWN else OPERAND.findall(old)[0]
        old = old.lstrip("( ") if old.count("(") > old.count(")") else old
        nearest = value.atoms[:MOST_NEAREST]
        atoms = [
            atom for atom in value.atoms[:MOST_ATOMS] if operators != "*" or atom in (*rescaling, *nearest)
        ]
        for k, (atom, by) in enumerate(product(atoms, operators)):
            neutral, rank = (
                ("0.0f", 1.3) if by in "+-" else ("1.0f", 1.6 if by == "*" and atom in nearest else 2.2)
            )
            rank -= 1.3 * (by == "*" and atom in rescaling)
            places = value.places(insertion(at, f" {by} (@ ? (float){atom} : {neutral})"))
            ranked, edit = ranked_edit(code, rank + 0.05 * k, at, old, f"{old} {by} {atom}", places)
            yield ranked, replace(edit, is_weak=by == "+" and atom in maxima)
    # In a running softmax, the term of a new maximum is exp(0) = 1.
    if re.match(r"\w+\s*=", code[value.first : begin]) and "(" in code[begin:last]:
        old = code[begin : ends[-1]].strip()
        places = value.places(insertion(ends[-1], " + (@ ? 1.0f : 0.0f)"))
        yield ranked_edit(code, 1.3, ends[-1], old, f"{old} + 1.0f", places)


def _halves(code: str, value: _Value, sums: Mapping[str, set[str]]) -> set[str]:
    """Return the terms of the sum that divides a value: in `(a + b) / s` after `s = l + k`, l may be a factor of a.

    `sums`: {variable or element: its two terms}.
    """
    divisors = re.findall(rf"/\s*({ATOM})", code[value.begin : value.last])
    return set[str]().union(*(sums.get(each, set()) for each in divisors))


def _rescaled_quotients(
    code: str, value: _Value, sums: Mapping[str, set[str]]
) -> Iterator[tuple[float, Edit]]:
    """Yield edits that rescale the other term of a sum with a quotient: `o * l / s + k / s` in place of `o + k / s`.

    `sums`: {variable or element: its two terms}, as s above.
    """
    spans = _term_spans(code, value)
    for divided in [one for one in spans if "/" in code[slice(*one)]]:
        divisor = re.split(r"/\s*", code[slice(*divided)])[-1].strip()
        for begin, end in [one for one in spans if "/" not in code[slice(*one)]]:
            term = code[begin:end].strip("+- \n")
            for factor in sorted(sums.get(divisor, ())):
                place = insertion(end, f" * (@ ? {factor} / {divisor} : 1.0f)")
                yield ranked_edit(code, 0.5, end, term, f"{term} * {factor} / {divisor}", [place])


def _rescaled_sums(code: str, value: _Value, maxima: Sequence[str]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that multiply an old sum by a factor: a running softmax does it before it adds a term.

    If the term has a factor `exp(m - new)`, the factor of the sum may be `exp(old - new)`, with one of `maxima`.
    """
    target = re.match(r"([\w.]+(?:\[[^][]*\])?)\s*\+=", code[value.first : value.begin])
    if target is None:
        return
    names = [atom for atom in value.atoms if "[" not in atom][:MOST_ATOMS]
    factors = [(atom, 1.05 + 0.1 * k) for k, atom in enumerate(names)]
    if found := _RESCALES.search(code, value.begin, value.last):
        others = [name for name in maxima if name not in (found[2], found[3])]
        factors += [(f"{found[1]}({name} - {found[3]})", 0.4) for name in others[:MOST_ATOMS]]
    for factor, rank in factors:
        place = insertion(value.first, f"(@) ? (void)({target[1]} *= {factor}) : (void)0, ")
        words = f"with {target[1]} * {factor} in place of the old {target[1]}"
        yield ranked_edit(code, rank, value.first, factor, "", [place], words)


def _rescaled_partners(
    code: str, value: _Value, factors: Collection[str], sums: Sequence[str]
) -> Iterator[tuple[float, Edit]]:
    """Yield edits that rescale one of `sums`, too, where a running softmax rescales another sum to a new maximum.

    `factors`: names of variables that keep `exp(old - new)`.
    """
    target = re.match(r"([\w.]+)\s*(\*?=)", code[value.first : value.begin])
    if target is None:
        return
    text, by = code[slice(*value.span)].strip(), rf"(?P<by>{_RESCALES.pattern}|{ATOM})"
    name = re.escape(target[1])
    forms = (
        [rf"{by}$"] if target[2] == "*=" else [rf"{name}\s*\*\s*{by}(?!\w)", rf"{by}\s*\*\s*{name}(?![\w.])"]
    )
    found = next(filter(None, (re.match(form, text) for form in forms)), None)
    if found and (EXP.match(found["by"]) or found["by"] in factors):
        for k, other in enumerate([each for each in sums if each != target[1]][:MOST_ATOMS]):
            new = f"{other} *= {found['by']};"
            place = insertion(value.first, f"(@) ? (void)({new[:-1]}) : (void)0, ")
            yield ranked_edit(code, 0.6 + 0.05 * k, value.first, "", new, [place], f"before it add `{new}`")


def _added_up(code: str, value: _Value) -> Iterator[tuple[float, Edit]]:
    """Yield edits that add a value in place of subtracting it."""
    target = re.match(r"([^-;]*)-=", code[value.first : value.begin])
    if target is not None:
        old, new = f"{target[1].strip()} -=", f"{target[1].strip()} +="
        places = value.places(*wrapped(value.span, " (@ ? -1 : 1) * ("))
        yield ranked_edit(code, 0.2, value.first, old, new, places)


def _new_terms(code: str, value: _Value) -> Iterator[tuple[float, Edit]]:
    """Yield edits that add exp(0) = 1, the term of a new maximum, to a sum that is rescaled to this maximum."""
    text = code[slice(*value.span)].strip()
    target = re.match(r"([\w.]+)\s*=", code[value.first : value.begin])
    if target is not None and re.match(rf"{re.escape(target[1])}\s*\*", text) and _RESCALES.search(text):
        place = insertion(value.last - 1, " + (@ ? 1 : 0)")
        yield ranked_edit(code, 0.4, value.begin, text, f"{text} + 1", value.places(place))


def _rescaled_terms(
    code: str, value: _Value, maxima: Sequence[str], kept: Mapping[str, Sequence[str]]
) -> Iterator[tuple[float, Edit]]:
    """Yield edits that rescale a term of a sum to a new maximum, if another term has a factor `exp(old - new)`.

    `kept`: {variable that keeps such a factor: its function and operands}.
    """
    spans = _term_spans(code, value)
    texts = [code[slice(*span)] for span in spans]
    found = [
        _RESCALES.findall(text) + [kept[name] for name in WORD.findall(text) if name in kept]
        for text in texts
    ]
    if len(spans) < 2 or not any(found):
        return
    exp, old, new = next(factors[0] for factors in found if factors)
    for (_, end), text in [
        (span, text) for span, text, own in zip(spans, texts, found, strict=True) if not own
    ]:
        term = text.strip("+- \n")
        members = [f"{term.split('.')[0]}.{old.split('.')[1]}"] if "." in term and "." in old else []
        others = [name for name in (*members, *maxima) if name not in (old, new)]
        for k, maximum in enumerate(others[:MOST_ATOMS]):
            factor = f"{exp}({maximum} - {new})"
            places = value.places(scaled(end, factor))
            yield ranked_edit(code, 0.4 + 0.1 * k, end, term, f"{term} * {factor}", places)


def _without_exp(code: str, value: _Value) -> Iterator[tuple[float, Edit]]:
    """Yield edits that leave out a call of exp()."""
    for call in EXP.finditer(code, value.begin, value.last):
        ended = closed(code, call.end(), "()")
        places = replaced((call.start(), ended), f"({code[call.end() : ended]}")
        yield ranked_edit(code, 0.9, call.start(), call[0], "", places, f"without {call[0].rstrip('( ')}()")


def _divided(code: str, value: _Value, summed: Collection[str]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that divide by one of the sums in `summed`, as the last step of a softmax does."""
    text = code[slice(*value.span)].strip()
    divisors = [atom for atom in value.atoms if WORD.findall(atom)[0] in summed]
    for k, atom in enumerate(divisors[-MOST_ATOMS:]):
        shown = text if re.fullmatch(r"[\w.]+(?:\[[^][]*\])?", text) else f"({text})"
        places = value.places(*wrapped(value.span, " (", f") / (@ ? (float){atom} : 1.0f)"))
        yield ranked_edit(code, 1.0 + 0.05 * k, value.begin, text, f"{shown} / {atom}", places)


def _rebracketed(text: str) -> Iterator[str]:
    """Yield a value with one pair of brackets removed, moved or added, the smallest change first."""
    tokens, opened = _TOKEN.findall(text), list[int]()
    pairs, found = list[tuple[int, int]](), list[tuple[int, str]]()
    # Leave out long values, and those with other characters, with `*p`, or with a cast of a value in brackets.
    is_other = "".join(text.split()) != "".join("".join(tokens).split())
    if is_other or len(tokens) > MOST_TOKENS or re.search(rf"(?:^|[-+*/(])\s*\*|{_CAST}\(", text):
        tokens = []
    for k, token in enumerate(tokens):
        if token.endswith("("):
            opened.append(k)
        elif token == ")" and opened:
            pairs.append((opened.pop(), k))
    for first, last in pairs or [(-1, len(tokens))]:
        rest = [token for k, token in enumerate(tokens) if k not in (first, last)]
        lead = tokens[first] if pairs else "("
        found += [(0, " ".join(rest))] if pairs and lead == "(" else []
        for a in range(len(rest) - 1) if lead == "(" else (first,):
            for b in range(a + 1, len(rest) + 1):
                # Do not move a size or number out of exp(): there, it may cancel out later, which would hide a mistake.
                cancels = lead != "(" and b < last - 1 and _SIZED.match("".join(rest[b + 1 : b + 2]))
                if (a, b) != (first, last - 1) and not cancels and _is_needed(rest, a, b, lead):
                    new = " ".join([*rest[:a], lead, *rest[a:b], ")", *rest[b:]])
                    found.append((abs(a - first) + abs(b - last + 1), new))
    # A divisor of one term that should divide the whole sum.
    for begin, end in pairwise([0, *_terms_of(text, 0, len(text))]):
        divisor = re.search(r"\s*/\s*[\w.]+(?:\[[^][]*\])?$", text[begin:end])
        if divisor and end - begin < len(text):
            found.append((1, f"({text[: begin + divisor.start()]}{text[end:]}){divisor[0]}"))
    yield from dict.fromkeys(re.sub(r"(?<=\() | (?=\))", "", new) for _, new in sorted(found))


def _is_needed(tokens: Sequence[str], a: int, b: int, lead: str) -> bool:
    """Return True if brackets around the tokens from `a` to `b` - 1 are valid and change the value.

    `lead` is the opening bracket, with a function's name if there is one: "(" or "exp(".
    """
    before, inside, after = tokens[a - 1] if a else "(", tokens[a:b], tokens[b] if b < len(tokens) else ")"
    depths = list(accumulate((token[-1] == "(") - (token == ")") for token in inside))
    is_sum = any(depth == 0 and token in "+-" for depth, token in zip(depths, inside, strict=True))
    is_operand = inside[0] not in "+-*/)" and inside[-1] not in "+-*/"
    if depths[-1] or min(depths) < 0 or not is_operand or before[-1] not in "+-*/(":
        return False
    return lead != "(" or (before == "/" and b > a + 1) or (is_sum and (before in "-*" or after in "*/"))


def _term_spans(code: str, value: _Value) -> list[tuple[int, int]]:
    """Return begin and end of each term of a value."""
    return list(pairwise([value.begin, *_terms_of(code, *value.span)]))


def _terms_of(code: str, at: int, end: int) -> Iterator[int]:
    """Yield the end of each term of a sum."""
    depth = 0
    for one in re.compile(r"(?<!\+)[+](?!\+)|(?<!-)-(?![->])|[][()?]").finditer(code, at, end):
        # A sign after another operator, as in `== -1`, ends no term.
        may_end = one[0] in "+-?" and depth == 0
        if may_end and re.search(r"[\w)\]]$", before := code[at : one.start()].rstrip()):
            yield at + len(before)
            if one[0] == "?":
                return
        depth += (one[0] in "([") - (one[0] in ")]")
    yield at + len(code[at:end].rstrip())
