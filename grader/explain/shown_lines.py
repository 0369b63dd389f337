"""Choice of the lines to look at for a wrong output. See `grader.explain.closer_look`."""

from __future__ import annotations

import re
from dataclasses import replace

from grader.backends.native import warnings
from grader.explain import clues
from grader.explain.explainer import Explainer, Findings, lines_in
from grader.explain.oracle import Dissected
from grader.source import dataflow, landmarks, scopes

#: The head of a class, up to its `{`.
_CLASS = re.compile(r"\b(?:struct|class)\s+(\w+)[^;{}()=]*\{")
#: Patterns for facts that `common_facts.condition` returns: a size that is a multiple of a tile, a size above 1, two
#: sizes that are compared, a size from a number on. The groups are the names of the sizes.
MULTIPLE = re.compile(r"right where (\w+) is a multiple of (\w+)")
NO_MULTIPLE = re.compile(r"right where (\w+) is not a multiple of (\w+)")
ABOVE = re.compile(r"right where (\w+) = 1, wrong where \1 > 1")
RELATED = re.compile(r"right where (\w+) [<>]?= ([A-Za-z]\w*),")
FROM = re.compile(r"right where (\w+) <= \d+, wrong where \1 >= (\d+)")
OF_OUTPUT = re.compile(r"right where the output's \w+ [<>]?= the output's ")
#: Numbers of floats in a vector.
VECTORS = (4, 8, 16)
#: If the search for lines to look at (`clues`) finds none, a function of at most this many lines is shown whole.
SHORT = 8


class ShownLines(Explainer):
    """Lines of the student's file that a message on wrong outputs shows."""

    def bounds(self, facts_found: str) -> list[str]:
        """Return clues for loops whose ends may be wrong: keywords for the lines to show (see `clues`).

        `facts_found` has the sentence of `common_facts` about the sizes at which calls are right or wrong, and the
        diagnosis's message.
        """
        if "beyond the last full tile" in facts_found:
            return list(clues.USUAL["remainder_tile"])
        if several := MULTIPLE.search(facts_found):
            return [f"cut:{several[1]}", *(["shares"] if several[2].isdigit() else [f"until:{several[2]}"])]
        if several := NO_MULTIPLE.search(facts_found):
            return [f"rest:{several[1]},{several[2]}", f"tests:{several[2]}"]
        if above := ABOVE.search(facts_found):
            # Loops run over lengths of inputs and outputs, but not over a stride, say.
            lengths = {
                str(dim) for dims in (*self.part.inputs.values(), self.part.output_dims) for dim in dims
            }
            return [f"unlooped:{above[1]}"] if above[1] in lengths else []
        if number := FROM.search(facts_found):
            fewest = int(number[2])
            # With one turn for each thread, no thread can meet values of its last turn.
            own = ["own_turns"] if fewest == self.kernel.shape["threads"] + 1 else []
            lanes = ["lanes"] if fewest in VECTORS else []
            return [*own, "grown", *lanes, f"turns:{fewest}"]
        if OF_OUTPUT.search(facts_found):
            return ["same_ends"]
        if relation := RELATED.search(facts_found):
            return [*(f"mixed:{name}" for name in relation.groups()), f"?until:{relation[2]}"]
        return []

    def lines(self, found: Findings, dissected: Dissected | None, bounds: list[str]) -> list[str]:
        code, known, checked = found.diagnosis.code, found.has_cause, found.checked
        if self.body is None:
            return []
        oracle, wanted = self.kernel.oracle, [*bounds, *(dissected.clues if dissected else ())]
        if checked is not None and checked.right_if_zeroed:
            wanted += ["static", "bare", "fresh"]
        if instead := re.search(r"\b([A-Z]) is used in the place of ([A-Z])\b", found.diagnosis.message):
            wanted.append(f"instead:{instead[1]},{instead[2]}")
        for name in found.unread[:1]:
            wanted += [f"input:{name}", *(f"input:{other}" for other in self._alike(name))]
        wanted += () if known else ("small",)
        wanted += (
            oracle.clues.get(code)
            or clues.usual(code)
            or (("store", "stored") if known else clues.USUAL["wrong_values"])
        )
        suspected = self._suspected(known and code not in {*oracle.dissected_codes, "unsteady"})
        name = self.source.name
        shown = clues.lines(self.body, self.part, list(dict.fromkeys(wanted)), self._right_outputs())
        shown = shown or clues.lines(self.body, self.part, clues.USUAL["wrong_values"], self._right_outputs())
        if len(shown) == 1:
            line = shown[0].place.line
            made = [at for at in dataflow.indices(self.body, line) if at.line != line]
            shown = [*shown, *(replace(shown[0], place=at, words="") for at in made[: clues.MOST_PLACES])]
        shown = [*(() if known else self._hiding(self.body)[: clues.MOST_PLACES]), *shown]
        for line in map(int, re.findall(r"\bline (\d+) divides\b", found.diagnosis.message)):
            shown = [clues.Shown(self.body.place(line), "divides integers"), *shown]
        # If the source text shows the mistake, only its line matters.
        facts = [line for line in lines_in(name, found.diagnosis.message) if line <= len(self.body.rows)]
        shown = [clues.Shown(self.body.place(line), "") for line in facts] or shown
        if not shown and self.kernel.backend.kind.on_card:
            return suspected
        if not shown and self.body.last - self.body.opened <= SHORT:
            shown = [clues.Shown(place, "") for place in self.body.find(r"\w")]
        return [*suspected, clues.in_words(shown, self.body, name)]

    def _hiding(self, body: landmarks.Body) -> list[clues.Shown]:
        """Return the lines of the function that declare a number that hides an outer one of the same name."""
        code = "\n".join(body.code)
        begin, end = (len("\n".join(body.code[: line - 1])) for line in (body.first, body.last + 1))
        found = scopes.hiding(code, begin, end, scopes.declared_names(code))
        return [
            clues.Shown(body.place(scopes.line_of(code, span[0])), f"declares {words}")
            for _, span, _, words in found
        ]

    def _alike(self, name: str) -> list[str]:
        """Return the other inputs with the dimensions of the input `name`. Similar names come first."""
        sizes, letters = self.part.inputs, name.rstrip("0123456789")
        others = [other for other in sizes if other != name and sizes[other] == sizes[name]]
        return sorted(
            (other for other in others if other not in self.part.outputs),
            key=lambda other: other.rstrip("0123456789") != letters,
        )

    def _suspected(self, known: bool) -> list[str]:
        """Return the compiler's warnings for the function, and for functions and classes that it uses.

        Warnings about uninitialized variables are returned for all this code. Other warnings are returned only for the
        function itself, and only if the mistake is not `known`.
        """
        if self.second is None or not self.second.is_allowed or self.body is None:
            return []
        used = [(at.body.first, at.body.last) for at in dataflow.reached(self.body)[1:]]
        code, text = "\n".join(self.body.code), self.body.all_code()
        for one in _CLASS.finditer(code):
            if re.search(rf"\b{one[1]}\b", text):
                last = landmarks.closed(code, one.end(), "{}")
                used.append((scopes.line_of(code, one.start()), scopes.line_of(code, last)))
        rows = self.body.rows
        own = range(self.body.first, self.body.last + 1)
        return [
            f"The compiler says: {self.source.name}:{each.line}: {each.text}\n"
            f"  {rows[each.line - 1].strip()[:120]}"
            for each in warnings.warned(self.source, self.judged.defines, [(own.start, own.stop - 1), *used])
            if "uninitialized" in each.flag or (each.line in own and not known)
        ]
