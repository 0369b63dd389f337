"""The lab `cs336`: its known kernels in Triton's interpreter, and which class of a file is called."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import without_card
from conftest import ROOT, in_files, one_of_each, part_of, results_alone, some, write
from without_card import cardless, interpreted, words

from grader.assignment.loading import load
from grader.assignment.mutations import Mutation, edited
from grader.core.results import PartResult
from labs.cs336 import known

LAB = ROOT / "labs" / "cs336"
ASSIGNMENT = load(LAB / "assignment.yaml")
MASTER = (LAB / "flash_attention.py").read_text(encoding="utf-8")
PARTS = tuple(part.id for part in ASSIGNMENT.parts)
pytestmark = [interpreted, cardless]


def judged(folder: Path, text: str, parts: Sequence[str] = PARTS) -> dict[str, PartResult]:
    return without_card.judged(folder, text, parts, ("random", "causal", "longer"), ASSIGNMENT)


@pytest.mark.parametrize("made", in_files(known.WRONG, part_of))
def test_wrong_kernels_are_rejected_by_name(made: Sequence[Mutation], tmp_path: Path) -> None:
    found = {one: judged(tmp_path, edited(MASTER, one), [one.part])[one.part] for one in made}
    assert [one.name for one in made if found[one].verdict != "wrong"] == []
    codes = {one: found[one].diagnosis.code for one in made}  # type: ignore[union-attr]
    assert [one.name for one in made if ".py:" not in found[one].diagnosis.message] == []  # type: ignore[union-attr]
    unnamed = [(one.name, codes[one]) for one in made if codes[one] not in one.codes]
    assert len(unnamed) <= 0.15 * len(known.WRONG), unnamed


@pytest.mark.parametrize("made", one_of_each(known.RIGHT, part_of, name=lambda one: one.name))
def test_right_kernels_in_other_styles_pass(made: Mutation, tmp_path: Path) -> None:
    part = judged(tmp_path, edited(MASTER, made), [made.part])[made.part]
    assert (part.verdict, part.flags) == ("pass", ())


@pytest.mark.full
@pytest.mark.parametrize("of_weights", [False, True])
def test_gradients_allow_for_the_rounding_of_the_files_own_l(of_weights: bool, tmp_path: Path) -> None:
    """A GPU's forward pass multiplies in TF32 and saves a less accurate L (logsumexp) for the backward pass."""
    cut = "(x.view(torch.int32) & -8192).view(torch.float32)"
    tile, keys = "q_tile = q[:, rows].float()\n", "k[:, start : start + KEYS].float()"
    text = MASTER.replace(tile, f"cut = lambda x: {cut}\n            q_tile = cut(q[:, rows].float())\n")
    text = text.replace(f"q_tile @ {keys}", f"q_tile @ cut({keys})")
    hidden = load(LAB / "hidden" / "assignment.yaml").part("backward_pytorch")
    falling = next(case for case in hidden.cases if case.name == "hidden falling")
    dominant = next(case for case in ASSIGNMENT.part("backward_pytorch").cases if case.name == "short heads")
    part = replace(hidden, cases=(replace(falling, seed=12), dominant))
    assert text.count("cut(") == 2
    if of_weights:  # compute D as the sum of P * dP, which equals the usual sum of dO * O only for an exact L
        assert "delta[:, rows, None]" in text
        text = text.replace("delta[:, rows, None]", "(p * dP).sum(-1, keepdim=True)")
    (found,) = results_alone(ASSIGNMENT, write(tmp_path, text, ASSIGNMENT.source), [part]).parts
    assert found.verdict == "pass", found.diagnosis


@pytest.mark.parametrize("tensors", ["q, k, v", "*(x[:, None] for x in (q, k, v))"])
@pytest.mark.parametrize("how", ["{}", "torch.ops.mine.of({})"], ids=["by itself", "in an own operator"])
def test_torchs_own_attention_is_flagged(how: str, tensors: str, tmp_path: Path) -> None:
    own = "MINE = torch.library.Library('mine', 'DEF')\nMINE.define('of(Tensor q, Tensor k, Tensor v) -> Tensor')\n"
    own += "MINE.impl('of', lambda q, k, v: ATTEND(q, k, v), 'CPU')\n"
    call = how.format(tensors) if "mine" in how else f"ATTEND({tensors})"
    forward = "    def forward(ctx, q, k, v, is_causal=False):\n        s = q @ k.mT * q.shape[-1] ** -0.5\n"
    forward += f"        ctx.save_for_backward(torch.logsumexp(s, -1))\n        return {call}.view(q.shape)"
    text = f"import torch\nATTEND = torch.nn.functional.scaled_dot_product_attention\n{own}"
    text += f"class FlashAttentionPyTorch(torch.autograd.Function):\n    @staticmethod\n{forward}\n"
    (part,) = without_card.judged(tmp_path, text, ["forward_pytorch"], ("random",), ASSIGNMENT).values()
    assert part.verdict == "pass", part.diagnosis
    assert "library_operators" in [flag.code for flag in part.flags]


ADAPTER = "def get_flashattention_autograd_function_{}():\n    return {}\n"
#: Source of a class in PyTorch. Its forward and backward pass call a function each, from the texts below.
IN_PYTORCH = """
import threading
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
ATTEND = torch.nn.functional.scaled_dot_product_attention
def scores(q, k, causal):
    s = q @ k.mT * q.shape[-1] ** -0.5
    hidden = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(1)
    return s.masked_fill(hidden, float("-inf")) if causal else s
def whole(q, k, v, causal):
    s = scores(q, k, causal)
    return s.softmax(-1) @ v, s.logsumexp(-1)
def tiles(q, k, v, causal):
    hidden = torch.ones(q.shape[1], k.shape[1]).triu(1).bool()
    o, L = torch.empty_like(q), q.new_empty(q.shape[:2])
    for at in range(0, q.shape[1], 64):
        rows = slice(at, at + 64)
        s = q[:, rows] @ k.mT * q.shape[-1] ** -0.5
        if causal:
            s.masked_fill_(hidden[rows], float("-inf"))
        L[:, rows], o[:, rows] = s.logsumexp(-1), s.softmax(-1) @ v
    return o, L
def slices(q, k, v, causal):
    (B, N, d), M = q.shape, k.shape[1]
    hidden = torch.ones(N, M, dtype=torch.bool).triu(1).view(4, N // 4, M).repeat(B, 1, 1)
    s = q.view(4 * B, N // 4, d) @ k.repeat_interleave(4, 0).mT * d**-0.5
    s = s.masked_fill(hidden & bool(causal), float("-inf"))
    return (s.softmax(-1) @ v.repeat_interleave(4, 0)).view(q.shape), s.logsumexp(-1).view(B, N)
def numpy(q, k, v, causal):
    s = scores(q, k, causal)
    return torch.from_numpy(s.softmax(-1).numpy() @ v.numpy()), s.logsumexp(-1)
def thread(q, k, v, causal):
    got = []
    work = threading.Thread(target=lambda: got.append(ATTEND(q, k, v, is_causal=causal)))
    work.start(), work.join()
    return got[0], scores(q, k, causal).logsumexp(-1)
def plain(q, k, v, causal):
    return whole(q, k, v, causal)[0]
def attended(q, k, v, causal):
    with sdpa_kernel(SDPBackend.MATH):
        return ATTEND(q, k, v, is_causal=causal)
def operator(q, k, v, causal):
    return torch.ops.aten._scaled_dot_product_attention_math(q, k, v, None, 0.0, causal)[0]
class FlashAttentionPyTorch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        o, L = FORWARD(q, k, v, is_causal)
        ctx.save_for_backward(q, k, v, o, L)
        ctx.is_causal = is_causal
        return o
    @staticmethod
    def backward(ctx, dO):
        with torch.enable_grad():
            q, k, v = (t.detach().requires_grad_(True) for t in ctx.saved_tensors[:3])
            return *torch.autograd.grad(BACKWARD(q, k, v, ctx.is_causal), (q, k, v), dO), None
"""
#: Keys: the functions that the forward and the backward pass call. Values: flags of the forward and backward part.
SIGNS = {
    "tiles plain": ([], []),
    "slices plain": (["tensor_not_avoided"], []),
    "whole operator": (["tensor_not_avoided"], ["library_operators"]),
    "thread attended": (["library_operators", "unseen_work"], ["library_operators"]),
    "numpy plain": (["unseen_work"], []),
}


@pytest.mark.parametrize("passes", some(SIGNS, 2))
def test_pytorch_passes_without_tiles_or_by_autograd_are_flagged(passes: str, tmp_path: Path) -> None:
    forward, backward = passes.split()
    text = IN_PYTORCH.replace("FORWARD", forward).replace("BACKWARD", backward)
    found = judged(tmp_path, text, PARTS[:2]).values()
    assert [part.verdict for part in found] == ["pass", "pass"]
    assert tuple([flag.code for flag in part.flags] for part in found) == SIGNS[passes]


@pytest.mark.parametrize("adapter", ["", ADAPTER.format("pytorch", "Attention")])
def test_a_class_that_launches_a_kernel_is_not_the_one_in_pytorch(adapter: str, tmp_path: Path) -> None:
    """A file's only class is judged in both languages' parts. If it launches a kernel, PyTorch's are `missing`."""
    text = edited(MASTER, Mutation("", "", ()))
    start, end = text.index("class FlashAttentionPyTorch"), text.index("class FlashAttentionTriton")
    alone = text[:start] + text[end:].replace("FlashAttentionTriton", "Attention")
    found = without_card.judged(tmp_path, alone + adapter, PARTS, ("random",), ASSIGNMENT)
    assert [part.verdict for part in found.values()] == ["missing", "missing", "pass", "pass"]
    assert "launches the Triton kernel _forward" in words(found["forward_pytorch"])
    both = text + "\n\nclass Attention(FlashAttentionPyTorch):\n    @staticmethod\n"
    both += "    def forward(ctx, q, k, v, is_causal=False):\n        chosen = FlashAttentionTriton if q.dtype is None "
    both += "else FlashAttentionPyTorch\n        _forward\n        return chosen.forward(ctx, q, k, v, is_causal)\n"
    (part,) = without_card.judged(tmp_path, both + adapter, PARTS[:1], ("random",), ASSIGNMENT).values()
    assert (part.verdict, [flag.level for flag in part.flags if flag.level == "review"]) == ("pass", [])


CARD = """
assert torch.cuda.is_available() and torch.cuda.get_device_properties(0).multi_processor_count > 0
DEVICE = torch.device("cuda")
KEPT = torch.zeros(3, device=DEVICE, pin_memory=True).cuda()
stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
with torch.cuda.stream(stream), torch.cuda.device(0):
    event.record()
torch.cuda.synchronize()
assert KEPT.is_cuda and KEPT.device.type == "cuda" and KEPT.device == DEVICE or KEPT.device.index == 0
assert torch.nn.Linear(2, 2).cuda()(torch.ones(1, 2, device="cuda:0")).to("cuda").get_device() == 0
assert triton.runtime.driver.active.get_active_torch_device().type == "cuda"
"""
USER = """
import getpass, html, logging.handlers, pathlib, sqlite3
for place in (pathlib.Path("/tmp/flash/log.txt"), pathlib.Path.home() / "log.txt"):
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(getpass.getuser())
"""
BFLOAT16 = """
@triton.jit
def there(x, y, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(y + at, (tl.load(x + at) * 2 + tl.full([B], 1.0, tl.bfloat16)).to(tl.bfloat16))
@triton.jit
def back(y, z, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(z + at, tl.load(y + at).to(tl.float32))
x, z = torch.randn(64).to(torch.bfloat16), torch.empty(64)
y = torch.empty_like(x)
there[(1,)](x, y, 64)
back[(1,)](y, z, 64)
assert torch.equal(z, (x.float() * 2 + 1).to(torch.bfloat16).float())
"""
SECOND = """

class Older(FlashAttentionTriton):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        raise RuntimeError(f"this class is not to be called, whatever it names: {_forward}")

"""
OWN = ADAPTER.format("triton", "FlashAttentionTriton")
MORE = {"card and user": CARD + USER + BFLOAT16, "adapter": SECOND + OWN}


@pytest.mark.parametrize("more", some(MORE, 2))
def test_a_file_written_for_a_gpu_passes_unchanged(more: str, tmp_path: Path) -> None:
    found = judged(tmp_path, edited(MASTER, Mutation("", "", ())) + MORE[more])
    outcomes = {part: (one.verdict, one.flags) for part, one in found.items()}
    assert outcomes == dict.fromkeys(PARTS, ("pass", ()))


def test_the_class_that_is_judged_is_named_and_can_be_chosen(tmp_path: Path) -> None:
    text = edited(MASTER, Mutation("", "", ())) + "\n\nclass NewerTriton(FlashAttentionTriton):\n    pass\n"
    found = judged(tmp_path, text, PARTS[2:3])[PARTS[2]]
    assert found.verdict == "pass"
    assert [(flag.code, flag.level) for flag in found.flags] == [("judged_class", "note")]
    assert found.flags[0].message.startswith("NewerTriton of 2 classes that fit was judged")
    part = replace(ASSIGNMENT.part(PARTS[2]), cases=ASSIGNMENT.part(PARTS[2]).cases[:1])
    for name, verdict in (("FlashAttentionTriton", "pass"), ("Nobody", "missing")):
        (one,) = results_alone(ASSIGNMENT, tmp_path / "flash_attention.py", [part.of_class(name)]).parts
        assert (one.verdict, one.flags) == (verdict, ())


def test_a_missing_backward_leaves_the_forward_parts_passing(tmp_path: Path) -> None:
    solution = edited(MASTER, Mutation("", "", ()))
    back = "        return *_backward(*ctx.saved_tensors, dO, ctx.is_causal), None\n"
    assert solution.count(back) == 2
    found = judged(tmp_path, solution.replace(back, '        raise NotImplementedError("later")\n'))
    assert [found[part].verdict for part in PARTS] == ["pass", "missing", "pass", "missing"]
    assert "backward is not implemented" in words(found["backward_triton"])
    text = solution.replace("        _forward[(", "        raise NotImplementedError\n        _forward[(")
    (forward,) = judged(tmp_path, text, ["forward_triton"]).values()
    assert forward.verdict == "missing" and "forward is not implemented" in words(forward)


def test_a_backward_pass_after_a_wrong_forward_pass_names_it(tmp_path: Path) -> None:
    unscaled = edited(MASTER, next(made for made in known.WRONG if made.name == "not scaled"))
    found = judged(tmp_path, unscaled, ["forward_triton", "backward_triton"])
    assert "not multiplied" in words(found["forward_triton"])
    named = "This pass uses O and L of forward_triton, which is wrong"
    assert words(found["backward_triton"]).startswith(named)


def test_a_missing_package_or_gpu_is_not_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ASSIGNMENT", replace(ASSIGNMENT, packages=("einx_of_no_one",)))
    for line, verdict, says in (
        ("import einops_of_no_one", "compile_error", "Hand einops_of_no_one in with the file if it is yours"),
        ("import einx_of_no_one", "unjudged", "pip install einx_of_no_one"),
        ("torch.cuda.CUDAGraph()", "unjudged", "needs a GPU"),
    ):
        part = judged(tmp_path, f"{edited(MASTER, Mutation('', '', ()))}\n{line}\n", PARTS[:1])[PARTS[0]]
        assert part.verdict == verdict and says in words(part)
