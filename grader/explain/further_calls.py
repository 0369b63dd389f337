"""Further calls of a part with wrong outputs, at other sizes and inputs. See `grader.explain.closer_look`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from operator import itemgetter

from grader.assignment.inputs import drawn
from grader.backends import binding, faults
from grader.core.arrays import np
from grader.explain import common_facts, size_probe
from grader.explain.common_facts import Seen
from grader.explain.deviation import usual_axes
from grader.explain.explainer import Explainer
from grader.explain.oracle import Dissected
from grader.explain.size_probe import Prober

#: The inputs of a case of at most this product of sizes are exchanged, one after the other.
MOST_SWAPPED = 1 << 16
MOST_NUMBERS = 4


class FurtherCalls(Explainer):
    """Further calls of a part with wrong outputs."""

    def probed(self) -> tuple[Prober | None, dict[str, int] | None]:
        """Call the kernel at other sizes. Return (the Prober with these calls, the smallest sizes that fail).

        Both are None if the lab lists no sizes to try, or if the part has no suitable case (`size_probe.choose`,
        `size_probe.anchors`). The sizes are None if no call fails.
        """
        case, anchors = size_probe.choose(self.kernel), size_probe.anchors(self.kernel)
        if case is None or not anchors or not self.kernel.oracle.probes:
            return None, None
        with self.judged.fresh(threads=self.kernel.shape["threads"]) as session:
            prober = Prober(self.kernel, session, case)
            for anchor in anchors:
                smallest = prober.smallest(anchor)
                if smallest is not None:
                    prober.look(anchor)
                    return prober, smallest
            return prober, None

    def unread(self) -> tuple[list[str], str]:
        """Find the inputs that change the expected outputs of a wrong case, but not the kernel's outputs.

        Return (names of these inputs, ""). If the expected outputs depend on several inputs and the kernel's outputs on
        none of them, return ([], the case's name).
        """
        counted = [case for case in self._wrong_cases() if case.weight > 0]
        wrong = [(case, {**self.kernel.shape, **case.shape}) for case in counted]
        if not wrong:
            return [], ""
        # On a small case, a kernel that leaves out the last elements may use no element of an input.
        sized = [(math.prod(self.kernel.sizes(each[1]).values()), each) for each in wrong]
        few = [one for one in sized if one[0] <= MOST_SWAPPED]
        _, (case, shape) = max(few, key=itemgetter(0)) if few else min(sized, key=itemgetter(0))
        inputs, others = (
            drawn(self.kernel.lab, case.distribution, shape, seed, keep=False)
            for seed in (case.seed, case.seed + 1)
        )
        found, moving = [], 0
        with self.judged.fresh(threads=shape["threads"]) as session:
            first = self.kernel.call(session, case.name, inputs)
            # An output of NaN does not show on which inputs it depends.
            is_finite = first.outputs and all(np.isfinite(value).all() for value in first.outputs.values())
            for name in inputs if is_finite else ():
                run = self.kernel.call(session, case.name, inputs.swapped(name, others))
                if name in self.part.outputs or not first.outputs or not run.outputs:
                    continue
                # A change below the tolerance counts as none: a right kernel may round it away.
                with np.errstate(invalid="ignore"):  # -inf minus -inf
                    moves = any(
                        (abs(known.value - first.expected[output].value) > known.tolerance).any()
                        for output, known in run.expected.items()
                    )
                same = (np.array_equal(value, first.outputs[output]) for output, value in run.outputs.items())
                moving += moves
                if moves and all(same):
                    found.append(name)
        return ([], case.name) if moving > 1 and len(found) == moving else (found, "")

    def facts(self, prober: Prober | None) -> str:
        """Return a clause on the wrong indices or on the sizes that are right; "" if no simple clause holds.

        It begins with the inputs on which it holds: "on all 9 inputs that were tried: only row 0 is wrong".
        """
        oracle, kernel = self.kernel.oracle, self.kernel
        seen = [
            Seen(
                {**kernel.sizes(shape), **self._lengths(shape)},
                kernel.wrong[case.name],
                case.weight == 0 or size_probe.is_trivial(oracle, shape),
                kernel.wrong_output.get(case.name, ""),
            )
            for case in self.part.cases
            if not case.hidden and case.name in kernel.wrong
            for shape in [{**kernel.shape, **case.shape}]
        ]
        probes = list(prober.seen.values()) if prober is not None else []
        names = [*kernel.sizes(kernel.shape), *self._lengths(kernel.shape)]
        every = [*seen, *probes]
        place = common_facts.place(every, oracle.axes, oracle.tiles)
        condition = common_facts.condition(every, names, oracle.tiles)
        clauses = "; ".join(filter(None, (place, condition)))
        if clauses:
            return f"on all {len(every)} inputs that were tried: {clauses}"
        wrong = [each for each in every if each.wrong is not None]
        if place := common_facts.place(wrong, oracle.axes, oracle.tiles):
            return f"on all {len(wrong)} inputs on which it is wrong: {place}"
        # Special inputs of the cases may be right by chance: use only the random inputs of `prober`.
        condition = common_facts.condition(probes, names, oracle.tiles)
        return f"on {len(probes)} random inputs of other sizes: {condition}" if condition else ""

    def _lengths(self, shape: Mapping[str, int]) -> dict[str, int]:
        """Return the lengths of the output's axes, by name ("the output's rows").

        Only axes whose length is an expression such as N // 2 are returned, not those whose length is a single size.
        """
        oracle, dims = self.kernel.oracle, self.part.output_dims
        axes = oracle.axes if len(oracle.axes) == len(dims) else usual_axes(len(dims))
        lengths = binding.output_shape(self.part, shape)
        return {
            f"the output's {axis.plural}": length
            for axis, dim, length in zip(axes, dims, lengths, strict=True)
            if not str(dim).isidentifier()
        }

    def dissected(self, prober: Prober | None) -> Dissected | None:
        anchors = size_probe.anchors(self.kernel)
        if prober is None or not anchors:
            return None
        with self.judged.fresh(threads=self.kernel.shape["threads"]) as session:
            asked = Prober(self.kernel, session, prober.case)
            return self.kernel.oracle.dissect(asked.output, anchors[0])

    def wrong_alone(self) -> str:
        """Return a sentence if a wrong case is wrong with one thread, too; else "".

        A part that sets its number of threads itself is not called.
        """
        case, body = next(iter(self._wrong_cases()), None), self.body
        if case is None or body is None or body.find(r"\bnum_threads\s*\(|\bomp_set_num_threads\s*\("):
            return ""
        with self.judged.fresh(threads=1) as session:
            run = self.kernel.call_case(session, replace(case, shape={**case.shape, "threads": 1}))
        return (
            "" if run.is_right else "With one thread the result is wrong, too: first mend it for one thread."
        )

    def left_behind(self) -> str:
        """Make one wrong call twice in a new process. Return a sentence if only the second call is wrong, else ""."""
        case = next(iter(self._wrong_cases()), None)
        if case is None:
            return ""
        threads = {**self.kernel.shape, **case.shape}["threads"]
        try:
            with self.judged.fresh(threads=threads) as session:
                right = [self.kernel.call_case(session, case).is_right for _ in range(2)]
        except faults.Faulty:
            return ""
        if right != [True, False]:
            return ""
        keeping = self.kernel.oracle.keeping
        return f"the first call of a process is right and the same call again is wrong: {keeping}"

    def numbers(self, prober: Prober, sizes: dict[str, int]) -> str:
        """Call the kernel at `sizes`. Return " (expected ..., got ...)" with all elements of the output.

        Returns "" for several outputs, an output of more than MOST_NUMBERS elements, and a right output.
        """
        inputs = prober.inputs({**self.kernel.shape, **sizes})
        expected = self.kernel.expected(inputs)
        if len(expected) != 1:
            return ""
        (value,) = (each.value for each in expected.values())
        if value.size > MOST_NUMBERS:
            return ""
        with self.judged.fresh(threads=self.kernel.shape["threads"]) as session:
            found = Prober(self.kernel, session, prober.case).output(sizes, inputs)
        if found is None:
            return ""
        wanted, got = (" ".join(f"{x:.6g}" for x in each.reshape(-1)) for each in (value, found))
        # A result that changes from call to call may be right in this call.
        return f" (expected {wanted}, got {got})" if wanted != got else ""
