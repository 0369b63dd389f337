"""Edits of single words: another variable, argument, member, number or function. See `grader.source.edits`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from grader.source.cpptext import NAMED_NUMBER, apart, definitions, macros
from grader.source.edited_source import EXTREME, Edit, function_macros, ranked_edit, replaced
from grader.source.landmarks import closed
from grader.source.scopes import WORD, Name, in_scope, is_whole, line_of, members_of, row_before

#: Limits on names that replace a name, and on those of a less likely kind.
MOST_NAMES, MOST_UNUSED = 10, 2
#: Limits on the words of a function, on places that one edit changes in the same way, and on a call's characters.
MOST_WORDS, MOST_ALIKE, LONGEST_CALL = 4000, 4, 1000
#: Limit on the characters of a call before one of its arguments.
LONGEST_BEFORE = 200
#: Limit on the arguments that are members of an object.
MOST_ARGUMENTS = 100
_CALL = re.compile(r"\b([A-Za-z_]\w*)(?:<[\w\s,:*]*>)?\s*\(")
_NO_CALLS = frozenset({"if", "for", "while", "switch", "return", "sizeof", "defined"})
_SET = re.compile(r"\s*(?:[-+*/%|&^]?=(?!=)|\+\+|--)")
_DECLARES = re.compile(
    r"\b(?:int|float|double|auto|long|size_t|unsigned|vector\s*<\s*float\s*>)\s*(?:const\s*)?[&*]?$"
)
_TEMPLATE_END = re.compile(r"[^<>(){};]*>\s*[({]")
#: The step NAME of a loop (`i += NAME`): usually the length of a tile.
_STEP = re.compile(r"\+=\s*([A-Za-z_]\w*)\b")
_COUNTER = re.compile(
    r"\bfor\s*\(\s*(?:const\s+)?(?:int|long|size_t|std::size_t|unsigned|int64_t|auto)\s+([A-Za-z_]\w*)"
)
#: Operations of vectors that are easily exchanged.
_FAMILIES = (("and", "andnot"), ("add", "sub"), ("fmadd", "fmsub", "fnmadd", "fnmsub"))
#: The text after an array's name where an element is set to a constant.
_RESET_OF = re.compile(r"(?:\[[^][]*\])+\s*=\s*-?[\w.]+\s*;")
#: Before and after an operand of a maximum or minimum: the operand before it; its own index, the operand after it.
_EXTREME_OF = re.compile(r"\b(?:std::)?f?(?:max|min)f?\(\s*(?:([\w.]+(?:\[\w+\])?)\s*,\s*)?$")
_OTHER_OPERAND = re.compile(r"(\[\w+\])?\s*(?:,\s*([\w.]+(?:\[\w+\])?)\s*)?\)")
#: The first index of a tile: the tile's number times its length.
_FIRST = re.compile(r"\bint\s+(\w+)\s*=\s*[A-Za-z_]\w*\s*\*\s*[A-Za-z_]\w*(?=\s*[,;])")
#: A loop's counter and its bound, if the bound is one name.
_BOUND = re.compile(r"\b(\w+)\s*<=?\s*([A-Za-z_]\w*)\s*(?=;)")
FACTOR = re.compile(r"\*\s*([A-Za-z_]\w*)")
FLOAT = (
    r"-?(?:\b\d+\.\d*(?:[eE][-+]?\d+)?f?|\b\d+[eE][-+]?\d+f?|"
    r"\b(?:FLT_M(?:IN|AX)|INFINITY)\b|std::numeric_limits<float>::\w+\(\))"
)
#: Brackets and their content, up to two levels.
_NESTED = r"\((?:[^();]|\([^();]*\))*\)"
#: Characters that separate the comparisons in a condition.
_PART = re.compile(r"[;{}&|?]")


def in_calls(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that swap two arguments of a call, or add an offset to an argument that is a pointer."""
    for call in _CALL.finditer(code, begin, end):
        if call[1] in _NO_CALLS:
            continue
        last = closed(code, call.end(), "()", LONGEST_CALL)
        scope, at, bare = in_scope(known, call.start()), call.end(), list[tuple[int, int, str]]()
        for piece in re.finditer(r"(?<=[(,])\s*([A-Za-z_]\w*)\s*(?=[,)])", code[call.end() - 1 : last]):
            start = call.end() - 1 + piece.start(1)
            inner = code[at:start]
            if piece[1] in scope and inner.count("(") == inner.count(")"):
                bare.append((start, start + len(piece[1]), piece[1]))
        line = line_of(code, call.start())
        for k, (a, b, one) in enumerate(bare):
            for c, d, other in bare[k + 1 : k + 4]:
                if scope[one] == scope[other] and one != other:
                    old, new = f"{one}, {other}", f"{other}, {one}"
                    yield 1, Edit(line, old, new, ((a, b, other), (c, d, one)))
            if scope[one].endswith("pointer"):
                for name in [name for name, kind in scope.items() if is_whole(kind)][-4:]:
                    yield 1, Edit(line, one, f"{one} + {name}", ((a, b, f"{one} + {name}"),))


def _named_numbers(code: str) -> set[str]:
    """Return the names of the macros without parameters."""
    return {macro.name for macro in macros(code) if macro.parameters is None and macro.text.strip()}


def of_words(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that replace a variable or a small number."""
    blocks, counters = block_lengths(code, begin, end, known), set(_COUNTER.findall(code, begin, end))
    factors = set(FACTOR.findall(code, begin, end))
    defined = _named_numbers(code)
    lengths = defined | set(re.findall(r"\bconst(?:expr)?\b[^;=]{0,80}\b(\w+)\s*=\s*\d+\s*;", code))
    uses = Counter(re.findall(r"\w+", code[begin:end]))
    tiles = dict.fromkeys(re.compile(r"\b(\w+)\s*\+=\s*[A-Za-z_]\w*\s*\)").findall(code, begin, end))
    tiles |= dict.fromkeys(_FIRST.findall(code, begin, end))
    computed = set(re.findall(r"\b(\w+)\s*=[^;=]*/", code[begin:end]))
    ends = set(_BOUND.findall(code, begin, end))
    thread_numbers = set(re.findall(r"\b(\w+)\s*=\s*omp_get_thread_num", code))
    for word in islice(WORD.finditer(code, begin, end), MOST_WORDS):
        at, old = word.start(), word[0]
        before, after = _before(code, at), code[word.end() : word.end() + 80].lstrip()
        is_head = re.search(rf"\b{old}\s*=[^;]*;$", before) is not None
        set_ = re.search(r"\b([A-Za-z_]\w*)\s*=$", before)
        is_length = set_ is not None and set_[1] in blocks
        if is_head or is_length or not _is_free(code, word):
            continue
        scope = in_scope(known, at)
        kind = scope.get(old, "")
        is_bare = before.endswith(("(", ",")) and after.startswith((",", ")"))
        kinds = {kind, kind.removeprefix("const ")}
        # Do not replace an argument by a constant if it may be passed by reference.
        is_number = is_whole(kind) or kind in ("float", "double")
        may_be_constant = is_number and (not is_bare or _is_passed_by_value(code, at))
        kinds |= {f"const {kind}"} if may_be_constant else set()
        others = [name for name, of in scope.items() if of in kinds and name != old] if kind else []
        if old in blocks and (least := re.search(r"\bmin\s*\([^;]*$", before)):
            # `min(T, N - i)` with N in place of T would leave a single tile, which hides a mistake.
            others = [name for name in others if name not in WORD.findall(least[0] + _PART.split(after)[0])]
        if code[at - 1] == "[" and code[word.end()] == "]":
            # Only a counter replaces an index: a size would be out of bounds, and an arbitrary value would be read.
            others = [name for name in others if name in counters]
        if (one := _EXTREME_OF.search(before)) and (other := _OTHER_OPERAND.match(after)):
            # A maximum of two equal numbers would switch it off.
            others = [name for name in others if f"{name}{other[1] or ''}" not in (one[1], other[2])]
        if kind == "tensor":
            # Only a tensor that the function does not use yet replaces a tensor.
            unused = [name for name in others if uses[name] <= 1]
            others = unused if len(unused) <= MOST_UNUSED else []
        # No variable is put on both sides of a comparison: that would switch off a loop or a condition.
        clause = f"{_PART.split(before)[-1]} {_PART.split(after)[0]}"
        is_test = re.search(r"[<>]|[=!]=", re.sub(r"\w<[\w\s:,*]*>", "", clause)) is not None
        compared = set(WORD.findall(clause)) if is_test else set[str]()
        is_bound = re.search(r"[<>]=?\s*$", code[max(0, at - 4) : at]) is not None
        # Other loops with the same counter may have the right bound.
        counter = re.search(r"\bfor\s*\([^()]*;\s*(\w+)\s*<=?$", before) if is_bound else None
        bounds = {bound for name, bound in ends if counter and name == counter[1]}
        favoured = bounds or (factors if before.endswith("*") else ())
        if re.match(r"[=!]=", after) or before.endswith(("==", "!=")):
            # A constant in a test for equality may only switch the test off.
            compared |= lengths
        others = _likely([name for name in others if name not in compared], list(scope), old, favoured)
        if old in ("0", "1") and not after.startswith("<"):
            others = ["1" if old == "0" else "0"]
        elif re.search(rf"\bfor\s*\([^;()]*\b{old}\s*=[^;]*;[^;]*$", before):
            # Without its counter, a condition switches the loop off, or never ends it.
            others = []
        elif is_bound and is_whole(kind):
            # OpenMP does not allow a loop's counter in the bound of the same loop.
            others = [name for name in others if not re.search(rf"\b{name}\s*[<>]=?$", before)]
            others = [f"{old} - 1", f"{old} + 1", *others]
            if code[at - 2] == "=":
                others += [f"{name} - 1" for name in others if re.fullmatch(r"[A-Z]|d|n", name)]
        line = line_of(code, at)
        if old in counters and not is_bound and not is_bare:
            begins = [name for name in tiles if is_whole(scope.get(name, "")) and name not in clause]
            for k, tile in enumerate(begins[-3:]):
                new = f"({tile} + {old})"
                yield 1.2 + 0.1 * k, Edit(line, old, new, ((*word.span(), new),))
        if re.match(r"[%/&]", after):
            # With a thread's number in place of a counter, work that all elements share may become work of the thread.
            others = [name for name in others if name not in thread_numbers]
        rank = 1.5 + 2 * (kind == "float" or old.isdigit())
        if is_bare or old in defined or re.match(r"\?|[=!]=", after):
            rank = 0.5
        if old == "1" and before.endswith(("+", "-")):
            rank = 1.4
        head = re.search(r"\w+\s*[-+*/<>=]+\s*$", row_before(code, at)) if old.isdigit() else None
        shown = head[0].lstrip() if head else ""
        for k, new in enumerate(others):
            is_weak = old in lengths and kind.endswith("int")
            # If nothing else uses the new variable, the edit is weak: it may only turn a write into one without effect.
            is_weak |= not is_whole(kind) and kind != "tensor" and uses[new] <= 1
            # With another array in a reset, the first array is not reset, which may hide a mistake.
            is_weak |= _RESET_OF.match(after) is not None
            # A bound that is higher by one can add an empty last tile, which can hide a wrong test for the last tile.
            is_weak |= new == f"{old} + 1"
            # A size in place of a computed number of tiles may only make the loop long enough.
            is_weak |= is_bound and old in computed and re.fullmatch(r"[A-Z]\w?|d|n", new) is not None
            # A double in place of a float would change the type of the expression in all calls, as in exp(x - m).
            is_value = kind == "float" and not is_bare and not before.endswith("&")
            place = (*word.span(), f"(float){new}" if is_value else new)
            # With a counter in place of a size, the part may be right by chance on all inputs that are tried.
            is_unlikely = new in counters and re.fullmatch(r"[A-Z]\w*|d", old) is not None
            # With a counter's end in place of the counter, a function may read the next row or behind the array.
            is_unlikely |= (is_bare or after.startswith("]")) and (old, new) in ends
            likely = rank + 0.1 * k + is_unlikely - 0.9 * (new in bounds)
            yield likely, Edit(line, shown + old, shown + new, (place,), is_weak=is_weak)


def block_lengths(code: str, begin: int, end: int, known: Sequence[Name]) -> set[str]:
    """Return the names of integers that are lengths of blocks: steps of loops, and constants above 1.

    Edits that make a block longer could leave a single block, which hides a mistake that needs several blocks.
    """
    whole, numbers = {each.name for each in known if is_whole(each.kind)}, _named_numbers(code)
    named = NAMED_NUMBER.findall(code, begin, end)
    constants = {name for name, value in named if value.isdigit() or value in numbers}
    return (set(_STEP.findall(code, begin, end)) & whole) | constants


def _likely(others: Sequence[str], declared: Sequence[str], old: str, favoured: Collection[str]) -> list[str]:
    """Return the likeliest replacements of `old`.

    First come names that differ from `old` in case only. Then come those of which one begins with the other, as Bc and
    bcCur, then names in `favoured`, then the rest. In each group, the name declared nearest to `old` comes first, then
    the one declared last, then the second nearest, and so on.
    """
    at = declared.index(old) if old in declared else 0
    nearest = sorted(others, key=lambda name: abs(declared.index(name) - at))
    mixed = [name for pair in zip(nearest, reversed(others), strict=True) for name in pair]
    mixed.sort(key=lambda name: (name.lower() != old.lower(), not _is_akin(name, old), name not in favoured))
    return list(dict.fromkeys(mixed))[:MOST_NAMES]


def _is_akin(one: str, other: str) -> bool:
    """Return True if one of the names begins with the other, or they differ in one character only, in any case.

    Both must have several characters.
    """
    short, long = sorted((one.lower(), other.lower()), key=len)
    differing = sum(a != b for a, b in zip(short, long, strict=False)) + len(long) - len(short)
    return len(short) > 1 and (long.startswith(short) or differing == 1)


def _before(code: str, at: int) -> str:
    return code[max(0, at - 80) : at].rstrip()


def _is_passed_by_value(code: str, at: int) -> bool:
    """Return True if a function of this file gets the argument at an offset by value, or by a constant reference."""
    call = re.search(rf"\b(\w+)\s*\(((?:[^();{{}}]|{_NESTED})*)$", code[max(0, at - LONGEST_BEFORE) : at])
    named = [each for each in definitions(code) if call is not None and each.name == call[1]]
    k = len(apart(call[2])) - 1 if call is not None else 0
    parameters = [apart(code[each.opened : each.closed]) for each in named]
    return bool(named) and all(
        k < len(each) and ("&" not in each[k] or "const" in each[k]) for each in parameters
    )


def _is_free(code: str, word: re.Match[str]) -> bool:
    """Return True if the word can be replaced by another name: it is not declared or set here, nor a member."""
    before = _before(code, word.start())
    if before.endswith((".", "->", "::", "++", "--", "[&", "[=")):
        return False
    if _SET.match(code, word.end()) or _DECLARES.search(before):
        return False
    # A template argument must be a constant.
    if re.search(r"\w<(?:[^<>(){};]*,)?$", before) and _TEMPLATE_END.match(code, word.end()):
        return False
    return not re.compile(r"\s*(?:\(|::)").match(code, word.end())


def members(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that replace a member, as in `tile.begin`, by another one of the same object.

    After `<` or `<=`, members of other objects are tried, too: those that the function compares, adds or assigns. An
    argument may also be one of the last integers.
    """
    argument = re.compile(r"(?<=[(,])\s*([A-Za-z_]\w*\.(\w+))(?=\s*[,)])")
    for one in islice(argument.finditer(code, begin, end), MOST_ARGUMENTS):
        if one[2] not in members_of(code, "int|long|size_t"):
            continue
        whole = [name for name, kind in in_scope(known, one.start()).items() if is_whole(kind)]
        for k, name in enumerate(whole[: -MOST_NAMES - 1 : -1]):
            yield ranked_edit(code, 1.2 + 0.1 * k, one.start(1), one[1], name, replaced(one.span(1), name))
    member = re.compile(
        r"(?<=[<=+-])\s*([A-Za-z_]\w*(?:\[\w+\])?)\.(\w+)\b(?!\s*(?:[\w([.]|<[\w, ]+>|[-+*/]?=))"
    )
    found = list(islice(member.finditer(code, begin, end), MOST_WORDS))
    every = dict.fromkeys(one.groups() for one in found)
    objects = dict.fromkeys(re.compile(r"(?<![\w.])([A-Za-z_]\w*)\.").findall(code, begin, end))
    for one in found:
        is_bound, scope = code[: one.start()].endswith(("<", "<=")), in_scope(known, one.start())
        others = [(a, b) for a, b in every if a in scope and (is_bound or a == one[1])]
        # The same member of another object.
        alike = [(each, one[2]) for each in objects if scope.get(each, "").endswith(" object")]
        others = [each for each in (*alike, *others) if each != one.groups()]
        for k, (name, of) in enumerate(others[: MOST_NAMES if is_bound else MOST_UNUSED]):
            places = replaced((one.start(1), one.end()), f"{name}.{of}")
            yield ranked_edit(code, 1.0 + 0.1 * k, one.start(1), f"{one[1]}.{one[2]}", f"{name}.{of}", places)


def extremes(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that exchange min and max, operations of vectors (`_FAMILIES`), or their > and >=, < and <=."""
    for one in EXTREME.finditer(code, begin, end):
        new = one[0].replace("min", "max") if "min" in one[0] else one[0].replace("max", "min")
        yield ranked_edit(code, 0, one.start(), one[0], new)
    for family in _FAMILIES:
        for one in re.compile(rf"\b(_mm\d*_)({'|'.join(family)})(_p[sd])(?=\s*\()").finditer(
            code, begin, end
        ):
            ended = closed(code, one.end() + 1, "()", LONGEST_CALL)
            for new in [f"{one[1]}{other}{one[3]}" for other in family if other != one[2]]:
                place = (one.start(), ended, new + code[one.end() : ended])
                yield ranked_edit(code, 0, one.start(), one[0], new, [place])
    ordered = re.compile(
        r"\b(_mm\d*_(?:movehl|movelh|unpacklo|unpackhi|sub|div)_p[sd]\()\s*(\w+)\s*,\s*(\w+)\s*\)"
    )
    for one in ordered.finditer(code, begin, end):
        old, new = f"{one[2]}, {one[3]}", f"{one[3]}, {one[2]}"
        yield ranked_edit(code, 0.2, one.start(2), old, new, [(*one.span(), f"{one[1]}{new})")])
    for one in re.compile(r"\b_mm\d*_cmp_\w+\(([^;]*?\b_CMP_)([GL])([TE])(_\w+)\s*\)").finditer(
        code, begin, end
    ):
        new = f"{one[2]}{'E' if one[3] == 'T' else 'T'}"
        place = (*one.span(), f"{code[one.start() : one.start(2)]}{new}{one[4]})")
        old = f"_CMP_{one[2]}{one[3]}{one[4]}"
        yield ranked_edit(code, 0, one.start(2), old, f"_CMP_{new}{one[4]}", [place])


def uncleared(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that give a new tensor zeros in place of no values."""
    for call in re.compile(r"\b((?:at|torch)::)empty(_like)?\s*\(").finditer(code, begin, end):
        ended, old, new = (
            closed(code, call.end(), "()"),
            call[0].rstrip("( "),
            f"{call[1]}zeros{call[2] or ''}",
        )
        places = replaced((call.start(), ended), f"{new}({code[call.end() : ended]}")
        yield ranked_edit(code, 0.6, call.start(), old, new, places)


def filled(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that fill another vector."""
    pair = re.compile(r"\bfill\(\s*([A-Za-z_]\w*)\.begin\(\)\s*,\s*(\1)\.end\(\)")
    for call in pair.finditer(code, begin, end):
        scope = in_scope(known, call.start())
        for name in [name for name, kind in scope.items() if kind == scope.get(call[1]) and name != call[1]]:
            places, words = [(*call.span(k), name) for k in (1, 2)], f"{name} in place of {call[1]}"
            yield ranked_edit(code, 0.7, call.start(1), call[1], name, places, words)


def in_macros(code: str, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that replace a parameter or a size in a macro's text. A size has a capital letter or `d` as name."""
    whole = [each.name for each in known if each.kind.endswith("int")]
    sizes = dict.fromkeys(name for name in whole if re.fullmatch(r"[A-Z]|d", name))
    for macro in function_macros(code):
        arrays = re.findall(r"(\w+)\s*\)?\s*[\[.]", macro.text)
        parameters = [name for name in macro.parameters or () if name not in arrays]
        if re.search(r"[;{?]", macro.text):
            continue
        for word in WORD.finditer(code, macro.begin, macro.end):
            for new in (*parameters, *sizes):
                is_apart = word[0] in sizes or code[word.start() - 1 : word.end() + 1] == f"({word[0]})"
                if (word[0] in parameters or word[0] in sizes) and is_apart and new != word[0]:
                    yield ranked_edit(code, 2, word.start(), word[0], new)


def numbers(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits of literal numbers: the first value of a sum or a maximum, and a step or a bound."""
    for one in re.compile(rf"(?<=[=,(:?{{])(?<![=!<>]=)\s*({FLOAT}|0)(?=\s*[;,):}}])").finditer(
        code, begin, end
    ):
        old, before = one[1], row_before(code, one.start(1))
        if old == "0" and not re.search(r"\bfloat\s+\w+\s*=\s*$", before):
            continue
        for k, new in enumerate(("0.0f", "1.0f", "-INFINITY")):
            if new.rstrip("f.0") != old.rstrip("f.0"):
                text = "-__builtin_inff()" if k == 2 else new
                yield ranked_edit(code, 1.0 + 0.2 * k, one.start(1), old, new, [(*one.span(1), text)])
        # A sum may begin with an element, such as a bias, that the index of the loop around selects.
        scope = in_scope(known, one.start(1)).items() if re.search(r"\bfloat\s+\w+\s*=\s*$", before) else ()
        arrays = [each for each, kind in scope if kind.endswith("pointer")][-MOST_NAMES:]
        elements = [f"{array}[{index}]" for index, kind in scope if is_whole(kind) for array in arrays]
        for k, new in enumerate(elements[-len(arrays) :]):
            yield ranked_edit(code, 1.6 + 0.1 * k, one.start(1), old, new, [(*one.span(1), new)])
        # A maximum may begin at the first element.
        name = re.search(r"\b(\w+)\s*=\s*$", before)
        compared = rf"\bif\s*\(\s*(\w+\[[^][]*\])\s*>=?\s*{name[1]}\b" if name else r"(?!)"
        for element in re.compile(compared).findall(code, one.end(), min(end, one.end() + 400))[:1]:
            counters = re.findall(r"\bfor\s*\([^;=]*?(\w+)\s*=", code[one.end() : one.end() + 400])[:1]
            new = re.sub(rf"\b(?:{'|'.join(counters)})\b", "0", element) if counters else element
            yield ranked_edit(code, 0.9, one.start(1), old, new, [(*one.span(1), new)])
    number = re.compile(r"(?<![\w.\[])(?:[2-9]|[1-9]\d+)(?![\w.])(?!\s*>)")
    digits, blocks = dict.fromkeys(number.findall(code, begin, end)), block_lengths(code, begin, end, known)
    for one in number.finditer(code, begin, end):
        before = row_before(code, one.start())
        # With a smaller step a loop visits some elements twice, which may hide a mistake.
        is_weak = before.rstrip().endswith("+=")
        set_ = re.search(r"(\w+)\s*=\s*$", before)
        if set_ is not None and set_[1] in blocks:
            continue
        for new in [each for each in digits if each != one[0]][:4]:
            rank, edit = ranked_edit(code, 2.0, one.start(), one[0], new)
            yield rank, replace(edit, is_weak=is_weak)
