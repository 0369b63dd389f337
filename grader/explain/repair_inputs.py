"""Inputs on which edits of a student's function are called. See `grader.explain.repair`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from grader.assignment.records import Case
from grader.backends import binding
from grader.core.errors import UsageError
from grader.explain.case_run import CaseRun
from grader.explain.edited_calls import EditedCalls
from grader.explain.judged_part import Kernel

#: A size whose largest value to try is at most this, such as the number of heads, is not cut into tiles.
MOST_HEADS = 8
#: Limits on the further inputs for found edits: inputs proposed, inputs called, and output elements of each input.
MOST_PROPOSED, MOST_FURTHER, LARGEST_FURTHER = 48, 24, 1 << 13


def tiny_case(
    kernel: Kernel,
    search: EditedCalls,
    wrong: Sequence[Case],
    smallest: Mapping[str, int] | None,
    unused: int,
    drawn: Callable[[], Sequence[Case]],
) -> list[Case]:
    """Return [an input of few elements on which the function is wrong]; [] if none is found.

    Every edit is first called on this input. It is the first wrong case at the `smallest` sizes that fail. If that case
    is right, or its first tensor cannot hold an edit's number, it is the smallest such input of `drawn` that is wrong.
    `unused` is a number that selects no edit.
    """
    if smallest and wrong:
        case = replace(wrong[0], shape={**wrong[0].shape, **smallest})
        run = search.built.call(case, unused, fresh=True)
        if run is not None and not run.is_right:
            return [case]
    others = sorted(drawn(), key=partial(output_elements, kernel))
    return next(([case] for case in others if not search.is_right(case, 0)), [])


def expected_cpu_s(kernel: Kernel, case: Case, measured: Sequence[tuple[Case, CaseRun]]) -> float:
    """Return the CPU seconds that a call on a case needs, judging by the `measured` run with the most operations.

    Returns 0 if nothing was measured or the lab does not count operations.
    """
    if not measured:
        return 0.0
    shapes = [{**kernel.shape, **each.shape} for each in (case, *(one for one, _ in measured))]
    operations, *known = map(kernel.oracle.flops, shapes)
    most, cpu_s = max(zip(known, (run.call.cpu_s or 0.0 for _, run in measured), strict=True))
    return operations * cpu_s / max(1, most)


def beyond_tiles(kernel: Kernel, case: Case, lengths: Sequence[int]) -> Iterator[Case]:
    """Yield inputs like `case` of which one size, or all, are just above one of `lengths`, those of the file's tiles.

    An edit may be right only if there is a single tile, or if one size is below the tile of another. The other sizes
    are small.
    """
    probes = {name: sizes for name, sizes in kernel.oracle.probes.items() if name in kernel.shape}
    small = {name: sizes[min(1, len(sizes) - 1)] for name, sizes in probes.items()}
    cut = [
        name for name, sizes in probes.items() if max(sizes) > MOST_HEADS and name not in kernel.oracle.tiles
    ]
    for names, length in product([*([name] for name in cut), *([cut] if len(cut) > 1 else [])], lengths):
        other = replace(case, shape={**case.shape, **small, **dict.fromkeys(names, length + 1)})
        with contextlib.suppress(UsageError):  # the sizes may not fit together
            kernel.inputs_of(other)
            yield other


def further_cases(kernel: Kernel, wrong: Sequence[Case]) -> Iterator[Case]:
    """Yield small inputs like the `wrong` cases, with other seeds; three of four have other sizes."""
    probes = [(name, sizes) for name, sizes in kernel.oracle.probes.items() if name in kernel.shape]
    for k in range(MOST_PROPOSED):
        case, turn = wrong[k % len(wrong)], k // len(wrong) % 4
        sizes = {name: few[_index(len(few), k, at, turn)] for at, (name, few) in enumerate(probes) if turn}
        case = replace(case, seed=case.seed + 1000 + k, shape={**case.shape, **sizes})
        with contextlib.suppress(UsageError):  # the sizes may not fit together
            if output_elements(kernel, case) <= LARGEST_FURTHER:
                kernel.inputs_of(case)
                yield case


def _index(count: int, k: int, at: int, turn: int) -> int:
    """Return the index, below `count`, of the value that size number `at` has in input number `k`.

    Turn 1 chooses any value. Turn 2 chooses a small value for an even `at` and a large one for an odd `at`, turn 3 the
    reverse. So neighbouring sizes differ, and an edit that exchanges two sizes gives a wrong result.
    """
    low = k % ((count + 1) // 2)
    return (7 * k + 5 * at) % count if turn == 1 else low if at % 2 == turn % 2 else count - 1 - low


def public_cases(kernel: Kernel, largest: int) -> list[Case]:
    """Return the public cases with at most `largest` output elements.

    The smallest is first, but those with a single element are last.
    """
    sized = [(output_elements(kernel, case), case) for case in kernel.part.cases if not case.hidden]
    return [case for size, case in sorted(sized, key=lambda each: (each[0] < 2, each[0])) if size <= largest]


def output_elements(kernel: Kernel, case: Case) -> int:
    """Return the number of the output's elements."""
    return math.prod(binding.output_shape(kernel.part, {**kernel.shape, **case.shape}))
