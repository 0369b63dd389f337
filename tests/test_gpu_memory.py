"""Kernels in Triton's interpreter that reach outside of their tensors: the same verdict each time, and its line."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import without_card
from without_card import ASSIGNMENT
from without_card import words as message_of

from grader.backends.gpu import tensormemory
from grader.core.results import PartResult

HEAD = """
import torch
import triton
import triton.language as tl

@triton.jit
def gelu_of(x):
    u = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return x / (1.0 + tl.exp(-2.0 * u))

"""
#: GELU with one program for BLOCK numbers of a row. Each kernel below is an edit of it.
ROWS = """
@triton.jit
def kernel(x, y, x_row, x_column, y_row, C, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < C
    v = tl.load(x + row * x_row + column * x_column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * y_row + column, gelu_of(v).to(y.dtype.element_ty), mask=inside)

def gelu(x, y):
    kernel[(x.shape[0], triton.cdiv(x.shape[1], 128))](x, y, *x.stride(), y.stride(0), x.shape[1], BLOCK=128)
"""


def edited(*edits: tuple[str, str], text: str = ROWS) -> str:
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


STORE = "tl.store(y + row"
UNMASKED_STORE = edited((", mask=inside)\n\ndef", ")\n\ndef"))
UNMASKED_LOAD = edited((", mask=inside, other=0.0)", ")"))
BEYOND = "bytes beyond the end of y (5600 bytes)"
BEFORE = "bytes before the beginning of y (5600 bytes)"
ATOMIC = "an atomic operation outside of every tensor, by program "
POINTED = "out = tl.load(t).to(tl.pointer_type(tl.float32))\n    tl.store(out + row"
WITH_T = (("(x, y, x_row", "(x, y, t, x_row"), ("(x, y, *x", "(x, y, torch.tensor([64]), *x"))
WITH_A_POINTER = edited((STORE, POINTED), *WITH_T)
EXCHANGED = edited(("    inside =", "    tl.atomic_cas(y + 1400 + row, 0.0, 1.0)\n    inside ="))
MORE_PROGRAMS = edited(("[(x.shape[0], ", "[(x.shape[0] + 1, "), ("tl.load(x", "tl.load(x + 0 * row"))
#: Kernels by name, and a part of the message. The first store or atomic operation of each is the one outside.
OUTSIDE = {
    "no mask": (UNMASKED_STORE, BEYOND),
    "before the beginning": (edited((STORE, "tl.store(y - 3 + row")), f"up to 12 {BEFORE}"),
    "far before": (edited((STORE, "tl.store(y - (1 << 28) + row")), BEFORE),
    "another stride": (edited((f"{STORE} * y_row", f"{STORE} * (y_row + 64)")), BEYOND),
    "too many programs": (MORE_PROGRAMS, f"by program (7, 0, 0): up to 512 {BEYOND}"),
    "an addition": (edited(("tl.store(", "tl.atomic_add("), text=UNMASKED_STORE), f"{ATOMIC}(6, 1, 0)"),
    "an atomic exchange": (EXCHANGED, f"{ATOMIC}(0, 0, 0): up to 4 bytes beyond the end of y"),
    "a pointer out of a tensor": (WITH_A_POINTER, "through a pointer into none"),
}

#: GELU with one program for a tile. Each kernel of descriptors or block pointers says what stands for the dots.
TILES = """
from triton.tools.tensor_descriptor import TensorDescriptor

@triton.jit
def kernel(x, y, strides, R, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = (tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS)
    ...

def gelu(x, y):
    block, given = [4, 64], (x, y)
    kernel[(triton.cdiv(x.shape[0], 4), triton.cdiv(x.shape[1], 64))](*given, x.stride(), *x.shape, *block)
"""
DESCRIBED = ("(*given", "(*(TensorDescriptor.from_tensor(t, block) for t in given)")
DESCRIPTOR = edited(("...", "y.store(at, gelu_of(x.load(at)))"), DESCRIBED, text=TILES)
MADE = """source = tl.make_tensor_descriptor(x, [R, C], [C, 1], [ROWS, COLUMNS])
    target = tl.make_tensor_descriptor(y, [R, C], [C, 1], [ROWS, COLUMNS])
    target.store(at, gelu_of(source.load(at)))"""
MADE_INSIDE = edited(("...", MADE), text=TILES)
BLOCKS = """source = tl.make_block_ptr(x, (R, C), strides, at, (ROWS, COLUMNS), (1, 0))
    target = tl.make_block_ptr(y, (R, C), (C, 1), at, (ROWS, COLUMNS), (1, 0))
    v = tl.load(source, boundary_check=(0, 1), padding_option="zero")
    tl.store(target, gelu_of(v), boundary_check=(0, 1))"""
BLOCK_POINTERS = edited(("...", BLOCKS), text=TILES)
UNPACKED = ("    inside =", "    x, y = both[0], both[1]\n    inside =")
IN_A_TUPLE = edited(("def kernel(x, y, ", "def kernel(both, "), UNPACKED, ("(x, y, *x", "((x, y), *x"))
BY_POINTERS = """    x = tl.load(table).to(tl.pointer_type(tl.float32))
    y = tl.load(table + 1).to(tl.pointer_type(tl.float32))
"""
POINTERS = edited(
    ("def kernel(x, y, ", "def kernel(table, "),
    ("    row, column =", f"{BY_POINTERS}    row, column ="),
    ("(x, y, *x", "(torch.tensor([x.data_ptr(), y.data_ptr()], dtype=torch.int64), *x"),
)
#: One kernel stores the pointers that another loads, and lanes of one access lie in two tensors.
STORED_POINTERS = f"""
@triton.jit
def tally(table, x, y):
    tl.store(table, x.to(tl.int64))
    tl.store(table + 1, y.to(tl.int64))

@triton.jit
def kernel(table, halves, x_row, x_column, C, BLOCK: tl.constexpr):
{BY_POINTERS}    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    v = gelu_of(tl.load(x + row * x_row + column * x_column, mask=column < C, other=0.0))
    even = column % 2 == 0
    tl.store(tl.where(even, y + row * C + column, halves + column), v, mask=column < C)
    tl.store(y + row * C + column, tl.load(halves + column, mask=column < C), mask=(column < C) & (column % 2 == 1))

def gelu(x, y):
    table = torch.zeros(2, dtype=torch.int64)
    tally[(1,)](table, x, y)
    size = triton.next_power_of_2(x.shape[1])
    kernel[(x.shape[0],)](table, torch.empty(size), *x.stride(), x.shape[1], BLOCK=size)
"""
#: A kernel that loads an index from outside of a tensor: the value given for such integers makes each result wrong.
INDICES = edited(
    ("def kernel(x, y, ", "def kernel(x, y, indices, "),
    ("    inside =", "    k = tl.load(indices + column)\n    inside ="),
    ("gelu_of(v)", "tl.where(k == column, gelu_of(v), 0.0)"),
    ("(x, y, *x", "(x, y, torch.arange(x.shape[1] - 1, dtype=torch.int32), *x"),
)
MORE_ROWS = edited(("(y, [R, C]", "(y, [R + 1, C]"), text=MADE_INSIDE)
WAYS = {"loaded": POINTERS, "stored": STORED_POINTERS, "descriptor": DESCRIPTOR, "made inside": MADE_INSIDE}
WAYS |= {"block": BLOCK_POINTERS, "tuple": IN_A_TUPLE}
OUTSIDE["a descriptor of more rows"] = (MORE_ROWS, f"by program (1, 0, 0): up to 256 {BEYOND}")


def judged(folder: Path, text: str, cases: Sequence[str] = ("random",)) -> PartResult:
    return without_card.judged(folder, HEAD + text, ["gelu"], cases)["gelu"]


def line_of(text: str, pattern: str) -> int:
    return 1 + next(k for k, line in enumerate((HEAD + text).splitlines()) if re.search(pattern, line))


@without_card.interpreted
@without_card.cardless
class TestKernels:
    @pytest.mark.parametrize("name", OUTSIDE)
    def test_a_store_outside_is_reported_with_its_line(self, name: str, tmp_path: Path) -> None:
        text, words = OUTSIDE[name]
        part = judged(tmp_path, text)
        assert (part.verdict, part.diagnosis and part.diagnosis.code) == ("crash", "exception")
        line = line_of(text, r"\.(store|atomic_\w+)\(")
        assert f"line {line} raised IndexError: a" in message_of(part)
        assert "outside of every tensor, by program (" in message_of(part) and words in message_of(part)

    def test_five_runs_say_the_same(self, tmp_path: Path) -> None:
        said = {message_of(judged(tmp_path, UNMASKED_STORE)) for _ in range(5)}
        assert len(said) == 1 and "up to 224 bytes beyond the end of y (5600 bytes)" in said.pop()

    @pytest.mark.parametrize("text", [ROWS, UNMASKED_LOAD], ids=["masked", "loaded and not used"])
    def test_what_is_right_passes_on_every_input(self, text: str, tmp_path: Path) -> None:
        part = judged(tmp_path, text, [case.name for case in ASSIGNMENT.part("gelu").cases])
        assert (part.verdict, part.diagnosis, part.output) == ("pass", None, "")

    @pytest.mark.parametrize("name", WAYS)
    def test_other_ways_to_memory_pass(self, name: str, tmp_path: Path) -> None:
        part = judged(tmp_path, WAYS[name])
        assert (part.verdict, part.diagnosis) == ("pass", None)

    def test_loads_outside_that_are_used_are_wrong_and_named(self, tmp_path: Path) -> None:
        used = edited(("gelu_of(v)", "(gelu_of(v) + 0.0 * tl.sum(v, 0))"), text=UNMASKED_LOAD)
        for text, call in ((used, r"tl\.load\(x"), (INDICES, r"tl\.load\(indices")):
            part = judged(tmp_path, text)
            assert part.verdict == "wrong"
            assert f"Line {line_of(text, call)} loaded from outside of every tensor" in message_of(part)

    def test_a_wrong_kernel_that_stays_inside_hears_of_no_loads(self, tmp_path: Path) -> None:
        part = judged(tmp_path, edited(("gelu_of(v)", "(gelu_of(v) + 1.0)")))
        assert part.verdict == "wrong" and "outside of every tensor" not in message_of(part)


def test_what_is_loaded_from_outside_is_no_number_of_any_type() -> None:
    memory = tensormemory.Memory(None, None, {"kernels": 0})
    kinds = {"float16": "float16", "float32": "float32", "float64": "float64", "bfloat16": "int16"}
    for name, kind in (*kinds.items(), ("float8_e4m3fn", "uint8"), ("float8_e5m2", "uint8")):
        junk = torch.tensor([memory.junk(np.dtype(kind))]).to(getattr(torch, kind))
        assert junk.view(getattr(torch, name)).float().isnan().all(), name
    assert [memory.junk(np.dtype(kind)) for kind in ("int32", "uint64")] == [2**31 - 1, 2**63 - 1]


def test_another_triton_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Executor:
        def __call__(self) -> None:
            """Wrapped object."""

    run = Executor.__call__
    lacking = SimpleNamespace(load=None, store=None, atomic_rmw=None)
    other = SimpleNamespace(_interpreter=lacking, GridExecutor=Executor, interpreter_builder=None)
    other._implicit_cvt = lambda value: value
    monkeypatch.setitem(sys.modules, "triton.runtime.interpreter", other)
    assert tensormemory.guard({"kernels": 0}) is None
    lacking.atomic_cas = None
    assert tensormemory.guard({"kernels": 0}) is None
    assert other._interpreter is lacking and Executor.__call__ is run
