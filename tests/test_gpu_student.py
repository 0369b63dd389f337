"""GPU files on a machine without a GPU: missing drivers, faults of a Python file, accesses outside of tensors."""

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from without_card import ASSIGNMENT, LAB, TRITON, by_interpreter, judged, unfit_triton, words

from grader.assignment.mutations import Mutation, edited
from grader.backends.faults import Broken
from grader.backends.gpu import backend, kernelmarks, tensormemory
from grader.backends.native.crashes import own_output
from grader.core.results import PartResult
from grader.runner.calls import Call
from labs.gpu import known

MASTER = (LAB / "kernels.py").read_text(encoding="utf-8")
HEAD = """
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

DEVICE = triton.runtime.driver.active.get_active_torch_device()
"""
TUNED = """
def configs(*sizes):
    return [triton.Config({"BLOCK": size}, num_warps=warps) for size in sizes for warps in (2, 4)]
@triton.autotune(configs(64, 128), key=["C"], reset_to_zero=["y"])
@triton.jit
def gelu_kernel(x, y, x_row, x_column, y_row, C, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row * x_row + column * x_column, mask=column < C, other=0.0).to(tl.float32)
    u = 0.7978845608028654 * (v + 0.044715 * libdevice.pow(v, 3.0))
    tl.store(y + row * y_row + column, (0.5 * v * (1.0 + libdevice.tanh(u))).to(y.dtype.element_ty), mask=column < C)
def gelu(x, y):
    gelu_kernel[lambda meta: (x.shape[0], triton.cdiv(x.shape[1], meta["BLOCK"]))](
        x, y, *x.stride(), y.stride(0), x.shape[1]
    )
@triton.autotune(configs(1024, 2048), key=["C"], warmup=5, rep=10)
@triton.jit
def softmax_kernel(x, y, x_row, x_column, y_row, C, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * x_row + column * x_column, mask=column < C, other=float("-inf")).to(tl.float32)
    w = tl.extra.cuda.libdevice.exp(v - tl.max(v, 0))
    tl.store(y + row * y_row + column, (w / tl.sum(w, 0)).to(y.dtype.element_ty), mask=column < C)
def softmax(x, y):
    softmax_kernel[(x.shape[0],)](x, y, *x.stride(), y.stride(0), x.shape[1])
"""
FAULTY = """
def gelu(x, y):
    torch.zeros(3, dtype=torch.float8_e4m3fn).cumsum(0)
def softmax(x, y):
    print("rows:", x.shape[0])
    raise ValueError
def softmax_long(x, y):
    import ctypes
    print("about to crash")
    ctypes.string_at(0)
def matmul(a, b, c):
    torch.cuda.CUDAGraph()
def flash_forward(q, k, v, causal):
    o = torch.empty_like(q)
"""
#: A part with two outputs. Causal inputs: only O is wrong, in every element. Others: only L is wrong, in its last row.
SEVERAL = """
def flash_forward(q, k, v, causal):
    s = (q.float() @ k.float().transpose(1, 2)) * q.shape[2] ** -0.5
    if causal:
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), float("-inf"))
    lse = torch.logsumexp(s, 2)
    o = torch.exp(s - lse[:, :, None]) @ v.float()
    if causal:
        return (o + 1.0).to(q.dtype), lse
    lse[:, -1] += 0.5
    return o.to(q.dtype), lse
"""
#: Features of Triton's compiler that its interpreter lacks, refuses or runs slowly.
GAPS = """
@triton.jit
def merge(a, m, b, n):
    return tl.maximum(a, b), m * tl.exp(a - tl.maximum(a, b)) + n * tl.exp(b - tl.maximum(a, b))
@triton.jit
def last(a, b):
    return b
def made():
    LOG2E = tl.constexpr(1.4426950408889634)
    @triton.jit
    def kernel(x, y, x_row, x_column, y_row, C, BLOCK: tl.constexpr):
        row, column = tl.program_id(0), tl.arange(0, BLOCK)
        v = tl.load(x + row * x_row + column * x_column, mask=column < C, other=-1e30).to(tl.float32)
        most, total = tl.reduce((v, tl.where(column < C, 1.0, 0.0)), 0, merge)
        running, sums = tl.associative_scan((v, tl.where(column < C, 1.0, 0.0)), 0, merge)
        total = (total + tl.reduce(sums, 0, last)).log().exp() * 0.5
        w = ((v - tl.max(tl.sort(v), 0)) * LOG2E).exp2()
        tl.store(y + row * y_row + column, (w / total).to(y.dtype.element_ty), mask=column < C)
    return kernel
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        made()[(x.shape[0],)](x, y, *x.stride(), y.stride(0), x.shape[1], triton.next_power_of_2(x.shape[1]))
        return y
def softmax(x, y):
    y.copy_(Own.apply(x))
@triton.jit
def approximate(x, y):
    at = tl.arange(0, 16)
    tl.store(y + at, tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [tl.load(x + at)], dtype=tl.float32, is_pure=True, pack=1
    ))
def gelu(x, y):
    approximate[(1,)](x, y)
"""


def test_an_unfit_triton_is_named_with_what_to_install() -> None:
    for version, why in ((None, "which is not installed"), ("3.6.0", "found 3.6.0"), ("3.8", "found 3.8")):
        reason = unfit_triton(version)
        assert why in reason and f"needs {TRITON}" in reason and f"pip install '{TRITON}'" in reason
    assert unfit_triton("3.7.0") == unfit_triton("3.7.2+git1") == ""


@by_interpreter
def test_autotuned_kernels_and_those_of_libdevice_are_judged_without_a_gpu(tmp_path: Path) -> None:
    found = judged(tmp_path, HEAD + TUNED, ["gelu", "softmax"])
    assert {(part.verdict, part.diagnosis) for part in found.values()} == {("pass", None)}
    wrong = TUNED.replace("1.0 + libdevice.tanh(u)", "1.0 - libdevice.tanh(u)")
    assert judged(tmp_path, HEAD + wrong, ["gelu"])["gelu"].verdict == "wrong"


@by_interpreter
def test_features_that_the_interpreter_lacks_cost_no_points(tmp_path: Path) -> None:
    ends = {"softmax": "pass", "gelu": "unjudged", "flash_forward": "missing"}
    found = judged(tmp_path, HEAD + GAPS, list(ends), ("random",))
    assert {name: part.verdict for name, part in found.items()} == ends
    assert found["softmax"].flags == () and "takes 4 arguments" in words(found["flash_forward"])
    own = "\ndef gelu(x, y):\n    raise NotImplementedError('not supported in interpreter mode') from OSError()\n"
    assert judged(tmp_path, HEAD + own, ["gelu"], ("random",))["gelu"].verdict == "crash"


@by_interpreter
def test_faults_of_a_python_file_are_reported_in_its_own_terms(tmp_path: Path) -> None:
    text = HEAD + FAULTY
    raising = 1 + text.splitlines().index("    raise ValueError")
    raised = rf": line {raising} raised ValueError\n  \w+\.py:{raising}: raise ValueError\Z"
    expected = {
        # torch raises NotImplementedError, too; it does not mean an unfinished starter.
        "gelu": ("crash", "exception", r"raised NotImplementedError"),
        "softmax": ("crash", "exception", raised),
        "softmax_long": ("crash", "sigsegv", r"outside of a tensor"),
        "matmul": ("unjudged", "machine_lacks", r"(?s)needs a GPU.*this machine has no GPU"),
        "flash_forward": ("crash", "exception", r"it should return O and L, and returns nothing"),
    }
    found = judged(tmp_path, text, list(expected), ("random",))
    for name, (verdict, code, said) in expected.items():
        assert (found[name].verdict, found[name].diagnosis.code) == (verdict, code), name
        assert re.search(said, words(found[name])), name
    assert not re.search(r"--sanitize|std::vector|array", words(found["softmax_long"]))
    assert "rows: 7" in found["softmax"].output and "about to crash" in found["softmax_long"].output


OF_CUDA = """raise ValueError("my cuda path")
raise ValueError("x") from RuntimeError("cuda")
raise RuntimeError("Torch not compiled with CUDA enabled")
int("cuda")
torch._assert(False, "Torch not compiled with CUDA enabled")
globals()["__name__"] = "torch.cuda"; raise RuntimeError("CUDA error: no device")
exec("def own(): raise RuntimeError('CUDA error')", vars(torch.cuda)); torch.cuda.own()"""


@by_interpreter
@pytest.mark.parametrize("statement", OF_CUDA.splitlines())
def test_a_file_cannot_claim_that_the_gpu_is_missing(statement: str, tmp_path: Path) -> None:
    part = judged(tmp_path, HEAD + f"\ndef gelu(x, y):\n    {statement}\n", ["gelu"], ("random",))["gelu"]
    assert part.verdict == "crash", words(part)


@by_interpreter
def test_an_exit_while_a_file_is_loaded_is_blamed_on_its_statements(tmp_path: Path) -> None:
    part = judged(tmp_path, MASTER + "\nimport os\nos._exit(3)\n", ["gelu"], ("random",))["gelu"]
    assert part.verdict == "crash" and "statements outside of functions" in words(part)
    assert "static initialisers" not in words(part)


@by_interpreter
def test_outputs_of_different_shapes_may_be_wrong_on_different_inputs(tmp_path: Path) -> None:
    """O is wrong on one case and L on another, so the explanation must not compare their indices."""
    found = judged(tmp_path, HEAD + SEVERAL, ["flash_forward"], ("random", "causal"))["flash_forward"]
    assert found.verdict == "wrong" and found.diagnosis is not None
    assert [case.ok for case in found.cases] == [False, False]


@by_interpreter
def test_messages_advise_no_command_that_is_refused_for_gpu_kernels(tmp_path: Path) -> None:
    mutation = Mutation("NaN", "gelu", (("    y = x / (", "    y = float('nan') * x / ("),))
    part = judged(tmp_path, edited(MASTER, mutation, known), ["gelu"], ("random", "ragged"))["gelu"]
    assert part.verdict == "wrong" and "NaN" in words(part) and "--sanitize" not in words(part)


def test_a_store_without_a_mask_is_reported_but_no_kernel_that_the_build_did_not_compile() -> None:
    """Such a store damages the heap. A kernel that the build did not compile is not the student's fault."""
    part, call, found = ASSIGNMENT.part("matmul"), Call(status="crash", signal_name="SIGABRT"), []
    malloc = "Fatal glibc error: malloc assertion failure in _int_malloc: (unsigned long) (size) >= (nb)"
    for said in ("corrupted double-linked list", malloc):
        message = backend.call_fault(Broken(part, call, "random", printed=said)).diagnosis.message
        assert "outside of a tensor" in message and "masks" in message and own_output(said) == ""
    for folder in ("compiled/0123456789abcdef", "logs/0123456789abcdef"):
        said = f"line 3 raised PermissionError: [Errno 13] Permission denied: '/tmp/x/{folder}/k.so'"
        found.append(backend.call_fault(Broken(part, Call("exception", message=said), "timed call")))
    assert [fault.verdict for fault in found] == ["unjudged", "crash"] and found[0].waits_for == "GPU"


MARKED = """
def helper(x):
    return x  # tl.dot(
@triton.jit
def kernel(
    x, y,
):
    'tl.dot('
    tl.store(y, tl.dot(x, x))
class Plain(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.matmul(x, x)
class Quick(Function):
    @staticmethod
    def forward(ctx, x):
        kernel[(1,)](x, x)
    @staticmethod
    def backward(ctx, g):
        return tl.dot(g, g)
def unused(x):
    return tl.dot(x, x)
def run(x):
    launch(helper(x))
def launch(x):
    kernel[(1,)](x, x)
"""


def test_lines_are_those_of_the_function_and_what_it_reaches() -> None:
    def lines(body: kernelmarks.Body | None) -> list[int]:
        return [] if body is None else [place.line for place in body.find(r"tl\.dot\(|matmul")]

    assert lines(kernelmarks.function(MARKED, "run")) == [9]
    assert kernelmarks.function(MARKED, "absent") is None
    assert lines(kernelmarks.method(MARKED, "forward", "", True)) == [9]
    assert lines(kernelmarks.method(MARKED, "forward", "", False)) == [13]
    assert lines(kernelmarks.method(MARKED, "forward", "Plain", True)) == [13]
    assert lines(kernelmarks.method(MARKED, "backward", "", None)) == [20]
    assert kernelmarks.method(MARKED, "forward", "", None) is None, "if two classes fit, none is chosen"
    # The reader's time grows linearly with the untrusted text.
    for text in ("def f(" * 99_999, "class A:\n  " * 50_000, "'" * 500_000, "def f(): f(\n" * 50_000):
        started_s = time.process_time()
        kernelmarks.function(text, "f")
        kernelmarks.method(text, "forward", "", True)
        assert time.process_time() - started_s < 10.0


GELU = """
import torch
import triton
import triton.language as tl

@triton.jit
def gelu_of(x):
    u = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return x / (1.0 + tl.exp(-2.0 * u))

"""
#: GELU with one program instance for each BLOCK of a row. The kernels below are edits of this text.
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


def with_edits(*edits: tuple[str, str], text: str = ROWS) -> str:
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


STORE = "tl.store(y + row"
UNMASKED_STORE = with_edits((", mask=inside)\n\ndef", ")\n\ndef"))
UNMASKED_LOAD = with_edits((", mask=inside, other=0.0)", ")"))
BEYOND = "bytes beyond the end of y (5600 bytes)"
BEFORE = "bytes before the beginning of y (5600 bytes)"
ATOMIC = "an atomic operation outside of every tensor, by program "
POINTED = "out = tl.load(t).to(tl.pointer_type(tl.float32))\n    tl.store(out + row"
WITH_T = (("(x, y, x_row", "(x, y, t, x_row"), ("(x, y, *x", "(x, y, torch.tensor([64]), *x"))
EXCHANGED = with_edits(("    inside =", "    tl.atomic_cas(y + 1400 + row, 0.0, 1.0)\n    inside ="))
MORE_PROGRAMS = with_edits(("[(x.shape[0], ", "[(x.shape[0] + 1, "), ("tl.load(x", "tl.load(x + 0 * row"))
#: By name: a kernel with a store or an atomic operation outside of every tensor, and a part of the expected message.
OUTSIDE = {
    "no mask": (UNMASKED_STORE, BEYOND),
    "before the beginning": (with_edits((STORE, "tl.store(y - 3 + row")), f"up to 12 {BEFORE}"),
    "far before": (with_edits((STORE, "tl.store(y - (1 << 28) + row")), BEFORE),
    "another stride": (with_edits((f"{STORE} * y_row", f"{STORE} * (y_row + 64)")), BEYOND),
    "too many programs": (MORE_PROGRAMS, f"by program (7, 0, 0): up to 512 {BEYOND}"),
    "an addition": (with_edits(("tl.store(", "tl.atomic_add("), text=UNMASKED_STORE), f"{ATOMIC}(6, 1, 0)"),
    "an atomic exchange": (EXCHANGED, f"{ATOMIC}(0, 0, 0): up to 4 bytes beyond the end of y"),
    "a pointer out of a tensor": (with_edits((STORE, POINTED), *WITH_T), "through a pointer into no tensor"),
}

#: GELU with one program instance for each tile. Code with tensor descriptors or block pointers replaces the dots.
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
DESCRIPTOR = with_edits(("...", "y.store(at, gelu_of(x.load(at)))"), DESCRIBED, text=TILES)
MADE = """source = tl.make_tensor_descriptor(x, [R, C], [C, 1], [ROWS, COLUMNS])
    target = tl.make_tensor_descriptor(y, [R, C], [C, 1], [ROWS, COLUMNS])
    target.store(at, gelu_of(source.load(at)))"""
MADE_INSIDE = with_edits(("...", MADE), text=TILES)
BLOCKS = """source = tl.make_block_ptr(x, (R, C), strides, at, (ROWS, COLUMNS), (1, 0))
    target = tl.make_block_ptr(y, (R, C), (C, 1), at, (ROWS, COLUMNS), (1, 0))
    v = tl.load(source, boundary_check=(0, 1), padding_option="zero")
    tl.store(target, gelu_of(v), boundary_check=(0, 1))"""
UNPACKED = ("    inside =", "    x, y = both[0], both[1]\n    inside =")
IN_A_TUPLE = with_edits(("def kernel(x, y, ", "def kernel(both, "), UNPACKED, ("(x, y, *x", "((x, y), *x"))
BY_POINTERS = """    x = tl.load(table).to(tl.pointer_type(tl.float32))
    y = tl.load(table + 1).to(tl.pointer_type(tl.float32))
"""
POINTERS = with_edits(
    ("def kernel(x, y, ", "def kernel(table, "),
    ("    row, column =", f"{BY_POINTERS}    row, column ="),
    ("(x, y, *x", "(torch.tensor([x.data_ptr(), y.data_ptr()], dtype=torch.int64), *x"),
)
#: One kernel stores pointers and another loads them. The lanes of one access lie in two tensors.
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
#: A kernel that loads an index from outside of a tensor. The load returns the largest integer, so the result is wrong.
INDICES = with_edits(
    ("def kernel(x, y, ", "def kernel(x, y, indices, "),
    ("    inside =", "    k = tl.load(indices + column)\n    inside ="),
    ("gelu_of(v)", "tl.where(k == column, gelu_of(v), 0.0)"),
    ("(x, y, *x", "(x, y, torch.arange(x.shape[1] - 1, dtype=torch.int32), *x"),
)
MORE_ROWS = with_edits(("(y, [R, C]", "(y, [R + 1, C]"), text=MADE_INSIDE)
ON_EVERY_INPUT = {"masked": ROWS, "loaded and not used": UNMASKED_LOAD}
WAYS = ON_EVERY_INPUT | {"loaded": POINTERS, "stored": STORED_POINTERS, "descriptor": DESCRIPTOR}
WAYS |= {"made inside": MADE_INSIDE, "block": with_edits(("...", BLOCKS), text=TILES), "tuple": IN_A_TUPLE}
OUTSIDE["a descriptor of more rows"] = (MORE_ROWS, f"by program (1, 0, 0): up to 256 {BEYOND}")


def judged_gelu(folder: Path, text: str, cases: Sequence[str] = ("random",)) -> PartResult:
    return judged(folder, GELU + text, ["gelu"], cases)["gelu"]


def line_of(text: str, pattern: str) -> int:
    return 1 + next(k for k, line in enumerate((GELU + text).splitlines()) if re.search(pattern, line))


@by_interpreter
class TestKernels:
    @pytest.mark.parametrize(("text", "place"), OUTSIDE.values(), ids=OUTSIDE)
    def test_a_store_outside_is_reported_with_its_line(self, text: str, place: str, tmp_path: Path) -> None:
        part = judged_gelu(tmp_path, text)
        assert (part.verdict, part.diagnosis and part.diagnosis.code) == ("crash", "exception")
        line = line_of(text, r"\.(store|atomic_\w+)\(")
        assert f"line {line} raised IndexError: a" in words(part)
        assert "outside of every tensor, by program (" in words(part) and place in words(part)

    @pytest.mark.parametrize("name", WAYS)
    def test_right_kernels_pass_with_every_form_of_memory_access(self, name: str, tmp_path: Path) -> None:
        part = judged_gelu(tmp_path, WAYS[name], () if name in ON_EVERY_INPUT else ("random",))
        assert (part.verdict, part.diagnosis) == ("pass", None)
        assert name not in ON_EVERY_INPUT or part.output == ""

    def test_loads_outside_that_are_used_are_wrong_and_named(self, tmp_path: Path) -> None:
        used = with_edits(("gelu_of(v)", "(gelu_of(v) + 0.0 * tl.sum(v, 0))"), text=UNMASKED_LOAD)
        for text, call in ((used, r"tl\.load\(x"), (INDICES, r"tl\.load\(indices")):
            part = judged_gelu(tmp_path, text)
            assert part.verdict == "wrong"
            assert f"Line {line_of(text, call)} loaded from outside of every tensor" in words(part)

    def test_a_wrong_kernel_without_outside_loads_gets_no_message_about_loads(self, tmp_path: Path) -> None:
        part = judged_gelu(tmp_path, with_edits(("gelu_of(v)", "(gelu_of(v) + 1.0)")))
        assert part.verdict == "wrong" and "outside of every tensor" not in words(part)


def test_loads_from_outside_give_nan_or_the_largest_integer() -> None:
    memory = tensormemory.Memory(None, None, {"kernels": 0})
    kinds = {"float16": "float16", "float32": "float32", "float64": "float64", "bfloat16": "int16"}
    for name, kind in (*kinds.items(), ("float8_e4m3fn", "uint8"), ("float8_e5m2", "uint8")):
        junk = torch.tensor([memory.junk(np.dtype(kind))]).to(getattr(torch, kind))
        assert junk.view(getattr(torch, name)).float().isnan().all(), name
    assert [memory.junk(np.dtype(kind)) for kind in ("int32", "uint64")] == [2**31 - 1, 2**63 - 1]


def test_an_unknown_triton_is_not_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    Executor = type("Executor", (), {"__call__": lambda self: None})
    run = Executor.__call__
    lacking = SimpleNamespace(load=None, store=None, atomic_rmw=None)
    other = SimpleNamespace(_interpreter=lacking, GridExecutor=Executor, interpreter_builder=None)
    other._implicit_cvt = lambda value: value
    monkeypatch.setitem(sys.modules, "triton.runtime.interpreter", other)
    assert tensormemory.guard({"kernels": 0}) is None
    lacking.atomic_cas = None
    assert tensormemory.guard({"kernels": 0}) is None
    assert other._interpreter is lacking and Executor.__call__ is run
