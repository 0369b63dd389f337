"""Where the functions of the master source are, and files with many wrong ones of them side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from grader.assignment.mutations import Mutation, mutated, without_starter
from grader.assignment.records import Assignment, Part

FUNCTIONS = {
    "4Dread": "inline float fourDimRead(",
    "4Dwrite": "inline void fourDimWrite(",
    "part1": "torch::Tensor myNaiveAttention(",
    "part2": "torch::Tensor myUnfusedAttentionBlocked(",
    "part3": "torch::Tensor myFusedAttention(",
    "part4": "torch::Tensor myFlashAttention(",
}
KERNELS = ("part1", "part2", "part3", "part4")
BINDINGS = "PYBIND11_MODULE"


def apply(source: str, mutations: Iterable[Mutation]) -> str:
    """The source with mutations of different functions made. Raises ValueError where an edit's text does not occur."""
    source = without_starter(source)
    for mutation in mutations:
        start, end = _place(source, mutation.part)
        source = source[:start] + mutated(source[start:end], mutation) + source[end:]
    return source


def edited(source: str, mutation: Mutation) -> str:
    """The source with one mutation made in its part's function. Raises ValueError where a text does not occur."""
    return apply(source, [mutation])


def side_by_side(source: str, mutations: Sequence[Mutation]) -> str:
    """One source with a function `variant(k)` for the k-th mutation, since each compile costs a second of its own.

    The variants call the accessors as `source` has them; kernels that were not mutated are left out. Raises ValueError
    where an edit's text does not occur.
    """
    source = without_starter(source)
    variants, table = "", ""
    for number, mutation in enumerate(mutations):
        start, end = _place(source, mutation.part)
        declared = FUNCTIONS[mutation.part]
        renamed = f"{declared.rpartition(' ')[0]} {variant(number)}("
        variants += "\n" + mutated(source[start:end], mutation).replace(declared, renamed, 1)
        table += f'    m.def("{variant(number)}", &{variant(number)});\n'
    for part in KERNELS:
        start, end = _place(source, part)
        source = source[:start] + source[end:]
    given = source[: source.index(BINDINGS)]
    return f"{given}{variants}\n{BINDINGS}(TORCH_EXTENSION_NAME, m) {{\n{table}}}\n"


def variant(number: int) -> str:
    """The name of a function, and of a part, in `side_by_side`."""
    return f"variant{number}"


def parts_of(assignment: Assignment, mutations: Sequence[Mutation]) -> tuple[Part, ...]:
    """What to judge in a source that `side_by_side` made: a part for each mutation, in order."""
    # A part judged through another one would be judged by a kernel that has a bug of its own.
    return tuple(
        replace(assignment.part(mutation.part), id=variant(number), function=variant(number), stands_in=None)
        for number, mutation in enumerate(mutations)
    )


def _place(source: str, part: str) -> tuple[int, int]:
    """Where a part's function begins and ends in the source."""
    start = source.index(FUNCTIONS[part])
    return start, source.index("\n}\n", start) + len("\n}\n")
