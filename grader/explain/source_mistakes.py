"""Mistakes that the text of a part with wrong outputs shows. See `grader.explain.closer_look`."""

from __future__ import annotations

import re
from dataclasses import replace

from grader.core.results import Diagnosis
from grader.explain import clues
from grader.explain.explainer import COUNT, COUNTED_EARLY, NUMBERS, Explainer, without_guesses
from grader.explain.relations import NOT_STORED
from grader.source import dataflow, scopes

#: For types of inputs: the C++ type, and the types as which it is read by mistake. Casts to other types may be on
#: purpose: to read the bits of a float, say.
MISREAD = {"float32": ("float", ("double",)), "int64": ("int64_t", ("int", "int32_t", "float", "double"))}
#: The sentence on an output that is never written. Group 1 is the output.
UNSAID = re.compile(NOT_STORED.format(r"([^.]+)"))
#: A vector that is made of a tensor's elements. Groups: vector, tensor.
COPIED_IN = re.compile(r"\bvector\s*<\s*float\s*>\s+(\w+)\s*[({]\s*(\w+)\s*\.\s*data_ptr\b")


class SourceMistakes(Explainer):
    """Search for mistakes in the text of a part with wrong outputs."""

    def named(self, diagnosis: Diagnosis) -> Diagnosis:
        """Return the diagnosis, preceded by a mistake that the source text shows, if any.

        Such mistakes are: a reduction by a wrong operator; exp() of a wrong sign; a sum that is not set to 0; changes
        to a copy; threads that are counted outside of a parallel region.
        """
        if self.body is None:
            return diagnosis
        diagnosis = self._stored(diagnosis)
        name, words = self.source.name, ""
        if mixed := [one for at in dataflow.reached(self.body) for one in at.body.mixed_reductions()]:
            words = f"{name}:{mixed[0][0].line} has `{mixed[0][0].text}`, {mixed[0][1]}"
        elif lost := list(scopes.lost_shares(self.body.all_code(), 0, len(self.body.all_code()))):
            ((line, word, array), *_) = lost
            line += self.body.lines().start - 1
            numbers = NUMBERS.search(diagnosis.message)
            diagnosis = replace(diagnosis, message=numbers[0]) if numbers else diagnosis
            words = (
                f"Only one thread runs the block after {name}:{line} (omp {word}), so what the other threads added "
                f"up in their own {array} is lost. Write omp critical in place of omp {word}."
            )
        elif "stale" in diagnosis.code and (
            cleared := [one for at in dataflow.reached(self.body) for one in at.body.cleared_sources()]
        ):
            ((place, tensor, vector), *_) = cleared
            words = (
                f"{name}:{place.line} clears {tensor}, but {vector} is a copy of it: clear {vector} itself."
            )
        elif misread := self._misread():
            words = misread
        elif cut := [one for at in dataflow.reached(self.body) for one in at.body.cut_sums()]:
            ((place, sum_, adding), *_) = cut
            diagnosis = without_guesses(diagnosis)
            words = (
                f"{sum_} in {name}:{place.line} is a whole number: what {name}:{adding.line} adds loses its fraction. "
                "Make it a float."
            )
        elif copied := dataflow.without_effect(self.body):
            ((place, copy, kind), *_) = copied
            diagnosis = without_guesses(diagnosis)
            words = (
                f"{copy} in {name}:{place.line} is a copy: what is changed in it is lost. Write a reference, as in "
                f"{kind} &{copy}."
            )
        elif diagnosis.code in ("not_finite", "overflow"):
            for place, term in self.body.grown_exponents()[:1]:
                diagnosis = without_guesses(diagnosis)
                words = (
                    f"{term} in {name}:{place.line} has the wrong sign. The new maximum minus the old one is positive, "
                    "and infinite while the old one is -inf, so that exp() overflows. Write "
                    "exp(old maximum - new maximum)."
                )
        elif diagnosis.code == "stale_sum" and (added := self.body.never_begun()):
            ((place, array), *_) = added
            words = f"{array} is added to in {name}:{place.line} and set to zero nowhere in this function."
        elif diagnosis.code == "not_normalised" and (
            kept := [one for at in dataflow.reached(self.body) for one in at.body.kept_divisors()]
        ):
            ((place, sum_), *_) = kept
            words = f"{sum_} is added to in {name}:{place.line} and not set to zero in the loop around it."
        elif self.body.find(r"#\s*pragma\s+omp\s+parallel\b") and (
            counted := [at for at in self.body.find(rf"\b{COUNT}\b") if self._counted(at.line)]
        ):
            words = f"{COUNT}() in {name}:{counted[0].line} is {COUNTED_EARLY}."
        return replace(diagnosis, message=f"{words} {diagnosis.message}") if words else diagnosis

    def _stored(self, diagnosis: Diagnosis) -> Diagnosis:
        """Return the diagnosis of an output of zeros, with the line that stores into the output.

        If the source text shows why the stored values are lost, this reason is added instead. Other diagnoses are
        returned unchanged.
        """
        if diagnosis.code != "not_written" or self.body is None:
            return diagnosis
        shown = clues.lines(self.body, self.part, ["store"], self._right_outputs())
        divisions = self.body.whole_divisions()[:1]
        if not shown and not divisions:
            return self._unstored(diagnosis)
        stores = f"line {shown[0].place.line} stores into" if shown else ""
        unsaid = UNSAID.search(diagnosis.message)
        output = unsaid[1] if unsaid else ""
        words = f"{stores} {output}, but every returned value is 0"
        for place, division in divisions:
            words = (
                f"line {place.line} divides integers, {division}: the result is 0 if the second one is larger. Write "
                f"{division.replace('/', '.0f /', 1).replace(' .', '.')} for a float"
            )
        for place in self.body.find(COPIED_IN.pattern)[:1] if shown else ():
            for array, tensor in COPIED_IN.findall(place.text)[:1]:
                is_set = re.search(rf"\b{array}\b", shown[0].place.text)
                if is_set and not self.body.find(rf"\b(?:copy\w*|memcpy)\b.*\b{array}\b"):
                    how = f"line {place.line} makes {array} a copy of {tensor}"
                    words = f"{stores} {array}, and {how}: use a pointer to {tensor}"
        for place, copy in self.body.lost_copies()[:1] if shown else ():
            words = (
                f"{stores} {copy}, which is a copy, and line {place.line} returns another tensor. Return the tensor "
                "with the copy's values"
            )
        for place, tensor, array in self.body.overwritten()[:1] if shown else ():
            words = (
                f"{stores} the memory of {tensor}, and line {place.line} overwrites it with {array}, which is still 0. "
                f"Return {tensor} as it is, or store into {array}"
            )
        for copied in clues.lines(self.body, self.part, ["own_copies"], self._right_outputs())[:1]:
            words = (
                f"line {copied.place.line} gives each thread a copy of its own to store into, and the copies are lost. "
                "Name the output in none of the clauses private and firstprivate"
            )
        return replace(diagnosis, message=diagnosis.message.replace(NOT_STORED.format(output), words))

    def _unstored(self, diagnosis: Diagnosis) -> Diagnosis:
        """Return the diagnosis of an output of zeros, with the inputs that the function does not use and its last step.

        It is returned unchanged if the function has no loop, or uses no input.
        """
        body, unsaid = self.body, UNSAID.search(diagnosis.message)
        steps = body.find(r"[^=!<>]=(?!=)") if body is not None and body.find(r"\b(?:for|while)\b") else []
        if body is None or unsaid is None or not steps:
            return diagnosis
        inputs = self.kernel.inputs_of(self._public()[0])
        given = [one for one in zip(self.part.arguments, body.parameters, strict=False) if one[0] in inputs]
        unused = [argument for argument, own in given if not body.reads([own])]
        if len(unused) == len(given):
            return diagnosis
        words = [f"no store into {unsaid[1]} was found in {body.name}"]
        words += [f"{' and '.join(unused)} is never read"] if unused else []
        text = f"{', and '.join(words)}: is a last step missing, after {self.source.name}:{steps[-1].line}?"
        return replace(diagnosis, message=diagnosis.message.replace(f"{unsaid[0]}.", text))

    def _misread(self) -> str:
        """Return a sentence on a cast of a tensor's data to another type than that of its elements; "" without one."""
        body = self.body
        cases = self._wrong_cases()
        if body is None or not cases:
            return ""
        kinds = {name: str(each.dtype) for name, each in self.kernel.inputs_of(cases[0]).items()}
        kinds |= {name: each.dtype for name, each in self.part.outputs.items()}
        for argument, own in zip(self.part.arguments, body.parameters, strict=False):
            kind, others = MISREAD.get(kinds.get(argument, ""), ("", ()))
            cast = rf"(?:\(|cast\s*<)\s*(?:const\s+)?([\w:]+)\s*\*\s*[)>]\s*\(?\s*{own}\s*\.\s*data_ptr\s*\("
            for place in body.find(cast) if kind and own else ():
                for used in re.findall(cast, place.text)[:1]:
                    if used.removeprefix("std::") in others:
                        return (
                            f"{own} has elements of type {kind}, and {self.source.name}:{place.line} takes them for "
                            f"{used}. Write {own}.data_ptr<{kind}>()."
                        )
        return ""
