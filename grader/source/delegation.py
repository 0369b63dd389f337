"""Check whether a C++ function does its own work, or only calls a function that does all of this work.

The text is untrusted. Each helper's text replaces at most one of its calls, so the time is linear in the file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from grader.source.callgraph import Definition
from grader.source.cpptext import apart, definitions, parameter_names

DEEPEST = 20
"""Depth to which helpers of helpers are followed. A call that is not followed counts as own work."""
LONGEST_CALL = 1000
_WORD = re.compile(r"[A-Za-z_]\w*")
_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*(?:<[^<>;(){}]*>\s*)?\(")
_BRACKET = re.compile(r"[][(){}]")
_OPENING = {")": "(", "]": "[", "}": "{"}
_LAMBDA = re.compile(r"(?:\b([A-Za-z_]\w*)\s*(?:=|\{)\s*)?\[[^][;{}]*\]\s*(?=[({])")
_OPEN_LAMBDA = re.compile(r"\[[^][]*$")
_TO_BODY = re.compile(r"[^][(){};=]*\{")
_SET = re.compile(r"\b([A-Za-z_]\w*)\s*=(?!=)([^=;]*?)(?=,[*&\s]*[A-Za-z_]\w*\s*=(?!=)|$)")
_CONSTRUCTED = re.compile(r"[\w>][\s&*]+([A-Za-z_]\w*)\s*[({](.*)")
_CHANGED = re.compile(r"\b([A-Za-z_]\w*)\s*(?:[-+*/%|&^]?=(?!=)|\+\+|--)|(?:\+\+|--)\s*([A-Za-z_]\w*)")
_ASSIGNS = re.compile(r"(?<![=!<>])(?:[-+*/%|&^]|<<|>>)?=(?!=)")
_NUMBER = re.compile(r"\b(?:bool|double|float|int|long|size_t|unsigned)\s+([A-Za-z_]\w*)\s*(?:[=({;]|$)")
_READS = frozenset({"for", "if", "while", "data_ptr", "data", "size", "float", "double", "int"})
_NO_VARIABLE = _READS | {"bool", "const", "long", "size_t", "unsigned", "volatile"}
_DECLARED = re.compile(r"[\w>][\s&*]+([A-Za-z_]\w*)\s*(?:[=({]|$)")


def works_itself(
    name: str, own: Mapping[str, Definition], shared: Collection[str], inputs: Collection[str]
) -> bool:
    """Return False if a function leaves all of its work to one call of a `shared` function, else True.

    The function belongs to a part that is compared with an earlier part (`grader.judge.same_work`).

    Args:
        name: the function.
        own: definitions by name that this function uses, directly or not, and that the earlier part does not use. The
            definition of the function itself is included.
        shared: names of functions that the earlier part uses, too, and of functions without loops that call these.
        inputs: names of the function's parameters that hold its inputs.

    The function leaves its work to a `shared` function if three conditions hold. It calls that function outside of all
    loops, or with the same arguments in each turn. It passes all inputs, but no function of `own`. No result depends on
    numbers that its own loops compute from inputs.
    """
    inlined = _Inlined(name, own)
    body = inlined.body
    looping = {each for each in own if own[each].has_loop} | inlined.lambdas.keys()
    origins, handed = {each: {each} for each in inputs}, set[str]()
    pending, delegates = list[str](), False
    for statement in body.statements:
        words = set(_WORD.findall(statement))
        # If a function or an object of a class is passed as an argument, it may do the work inside the called function.
        given = words & (looping | handed) - {call[1] for call in _CALL.finditer(statement)}
        if not words.isdisjoint(shared):
            if given or _OPEN_LAMBDA.search(statement):
                return True
            if _origins(statement, origins) >= set(inputs):
                delegates = True
                continue
        elif given:
            handed |= {found[1] for found in (_DECLARED.search(f" {statement}"),) if found}
        pending.append(statement)
        for found in (*_SET.finditer(statement), *_CONSTRUCTED.finditer(statement)):
            if came := _origins(found[2], origins):
                origins.setdefault(found[1], set()).update(came)
    # A loop that repeats the same call does not divide the work: each call does all of it.
    constant = {*origins, *(own[name].parameters or ())}
    loops = list[str]()
    for loop in body.loops:
        pairs, changed = _pairs(loop), {each for found in _CHANGED.findall(loop) for each in found}
        at = 0
        for call in _CALL.finditer(loop):
            close = pairs.get(call.end() - 1, call.end())
            if call[1] not in shared or close > call.end() + LONGEST_CALL:
                continue
            arguments = loop[call.end() : close]
            same = set(_WORD.findall(arguments)) <= constant - changed
            if same and _origins(arguments, origins) >= set(inputs):
                delegates = True
                loops.append(loop[at : call.start()])
                at = close
        loops.append(loop[at:])
    if not inputs or not delegates:
        return True
    given = {*shared, *handed, *inlined.lambdas}
    revealing = {*origins, *shared}
    revealing |= handed | {
        each for each, one in inlined.lambdas.items() if not one.words.isdisjoint(revealing)
    }
    used = [loop for loop in loops if not revealing.isdisjoint(_WORD.findall(loop))]
    is_shared_out = any(not given.isdisjoint(_WORD.findall(loop)) for loop in used)
    if is_shared_out or (used and _may_matter(used, body.statements)):
        return True
    # Find helpers that were not replaced by their text: functions called in loops, and classes.
    left, called = [each for each in pending if _origins(each, origins)], set[str]()
    while left:
        reached = (set(_WORD.findall(left.pop())) & own.keys()) - called - {name}
        called |= reached
        left += [own[each].text for each in reached]
    # A helper may also get its inputs through global variables.
    kept = origins.keys() - set(inputs)
    ones = [
        own[each]
        for each in own
        if each not in inlined.replaced and (each in called or own[each].words & kept)
    ]
    return any(one.has_loop and not _is_replaced(one, inlined.replaced) for one in ones)


def _is_replaced(one: Definition, replaced: set[str]) -> bool:
    """Return True for a class whose functions with loops were all replaced by their text."""
    looping = {each.name for each in _members(one) if each.has_loop and one.parameters is None}
    return bool(looping) and replaced >= looping


def _may_matter(loops: Collection[str], statements: Collection[str]) -> bool:
    """Return False if the loops only set numbers that affect neither a returned value nor an argument of a call."""
    if any(call[1] not in _READS for loop in loops for call in _CALL.finditer(loop)):
        return True
    live, pieces = set[str](), list[tuple[set[str], set[str]]]()
    for statement in statements:
        pieces.append((_set_names(statement), set(_WORD.findall(statement))))
        _, is_return, returned = statement.rpartition("return")
        call = next((each for each in _CALL.finditer(statement) if each[1] not in _READS), None)
        live |= set(_WORD.findall(returned)) if is_return else set()
        live |= set(_WORD.findall(statement, call.end())) if call else set()
    for _ in range(DEEPEST):
        live |= {word for names, words in pieces if not names.isdisjoint(live) for word in words}
    written = {name for loop in loops for piece in re.split("[;{}]", loop) for name in _set_names(piece)}
    numbers = {name for text in (*loops, *statements) for name in _NUMBER.findall(text)}
    return not written <= numbers or not written.isdisjoint(live)


def _set_names(statement: str) -> set[str]:
    """Return the names that a statement may change: those left of an assignment, and those with ++ or --."""
    ends = [found.start() for found in _ASSIGNS.finditer(statement)]
    counted = {each for found in _CHANGED.findall(statement) for each in found if each}
    return counted | ({*_WORD.findall(statement[: ends[-1]])} - _NO_VARIABLE if ends else set())


def _origins(text: str, origins: Mapping[str, set[str]]) -> set[str]:
    return set().union(*(origins.get(word, ()) for word in _WORD.findall(text)))


class _Inlined:
    """A function's body in which calls of helpers are replaced by the helpers' text, except calls inside loops.

    Helpers are lambda expressions and functions with loops. Before each inserted text, assignments give the helper's
    parameters the values of the call. The value that a call returns is left out.
    """

    def __init__(self, name: str, own: Mapping[str, Definition]) -> None:
        members = (each for one in own.values() if one.parameters is None for each in _members(one))
        self.helpers = {**{each.name: each for each in members}, **own}
        self.lambdas = dict[str, Definition]()
        """Lambda expressions by name. One that is called where it is written gets a made-up name."""
        self.replaced = {name}
        self.body = Definition(name, self._inlined(own[name].text, DEEPEST))

    def _inlined(self, text: str, depth: int) -> str:
        text = self._without_lambdas(text)
        pairs, pieces, at = _pairs(text), list[str](), 0
        for first, last in Definition("", text).outside if depth else ():
            for call in _CALL.finditer(text, first, last):
                helper = self.lambdas.get(call[1]) or self.helpers.get(call[1])
                close = pairs.get(call.end() - 1)
                if call.start() < at or close is None or helper is None or helper.name in self.replaced:
                    continue
                if helper.parameters is None or not (helper.name in self.lambdas or helper.has_loop):
                    continue
                self.replaced.add(helper.name)
                given = _assigned(helper.parameters, text[call.end() : close])
                pieces += [text[at : call.start()], ";", *given, self._inlined(helper.text, depth - 1), ";"]
                at = close + 1
        return "".join((*pieces, text[at:]))

    def _without_lambdas(self, text: str) -> str:
        """Move lambda expressions to `lambdas`. Return the text with only their names in it."""
        pairs, pieces, at = _pairs(text), list[str](), 0
        for found in _LAMBDA.finditer(text):
            head = found.end()
            close = pairs.get(head, head) if text[head] == "(" else head - 1
            body = _TO_BODY.match(text, close + 1)
            end = pairs.get(body.end() - 1) if body else None
            if found.start() < at or body is None or end is None:
                continue
            is_called = text[end + 1 : end + 100].lstrip().startswith("(")
            name = f"lambda{len(self.lambdas)}_" if is_called else found[1]
            if not name:
                continue
            self.lambdas[name] = Definition(
                name, text[body.end() : end], parameter_names(text[head + 1 : close])
            )
            start = found.end(1) if found[1] else found.start()
            pieces += [text[at:start], f" = {name}" if is_called and found[1] else name if is_called else ""]
            at = end + 1
        return "".join((*pieces, text[at:]))


def _members(one: Definition) -> Iterator[Definition]:
    """Yield the functions that a class defines."""
    for each in definitions(one.text):
        names = parameter_names(one.text[each.opened : each.closed])
        yield Definition(each.name, one.text[each.body : each.end], names)


def _assigned(names: tuple[str, ...], arguments: str) -> Iterator[str]:
    """Yield an assignment of each argument to its parameter; surplus arguments go to the last parameter."""
    for k, piece in enumerate(apart(arguments)):
        if name := names[min(k, len(names) - 1)]:
            yield f"{name} = {piece};"


def _pairs(text: str) -> dict[int, int]:
    """Return the offset of the closing bracket by the offset of its opening bracket."""
    found, opened = dict[int, int](), list[tuple[str, int]]()
    for bracket in _BRACKET.finditer(text):
        if bracket[0] in "([{":
            opened.append((bracket[0], bracket.start()))
        elif opened and opened[-1][0] == _OPENING[bracket[0]]:
            found[opened.pop()[1]] = bracket.start()
    return found
