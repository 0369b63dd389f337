"""Edits of statements: remove, copy or reset one. See `grader.source.edits`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from grader.source.cpptext import apart, definitions
from grader.source.edited_source import MOST_DEPTH, Edit, function_macros, insertion, ranked_edit, replaced
from grader.source.landmarks import closed
from grader.source.scopes import (
    WORD,
    Name,
    collapsed,
    for_loops,
    in_scope,
    is_whole,
    line_of,
    loop_bodies,
    outer_loops,
    simple_statements,
    statement_end,
    words_declared,
)
from grader.source.term_edits import READER
from grader.source.word_edits import FLOAT

#: Limits on statements that set one variable, and on statements of a function to move.
MOST_STATED, MOST_UNITS = 40, 400
#: Limits on moving a statement: how many statements or loops it passes, and how many loops it leaves.
MOST_STEPS, MOST_LEVELS = 3, 3
_LEAVES = re.compile(r"\b(?:continue|break|return(?:\s+\w+)?)\s*;")
#: A declaration of one number with an initial value.
OWN = re.compile(r"(float|double|int)\s+(\w+)\s*(=)(?!=)")
#: A variable or an element that is set or added to.
ADDED_TO = re.compile(r"(\*?[\w.]+(?:\[(?:[^\[\]]|\[[^\[\]]*\])*\]|\([^()]*\)(?=\s*\+?=))*)\s*(\+?=)(?!=)")
#: A statement that adds to an element, by a writer or by an assignment. Groups: the writer's name and the arguments
#: for the element; or the element and its indices.
_PILED_UP = re.compile(
    r"(?<=[;{})])\s*(?:(\w*[wW]rite\w*)\(\s*([^;()]+),\s*\w*[rR]ead\w*\(\s*\2\)\s*\+"
    r"|([A-Za-z_]\w*((?:\[[^\[\]]*\]|\([^()]*\))+))\s*(?:\+=|=\s*\3\s*\+))"
)
#: The same in several statements: a number gets the element, grows, and is written. Groups: number, element, writer.
_WRITTEN_BACK = re.compile(
    r"(?<=[;{})])\s*float\s+(\w+)\s*=\s*\w*[rR]ead\w*\(\s*([^;()]+)\)\s*(?:;\s*\1\s*\+=|\+)[^;{}]{0,300};"
    r"\s*(\w*[wW]rite\w*)\(\s*\2,\s*\1\s*\)"
)
#: An assignment of a maximum or minimum. Groups: variable, function, the call.
_TAKEN = re.compile(r"(\w+)\s*=\s*(?=((?:std::)?f?(?:max|min)f?)\()([^;?]*\))$")
#: A call with plain arguments. Groups: function, arguments.
_PLAIN_CALL = re.compile(r"(?<![\w.:])\*?(?:std::)?([A-Za-z_]\w*)\(((?:[\w\s,.+*&-]|\(\))*)\)")
#: A statement that only calls a function without arguments. Group 1 is the function.
_CALLS_ALONE = re.compile(r"(?<=[;{}])\s*([A-Za-z_]\w*)\(\)\s*;")
#: Functions of the standard library that read a range.
_OF_RANGES = {"max_element", "min_element", "accumulate", "reduce", "inner_product"}
_LAMBDA = re.compile(r"=\s*\[[^][]*\]\s*\(")
#: Steps of pointers at the end of a loop's body, and the most characters that they have.
LONGEST_STEPS = 200
_STEP = r"(?:\w+\s*\+=[^;,=]+|\+\+\w+|\w+\+\+)"
_LAST_STEPS = re.compile(rf"[;}}]\s*({_STEP}(?:[,;]\s*{_STEP})*;)\s*\}}$")
#: A constant reference to a float. Groups: its name, the element.
_REFERS = re.compile(
    r"\bconst\s+(?:float\s*&|auto\s*&(?=\s*\w+\s*=\s*\*\s*(?:std::)?\w+_element\b))\s*(\w+)\s*=([^;]+)(?=;)"
)
#: A loop over copies of elements: `for (Row r : rows)`. Groups: the declaration, its type, name and container.
_COPIES_OF = re.compile(
    r"\bfor\s*\(\s*(((?!const\b|auto\b)[A-Za-z_][\w:]*(?:\s*<[^<>;()]*>)?)\s+(\w+))\s*:\s*([^;(){}]+)\)"
)
#: The beginning of an assignment, a call, or a postfix `++` or `--`. Declarations and prints do not match.
ACTS = re.compile(
    r"(?!(?:std::)?(?:f?printf|puts|cout|cerr)\b)(?:\+\+|--|\*(?!\w+\s*[,;]))?(?!(?:const|static|constexpr|alignas|thread_local|auto|float|double|int|long|unsigned|size_t)\b)[\w:.]+\s*(?:[-+*/]?=|\[|\(|\+\+|--|->)(?!=)"
)
#: Template of a pattern. With `format` and a name, the pattern finds the places that set this variable or its elements.
SET_OF = r"(?<![\w.])(?:{0})\s*(?:\[[^][;]*\]\s*)*(?:[-+*/]?=(?!=)|\+\+|--)|(?:\+\+|--)(?:{0})\b"
#: A lambda expression that copies variables. Group 1 is the text in its square brackets.
_COPIES = re.compile(r"\bauto\s+\w+\s*=\s*\[([^][&]*[\w=][^][]*)\]\s*(?:\([^()]*\))?[^{};]*\{")
#: A declaration of a number, pointer or iterator with a first value. Group 1 is the name.
_COPY = re.compile(r"\s*(?:const\s+)?(?:[\w:]+(?:<\w+>)?[\s*]+(?:const\s+)?)?(\w+)\s*=(?!=)")
#: An array's element, or the value of a reader, that is kept as a whole number. Groups: type, name, value, array.
_CUT = re.compile(r"(?:const\s+)?(int|long|short|unsigned|size_t)\s+(\w+)\s*=\s*((\w+)\s*[\[(][^=;]*)$")
_WHOLE = re.compile(r"\b(?:u?int\w*|long|short|char|size_t|bool)\b")
#: Memory without initial values. Group 1 is its length in bytes, or group 2 its number of elements.
_ALLOCATED = re.compile(
    r"=\s*(?:\([^()]*\)\s*|\w*_cast<[^<>]*>\()?(?:(?:std::)?malloc\(((?:[^()]|\([^()]*\))*)\)"
    r"|new float\[([^][]*)\](?!\s*[({]))"
)
#: A declaration of vectors, or of objects of a struct, by constructor calls: `Tile a(h, w), b(h, w);`. Groups: type,
#: objects.
_CONSTRUCTED = re.compile(
    r"(?<=[;{}])\s*([A-Z]\w*|(?:std::)?vector<\w+>)\s+(\w+\s*[({](?:[^;{}()]|\([^;()]*\))*[)}](?:\s*,[^;]*)?);"
)
_MADE_BY = re.compile(r"\b(\w+)\s*(\((?:[^;()]|\([^()]*\))*\)|\{[^;{}]*\})(?=\s*[,;])")
#: An element that is set if a condition holds. Group 1 or 2 is the element.
_SETS = r"([A-Za-z_]\w*(?:\[[^;=]*?\])+)\s*=(?!=)[^;{}]*;"
_SET_IF = re.compile(rf"\bif\s*\((?:[^;(){{}}]|\([^;(){{}}]*\))*\)\s*(?:\{{\s*{_SETS}\s*\}}|{_SETS})")
#: A loop that adds to each element of an array. Groups: loop head, counter, element.
_SUMS_OF = re.compile(
    r"(\bfor\s*\([^;(){}]*?\b(\w+)\s*=[^;(){}]*;[^;(){}]*;[^;(){}]*\))\s*\{?\s*(\w+\[[^][]*\b\2\b[^][]*\])\s*\+="
)


def jumps(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that remove or replace a jump: `continue`, `break` or `return`."""
    loops = loop_bodies(code, begin, end)
    for jump in _LEAVES.finditer(code, begin, end):
        row = code[code.rfind("\n", 0, jump.start()) + 1 : jump.start()]
        condition = re.search(r"\bif\s*\(.*\)\s*\{?\s*$", row)
        old = (condition[0] if condition else "") + jump[0]
        around = [(first, last) for first, last in loops if first < jump.start() < last]
        # Remove a `return` with a value only if another one follows: the function must return a value.
        if " " in jump[0] and not (around and "return" in code[jump.end() : end]):
            continue
        yield ranked_edit(code, 0, jump.start(), old, "", [(*jump.span(), "")])
        leaves = jump[0] in ("return;", "break;") and around
        other = "continue;" if leaves else "break;" if jump[0][0] == "c" else ""
        if other:
            yield ranked_edit(code, 0, jump.start(), jump[0], other)
        for step in _skipped(code, begin, jump, around[-1:]) if jump[0][0] == "c" else ():
            words, place = f"with `{step}` before it", (*jump.span(), f"{{ {step} continue; }}")
            yield ranked_edit(code, 0, jump.start(), jump[0], "", [place], words)


def _skipped(code: str, begin: int, jump: re.Match[str], around: Sequence[tuple[int, int]]) -> list[str]:
    """Return [a loop's last steps of pointers, or the step of a `while`, if `jump` (`continue`) skips it], or [].

    `around` has the body of the innermost loop with braces, if any.
    """
    found = list[str]()
    for _, last in around:
        if steps := _LAST_STEPS.search(code, max(jump.end(), last - LONGEST_STEPS), last + 1):
            found = [" ".join(steps[1].split())]
    for head in re.compile(r"\bwhile\s*\(\s*(\w+)[^()]*\)").finditer(code, begin, jump.start()):
        row = re.compile(rf"\b{head[1]}\s*(?:[-+]?=[^=;]*|\+\+|--);")
        if step := row.search(code, jump.end(), max(jump.end(), statement_end(code, head.end()))):
            found = [step[0]]
    return found


def resets(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that set a variable to its initial value, either after its declaration or at the start of a loop."""
    loops = loop_bodies(code, begin, end)
    of_macros = "|".join(macro.name for macro in function_macros(code)) or r"(?!)"
    stated = dict[str, list[tuple[int, str]]]()
    """Places and texts of statements by their first word."""
    for one in simple_statements(code, begin, end):
        if not one.is_bare:
            stated.setdefault(re.findall(r"\w*", one.text)[0], []).append((one.begin, one.text))
    for each in known:
        kinds = ("float", "double", "vector", "array", "objects")
        own = code.find(";", each.begin) + 1
        statement = re.split(rf"\b{each.name}\b", code[max(0, each.begin - 200) : own])[-1]
        allocated = _ALLOCATED.search(statement) if each.kind == "pointer" else None
        if not (each.kind.endswith(kinds) or allocated) or each.kind.startswith("const"):
            continue
        element = rf"(?<![\w.]){each.name}\s*(?:\[[^\]=;]*\]\s*){{0,2}}"
        is_set = (
            rf"{element}(?:[-+*/]=|=(?!=))|\w*[wW]rite\w*\(\s*{each.name}\b|&\s*\w+\s*[:=]\s*{each.name}\b"
            rf"|(?<![\w.]){each.name}\.(?:begin|data)\(|[(,]\s*&\s*{each.name}\s*\["
            rf"|\b(?:{of_macros})\(\s*{each.name}\b|\b(?:copy(?:_n)?|mem(?:cpy|move))\([^;]{{0,200}}[,(]\s*{each.name}\s*[,)]"
        )
        again = re.compile(
            rf"\bfill\w*\s*\(\s*{each.name}\b|\bmemset\s*\(\s*&?\s*{each.name}\b|\b{each.name}\.assign\("
            rf"|{element}=\s*(?:{FLOAT}|0)\s*;|:\s*{each.name}\)\s*\w+\s*=\s*(?:{FLOAT}|0)\s*;"
            rf"|\w*[wW]rite\w*\(\s*{each.name}\b[^;]*,\s*(?:{FLOAT}|0)\)"
        )
        last = min(end, each.end)
        if not re.compile(rf"{is_set}|{again.pattern}").search(code, each.begin, last):
            continue
        given = re.search(rf"[=,]\s*({FLOAT}|0)\s*\)?\s*[;,]", statement)
        is_maximum = re.compile(rf"{element}=[^;]*\bf?max|[<>]=?\s*{element}\)").search(code, begin, end)
        value = given[1] if given else "-INFINITY" if is_maximum else "0"
        # The logarithm of a sum starts at -INFINITY, the logarithm of 0.
        is_logarithm = re.compile(rf"\bexpf?\s*\(\s*{element}-").search(code, begin, end) and value == "0"
        is_one = each.kind.endswith(("float", "double"))
        value = "{}" if each.kind == "objects" else value
        shown = f"`{each.name} = {value};`" if is_one else f"a loop that sets all of {each.name} to {value}"
        bytes_ = f", {allocated[1] or f'({allocated[2]}) * sizeof(float)'}" if allocated else ""
        new = f" if (@) gpt149_set({each.name}, {value.replace('-INFINITY', '-__builtin_inff()')}{bytes_}); "
        if each.kind == "objects":
            new = f" if (@) for (auto& gpt149_one : {each.name}) gpt149_one = {{}}; "
        use, inside = re.compile(rf"\b{each.name}\b"), [at for at, _ in loops if each.begin <= at < each.end]
        inside = [at for at in inside if use.search(code, at, closed(code, at, "{}"))]
        # In a loop that changes the variable step by step, the edit is weak (`Edit.is_weak`): it would undo the steps.
        others = [one.start() for one in islice(again.finditer(code, each.begin, last), MOST_STATED)]
        is_step = re.compile(rf"{element}(?:[-+*/]=|=.*\b{each.name}\b)")
        steps = [at for at, text in stated.get(each.name, ())[:MOST_STATED] if is_step.match(text)]
        stepped = {max([body for body, ended in loops if body <= at < ended], default=0) for at in steps}
        is_alone = each.begin >= begin and "(" not in code[code.rfind("\n", 0, own) : own].split(each.name)[0]
        for k, at in enumerate([*([own] if is_alone else ()), *reversed(inside)]):
            line = line_of(code, at)
            words, place = f"after line {line} add {shown}", (at, at, new)
            declared = line_of(code, each.begin)
            note = "memory without initial values" if allocated else "its first value"
            if others:
                is_outside = not any(at <= one < closed(code, at, "{}") for one in others)
                nearest = max((one for one in others if one < at), default=others[0])
                # A lambda expression before the loop may be called in the loop.
                is_called = _LAMBDA.search(code, each.begin, nearest) is not None
                note = f"sets {each.name}" if is_called else "set here, outside of that loop"
                declared = line_of(code, nearest) if is_outside else 0
            if declared == line:
                users = [line_of(code, one) for one in steps if at < one < last]
                declared, note = min(users, default=0), "uses that value"
            declared = declared if declared != line else 0
            edit = Edit(line, "", shown, (place,), words, declared, note, at in stepped)
            yield 0.9 + 0.05 * k, edit
            if is_logarithm:
                place = (at, at, new.replace(", 0", ", -__builtin_inff()", 1))
                words = re.sub(r"\b0(?=;|$)", "-INFINITY", words)
                yield 1.5 + 0.05 * k, replace(edit, new="-INFINITY", places=(place,), words=words)


def cleared(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that set the elements of a sum to 0 before a loop over its terms, but no other elements of the array.

    For `t[j] += ...` in a loop over j in a loop over k, the edit adds a loop over j before that over k.
    """
    outer = {body: at for at, body, _ in outer_loops(code, begin, end)}
    loops, heads = list(for_loops(code, begin, end)), function_macros(code)
    shared = {at for nest in collapsed(code, begin, end) for at, _ in nest}
    piled = [
        (one.start(1), one[2], one[1], "") if one[1] else (one.start(3), one[4], "", one[3])
        for one in islice(_PILED_UP.finditer(code, begin, end), MOST_STATED)
    ]
    piled += [(one.start(1), one[2], one[3], "") for one in _WRITTEN_BACK.finditer(code, begin, end)]
    for start, indices, writer, element in piled[:MOST_STATED]:
        # A writer may take a reference to the value.
        zero, reset = (
            ("float zero = 0; ", f"{writer}({indices}, zero);") if writer else ("", f"{element} = 0;")
        )
        names, own, inside, passed = set(WORD.findall(indices)), set[str](), "", 0
        for at, body, last in reversed(loops):
            if not body <= start < last:
                continue
            counter = re.search(r"\(\s*(?:\w+\s+)*(\w+)\s*[=,]", code[at:body])
            if counter is not None and counter[1] not in names:
                passed += 1
                new = f"{zero}{inside}{reset}"
                # A loop that begins elsewhere adds up one tile of the terms: earlier tiles must stay in the sum.
                head = code[at:body] + "".join(
                    one.text for one in heads if code.startswith(f"{one.name}(", at)
                )
                is_whole_sum = re.search(r"=\s*0\s*[;,]", head) is not None
                fits = is_whole_sum and at not in shared and passed <= MOST_LEVELS
                if fits and can_leave(code, new, code[at:last], own):
                    opens, closes = braces(at, loops, is_in_block=body in outer)
                    words = f"before the loop of line {line_of(code, at)} add `{new}`"
                    words += ", with braces around both" if opens else ""
                    beside = (outer.get(body, at), f"{opens} if (@) {{ {new} }} "), (last, closes)
                    places = [insertion(*one) for one in beside if one[1]]
                    yield ranked_edit(code, 1 + 0.05 * passed, start, "", new, places, words)
            elif passed or counter is None:
                break
            else:
                inside = f"{' '.join(code[at:body].split())} {inside}"
                own.add(counter[1])
                names |= {*WORD.findall(code[at:body])}


def braces(at: int, loops: Sequence[tuple[int, int, int]], *, is_in_block: bool) -> tuple[str, str]:
    """Return texts to put before and after the loop at an offset, so that statements can be added beside it.

    They are empty for a loop that is directly in a block. The comment in the second text sorts closing braces.
    """
    depth = sum(body <= at < last for _, body, last in loops)
    return ("", "") if is_in_block else (" {", f"/*{MOST_DEPTH - depth:03}*/ }}")


def can_leave(code: str, text: str, loop: str, own: Collection[str]) -> bool:
    """Return True if no variable in a text is declared in a loop, except the `own` variables of the text."""
    names = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*\b(?!\s*(?:\(|::))", text)) - {*own}
    return not names & words_declared(code, loop)


def made_anew(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that construct a vector, or an object of a struct, again at the start of each loop that uses it."""
    for one in _CONSTRUCTED.finditer(code, begin, end):
        last = closed(code, one.end(), "{}")
        for name, given in _MADE_BY.findall(code, one.start(2), one.end()):
            # `resets` has the edits for a vector whose elements all begin with the same number.
            if one[1].endswith("vector<float>") and re.fullmatch(
                rf"\([^,]*(?:,\s*(?:{FLOAT}|0)\s*)?\)", given
            ):
                continue
            new = f"{name} = {one[1]}{given};"
            for body, ended in loop_bodies(code, one.end(), last):
                if re.compile(rf"\b{name}\b").search(code, body, ended):
                    line, declared = line_of(code, body), line_of(code, one.start(1))
                    place, words = insertion(body, f" if (@) {{ {new} }} "), f"after line {line} add `{new}`"
                    yield 0.95, Edit(line, "", new, (place,), words, declared, "its first value")


def computed_once(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that call a function once, before the loop around it: the loop may change what the function reads."""
    called = {each.name for each in definitions(code)} - {each.name for each in function_macros(code)}
    called |= _OF_RANGES
    for at, body, last in outer_loops(code, begin, end):
        own = words_declared(code, code[at:last])
        calls = (one for one in _PLAIN_CALL.finditer(code, body, last) if one[1] in called)
        for one in islice(calls, MOST_STEPS):
            if not own & set(WORD.findall(one[2])):
                kept = f"gpt149_once_{one.start()}"
                new = f" std::decay_t<decltype({one[0]})> {kept}{{}}; if (@) {kept} = {one[0]}; "
                words = f"with {one[0]} computed once, before the loop of line {line_of(code, at)}"
                places = [insertion(at, new), *replaced(one.span(), kept)]
                yield ranked_edit(code, 0.8, one.start(), one[0], "", places, words)


def emptied(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that empty a vector, to which a loop appends elements, at the start of each loop around."""
    appends = re.compile(r"\b([A-Za-z_]\w*)\s*\.\s*(?:push_back|emplace_back)\s*\(")
    loops = loop_bodies(code, begin, end)
    for one in islice(appends.finditer(code, begin, end), MOST_STATED):
        declared = [
            each.begin for each in known if each.name == one[1] and each.begin <= one.start() < each.end
        ]
        for body, _ in [
            loop for loop in loops if max(declared, default=end) <= loop[0] <= one.start() < loop[1]
        ]:
            line, new = line_of(code, body), f"{one[1]}.clear();"
            place, words = insertion(body, f" if (@) {new} "), f"after line {line} add `{new}`"
            yield 0.9, Edit(line, "", new, (place,), words, line_of(code, one.start()), "appends to it")


def missing_calls(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that begin a function with a call that other functions make, such as `clear();`."""
    at = code.find("{", begin) + 1
    for name in list(dict.fromkeys(_CALLS_ALONE.findall(code)))[:MOST_STEPS]:
        if at and not re.compile(rf"\b{name}\s*\(").search(code, begin, end):
            new = f"{name}();"
            place, words = insertion(at, f" if (@) {new} "), f"after line {line_of(code, at)} add `{new}`"
            yield ranked_edit(code, 1.1, at, "", new, [place], words)


def missing_breaks(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that end a case of a `switch` before the next one."""
    for label in re.compile(r"(?<=[;}])\s*\b(case\b[^:;{}]*|default\s*):(?!:)").finditer(code, begin, end):
        if not re.search(
            r"\b(?:break|return|continue)\b[^;]*;\s*$", code[max(begin, label.start() - 80) : label.start()]
        ):
            place, words = insertion(label.start(), " if (@) break; "), "before it add `break;`"
            yield ranked_edit(code, 0, label.start(1), label[1], "", [place], words)


def other_cases(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that set an element to 0 where a condition forbids to set it: an `else` to `if (i < n) t[i] = x;`."""
    for one in islice(_SET_IF.finditer(code, begin, end), MOST_STATED):
        if not re.compile(r"\s*else\b").match(code, one.end()):
            new = f"else {one[1] or one[2]} = 0;"
            place, words = (
                insertion(one.end(), f" {new.replace(' ', ' if (@) ', 1)} "),
                f"after it add `{new}`",
            )
            yield ranked_edit(code, 1.1, one.start(), "", new, [place], words)


def last_blocks(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that add the last, incomplete block after a loop that adds a block to a sum whenever it is full."""
    full = re.compile(r"\bif\s*\([^;{}]*\)\s*\{\s*([\w.]+\s*\+=\s*(\w+)\s*;)(?=[^{}]*\b\2\s*=\s*0)")
    for block in full.finditer(code, begin, end):
        around = [loop for loop in outer_loops(code, begin, end) if loop[1] <= block.start() < loop[2]]
        for at, _, last in around[-1:]:
            words = f"after this end of the loop of line {line_of(code, at)} add `{block[1]}`"
            place = insertion(last, f" if (@) {block[1]} ")
            rank, edit = ranked_edit(code, 0.7, last - 1, block[1], "", [place], words)
            yield rank, replace(edit, declared=line_of(code, block.start(1)), note="adds the full blocks")


def of_statements(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that remove statements, exchange `=` and `+=`, or undo a shadowing declaration."""
    statements = simple_statements(code, begin, end)
    for one in statements:
        at, shown, skip = one.begin, f"`{one.text};`", "if (!(@)) "
        if own := OWN.match(one.text):
            kind, name = own[1], own[2]
            if any(each.name == name and each.kind == kind and each.begin < at < each.end for each in known):
                new = (
                    f"{kind}* gpt149_outer_{name} = &{name}; {kind} gpt149_own_{name} = 0; "
                    f"{kind}& {name} = @ ? *gpt149_outer_{name} : gpt149_own_{name}; {name} "
                )
                words = f"without {kind}: this declares a second {name}, which hides the outer one"
                yield ranked_edit(code, 0.3, at, kind, "", [(at, at + own.start(3), new)], words)
                inner = [each.end for each in known if each.name == name and at < each.begin <= one.end]
                is_set = re.compile(rf"{name}\s*[-+*/]?=(?!=)")
                for use in statements:
                    if at < use.begin < max(inner, default=at) and is_set.match(use.text):
                        outer = f"gpt149_outer_{name}_{use.begin}"
                        other = f"if (@) *{outer}{use.text[len(name) :]}; else "
                        places = [insertion(at, f" auto* {outer} = &{name}; "), insertion(use.begin, other)]
                        line = line_of(code, at)
                        words = f"with the outer {name}: line {line} declares a second {name}, which hides it"
                        yield ranked_edit(code, 0.3, use.begin, name, "", places, words)
            continue
        if not ACTS.match(one.text):
            continue
        yield ranked_edit(code, 1.6, at, shown, "", [insertion(at, skip)], f"without {shown}")
        added = ADDED_TO.match(one.text)
        if added is not None:
            name, begins = added[1], at + added.start(2)
            if in_scope(known, at).get(name, "").endswith("pointer"):
                continue
            if is_sum := added[2] == "+=":
                # Keep `+=`: other edits change the index of an element before it.
                places = [insertion(at, f"(@) ? (void)({name} = 0) : (void)0, ")]
            else:
                # A comma ends the value, as in `b = i / H, h = i % H`.
                ended = at + len(apart(one.text)[0])
                places = [(begins, begins + 1, f"= (@ ? {name} : 0) + ("), insertion(ended, ")")]
            rank, other = (1.0, "=") if is_sum else (1.3, "+=")
            yield ranked_edit(code, rank, at, f"{name} {added[2]}", f"{name} {other}", places)
        # A maximum that replaces the one of the elements before it.
        if taken := _TAKEN.match(one.text):
            new = f"{taken[2]}({taken[1]}, {taken[3]})"
            places = replaced((at + taken.start(3), at + taken.end(3)), new)
            yield ranked_edit(code, 0.5, at, taken[3], new, places)
        if one.is_bare:
            continue
        # If x[i] is the new maximum, a running sum of exp(x[i] - maximum) is scaled and gets the term exp(0) = 1.
        if scaled := re.match(r"([\w.]+(?:\[[^][]*\])?)\s*\*=", one.text):
            place = insertion(one.end, f" if (@) {scaled[1]} += 1; ")
            yield ranked_edit(code, 1.5, at, shown, "", [place], f"after it add `{scaled[1]} += 1;`")
            # The sum of the values in a running softmax needs the factor of the sum of the weights.
            for sums in _SUMS_OF.finditer(code, begin, end):
                new = f"{sums[3]} {one.text[len(scaled[1]) :].lstrip()};"
                names = set(WORD.findall(sums[1] + sums[3])) - {sums[2], "for", "int", "size_t", "0", "1"}
                if names <= in_scope(known, at).keys() and scaled[1] != sums[3]:
                    text = f"{' '.join(sums[1].split())} {new}"
                    place = insertion(one.end, f" if (@) {text} ")
                    yield ranked_edit(code, 0.6, at, shown, "", [place], f"after it add `{text}`")


def continued(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that begin a sum with the element to which it is written: `read(O, i)` in place of 0."""
    for write in re.compile(r"\b(\w*)([wW])rite(\w*)\s*\(").finditer(code, begin, end):
        reader = f"{write[1]}{'r' if write[2] == 'w' else 'R'}ead{write[3]}"
        *place, value = apart(code[write.end() : closed(code, write.end(), "()") - 1])
        first = re.compile(rf"\bfloat\s+{re.escape(value.strip())}\s*=\s*({FLOAT}|0)\s*;")
        for own in list(first.finditer(code, begin, write.start()))[-1:]:
            names = {name for name in WORD.findall(", ".join(place)) if not name.isdigit()}
            if f"{reader}(" in code[:begin] and names <= in_scope(known, own.start()).keys():
                new = f"{reader}({', '.join(each.strip() for each in place)})"
                yield ranked_edit(code, 1.1, own.start(1), own[1], new)


def references(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that make a loop over copies of elements one over the elements: `Row &r` in place of `Row r`."""
    for head in _COPIES_OF.finditer(code, begin, end):
        kind, name = head[2], head[3]
        # The condition of an `if` can declare a variable, so that this stays one statement.
        new = (
            f"{kind}& gpt149_outer_{name} : {head[4]}) if ({kind} gpt149_own_{name} = gpt149_outer_{name}; true) "
            f"if ({kind}& {name} = @ ? gpt149_outer_{name} : gpt149_own_{name}; true)"
        )
        place = (head.start(1), head.end(), new)
        yield ranked_edit(code, 0.6, head.start(1), head[1], f"{kind} &{name}", [place])


def copies(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that copy an element in place of referring to it: a reference changes with the element."""
    for one in _REFERS.finditer(code, begin, end):
        words = f"without `&`: {one[1]} changes with the element to which it refers"
        place = replaced(one.span(2), f"(gpt149_kept = {one[2].strip()})")
        yield ranked_edit(code, 0.3, one.start(1), one[1], "", place, words)


def copied_early(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits of values that are computed too early: before a variable in them is set.

    The edit computes the value where it is used. If a lambda expression captures a copy of the variable too early, the
    edit makes it capture a reference.
    """
    loops, copies = loop_bodies(code, begin, end), list[tuple[int, int, int, str, str, int]]()
    """For each copy: begin and end, the end of its block, its name and value, and the place of a lambda's `]`."""
    for one in simple_statements(code, begin, end)[:MOST_UNITS]:
        for piece in apart(one.text):
            if own := _COPY.match(piece):
                last = closed(code, one.block, "{}")
                copies.append((one.begin, one.end, last, own[1], piece[own.end() :].strip(), 0))
    for head in _COPIES.finditer(code, begin, end):
        last = closed(code, head.end(), "{}")
        value = code[head.end() : last] if "=" in head[1] else head[1]
        copies.append((head.start(), last, end, "", value, head.end(1)))
    for at, first, last, name, value, captures in copies:
        words = set(WORD.findall(value))
        kinds = ("float", "double", "pointer", "vector") if captures else ("float", "double", "pointer")
        later = [
            (sets.start(), each.name)
            for each in known
            if each.name in words and each.begin <= at < each.end and not each.kind.startswith("const")
            if is_whole(each.kind) or each.kind.endswith(kinds)
            if (sets := re.compile(SET_OF.format(each.name)).search(code, first, min(last, each.end)))
        ]
        is_changed = name and re.compile(SET_OF.format(name)).search(code, first, last)
        # A variable that gets its new value from the copy is not set too late: `t = sum + y; sum = t;`.
        later = [
            each
            for each in later
            if not name or name not in WORD.findall(code[each[0] : code.find(";", each[0])])
        ]
        for set_at, copied in [] if is_changed else sorted(later)[:1]:
            new = f"gpt149_new_{copied}_{at}" if captures else f"({value})"
            begins = [set_at, *(body for body, ended in loops if first <= body < set_at < ended)]
            span = (captures, first) if captures else (min(begins), last)
            uses = re.compile(rf"(?<![\w.]){name or copied}\b").finditer(code, *span)
            places = [(*use.span(), new) for use in islice(uses, MOST_STATED)]
            if places and captures:
                places.append(insertion(captures, f", &{new} = {copied}"))
            if places:
                how = f"with &{copied} in its [...]" if captures else "computed where it is used"
                line, note = line_of(code, set_at), f"sets {copied}, which an earlier line has copied"
                shown = f"{how}: line {line} sets {copied} only later"
                rank, edit = ranked_edit(code, 0.5, at, copied, "", places, shown)
                yield rank, replace(edit, declared=line, note=note)


def cut_values(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that keep an array's element as a float: `float a` in place of `int a`."""
    for one in simple_statements(code, begin, end):
        if (own := _CUT.match(one.text)) is None:
            continue
        kind = in_scope(known, one.begin).get(own[4], "float vector" if READER.match(own[4]) else "")
        last = max(
            (each.end for each in known if each.name == own[2] and one.begin < each.begin <= one.end),
            default=0,
        )
        is_set = re.compile(SET_OF.format(own[2])).search(code, one.end, last)
        if is_set or not kind.endswith(("vector", "pointer", "array")) or _WHOLE.search(kind):
            continue
        uses = islice(re.compile(rf"(?<![\w.]){own[2]}\b").finditer(code, one.end, last), MOST_STATED)
        places = [(*use.span(), f"({own[3]})") for use in uses]
        if places:
            words = f"float in place of {own[1]}, which cuts {own[3]} to a whole number"
            yield ranked_edit(code, 0.4, one.begin, own[1], "float", places, words)
