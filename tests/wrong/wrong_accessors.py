"""Wrong accessors: offsets of another formula, nothing done, too much done."""

from __future__ import annotations

from grader.assignment.mutations import Mutation

OFFSET = "((x * sizeX + y) * sizeY + z) * sizeZ + b"


def _offset(name: str, formula: str, code: str) -> list[Mutation]:
    return [
        Mutation(f"read {name}", "4Dread", ((OFFSET, formula),), (code,)),
        # A write outside the vector may damage the heap, and end in a crash.
        Mutation(f"write {name}", "4Dwrite", ((OFFSET, formula),), (code, "sigabrt", "sigsegv")),
    ]


ACCESSORS = [
    Mutation("read not written", "4Dread", body="    return 0.0f;", codes=("not_written",)),
    Mutation("write not written", "4Dwrite", body="    return;", codes=("not_written",)),
    *_offset("y and z swapped", "((x * sizeX + z) * sizeY + y) * sizeZ + b", "swapped_indices"),
    *_offset("x without sizeX", "x * sizeY * sizeZ + y * sizeY * sizeZ + z * sizeZ + b", "missing_factor"),
    *_offset("x left out", "(y * sizeY + z) * sizeZ + b", "missing_term"),
    *_offset("sizes swapped", "((x * sizeY + y) * sizeX + z) * sizeZ + b", "wrong_strides"),
    *_offset("single sizes", "x * sizeX + y * sizeY + z * sizeZ + b", "missing_factor"),
    Mutation("read always 0", "4Dread", ((OFFSET, "0"),), ("missing_term",)),
    Mutation("write twice", "4Dwrite",
        (("    // END SOLUTION", "    tensor[0] = val;\n    // END SOLUTION"),), ("extra_write",)),
    Mutation("write another value", "4Dwrite", (("= val;", "+= val;"),), ("wrong_value",)),
]  # fmt: skip
