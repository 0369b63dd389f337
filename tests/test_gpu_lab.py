"""The GPU lab without a GPU: oracle, error budget, known kernels in Triton's interpreter, studies on given figures."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import code_of, in_files, part_of, put, python, refused, results_alone, some, write
from without_card import cardless, interpreted

from grader.assignment.loading import load
from grader.assignment.mutations import Mutation, in_one_file
from grader.assignment.records import Part
from grader.core import errors, places, results
from grader.core.arrays import Array, np
from grader.core.draws import Draws
from grader.core.precision import rounded
from grader.explain.comparison import Expected, compare
from labs.gpu import arithmetic, known
from labs.gpu.inputs import HEADS, PRODUCTS, ROWS, make_inputs
from labs.gpu.oracle import ORACLES
from labs.gpu.studies import asking, ladder, memory, profile, roofline, waves
from labs.operators import known as operators
from labs.softmax import kernels as softmax

LAB = places.ROOT / "labs" / "gpu"
BESIDE = places.ROOT / "tests" / "gpu_lab"
ASSIGNMENT = load(LAB / "hidden" / "assignment.yaml")
Made, Results = Sequence[Mutation], tuple[results.PartResult, ...]
Shape, Arrays, Wanted = dict[str, int], Mapping[str, Array], Mapping[str, Expected]
TRITON_PARTS = ("gelu", "softmax", "softmax_long", "matmul", "flash_forward", "flash_backward")
ROWS_OF = {**dict.fromkeys(("R", "lines", "rows"), 9), **dict.fromkeys(("C", "width", "inner"), 33)}
SHAPE = {"B": 2, "N": 37, "M": 53, "d": 16, "causal": 0, "precision": 24, "layout": 0, "columns": 5} | ROWS_OF
#: Cases on which wrong kernels fail; MORE adds other types and sizes for right files.
TELLING = ("random", "columns", "causal", "heads beside each other")
MORE = (*TELLING, "ragged", "float16")
DISTRIBUTIONS = ("random", "random", "long_random", "matrices", "heads", "heads_gradient")
#: A file's language, comparison in its causal mask, and verdict. With "<=", query i attends to the keys from i on.
FORMS = ["triton >= pass", pytest.param("pytorch >= pass", marks=pytest.mark.full), "pytorch <= wrong"]


def some_cases(part: Part, names: Sequence[str]) -> Part:
    return replace(part, cases=tuple(case for case in part.cases if case.name in names))


def judged(folder: Path, text: str, parts: Sequence[Part]) -> Results:
    return results_alone(ASSIGNMENT, write(folder, text, "kernels.py"), parts).parts


def known_kernels(folder: Path, made: Made, names: Sequence[str] = ()) -> Results:
    """Judge kernels of the lab's table, all in one file. `names`: cases to call (by default all)."""
    text, parts = in_one_file(known, ASSIGNMENT, (LAB / "kernels.py").read_text(encoding="utf-8"), made)
    if names:
        parts = tuple(some_cases(part, names) for part in parts)
    return judged(folder, text, parts)


@pytest.mark.parametrize("precision", [24, 11, 8])
def test_inputs_are_numbers_of_their_type_and_repeatable(precision: int) -> None:
    shape = {**SHAPE, "precision": precision, "causal": 1}
    for name in (*ROWS, *PRODUCTS, *HEADS, *(f"{name}_gradient" for name in HEADS)):
        made, again = make_inputs(name, shape, 7), make_inputs(name, shape, 7)
        for key, t in made.items():
            assert t.dtype == np.float32 and np.array_equal(t, again[key], equal_nan=True), name
            assert key == "L" or np.array_equal(t, rounded(t, precision), equal_nan=True), (name, key)
            assert name == "masked" or np.isfinite(t).all(), (name, key)
    assert np.isfinite(make_inputs("masked", shape, 7)["x"]).any(1).all()


def test_huge_logits_are_exact_products() -> None:
    """The inputs are integers that TF32 represents exactly, and float32 sums of them are exact, too."""
    given = make_inputs("huge", {**SHAPE, "d": 128}, 3)
    single = np.einsum("bnd,bmd->bnm", given["q"], given["k"])
    assert np.array_equal(single, arithmetic.scores(given["q"], given["k"], 1.0))
    assert 5e3 < abs(arithmetic.scores(given["q"], given["k"])).max() < 2e4


def attention_of(inputs: Arrays, shape: Shape) -> dict[str, Array]:
    """Return O and L in float32. The weights and O are rounded to the precision in `shape`, as in a kernel."""
    q, k, v = (inputs[name] for name in "qkv")
    s = np.einsum("bnd,bmd->bnm", q, k) * np.float32(shape["d"] ** -0.5)
    if shape["causal"]:
        s[:, ~arithmetic.visible(np.arange(shape["N"]), np.arange(shape["M"]))] = -np.inf
    most = s.max(2, keepdims=True)
    p = np.exp(s - most)
    total = p.sum(2, keepdims=True)
    o = np.einsum("bnm,bmd->bnd", rounded(p, shape["precision"]).astype(np.float32), v) / total
    return {"O": rounded(o, shape["precision"]), "L": (most + np.log(total))[..., 0]}


def cut(t: Array, kept: int = 0xFFFFE000) -> Array:
    """Return float32 numbers with only the bits in the mask `kept`, by default the bits of TF32."""
    return (np.ascontiguousarray(t, np.float32).view(np.uint32) & np.uint32(kept)).view(np.float32)


def drawn(name: str, seed: int, part: str = "flash_forward", **changes: int) -> tuple[Shape, Arrays, Wanted]:
    """Return a shape, inputs of the distribution `name`, and the expected outputs of a part."""
    shape = {**SHAPE, **changes}
    inputs = make_inputs(name, shape, seed)
    return shape, inputs, ORACLES[part].expected(inputs, shape)


def fits(expected: Mapping[str, Expected], got: Mapping[str, Array]) -> dict[str, bool]:
    return {name: compare(one, np.asarray(got[name])).ok for name, one in expected.items()}


@pytest.mark.parametrize("precision", [24, 11, 8])
@pytest.mark.parametrize("name", HEADS)
def test_honest_attention_is_within_the_budget(name: str, precision: int) -> None:
    for causal in (0, 1):
        shape, inputs, expected = drawn(name, 11, causal=causal, precision=precision)
        assert all(fits(expected, attention_of(inputs, shape)).values())


def test_tf32_is_within_the_budget_and_coarser_arithmetic_is_not() -> None:
    _, inputs, expected = drawn("heads", 5)
    assert all(fits(expected, attention_of({name: cut(t) for name, t in inputs.items()}, SHAPE)).values())
    assert not fits(expected, attention_of({k: cut(t, 0xFFFC0000) for k, t in inputs.items()}, SHAPE))["L"]
    # An accumulator in 16 bits exceeds the budget.
    shape, inputs, expected = drawn("equal", 2, M=2000, N=5, precision=11)
    assert all(fits(expected, attention_of(inputs, shape)).values())
    acc = np.zeros(inputs["q"].shape, np.float16)
    for start in range(0, 2000, 32):
        acc += inputs["v"][:, start : start + 32].sum(1, keepdims=True).astype(np.float16)
    assert not fits({"O": expected["O"]}, {"O": acc / np.float16(2000)})["O"]


def gradients_of(inputs: Arrays, shape: Shape, o: Array, lse: Array) -> dict[str, Array]:
    """Return dQ, dK and dV in float32, computed from the given O and L."""
    q, k, v, upstream = (inputs[name] for name in ("q", "k", "v", "dO"))
    scale = np.float32(shape["d"] ** -0.5)
    s = np.einsum("bnd,bmd->bnm", q, k) * scale
    if shape["causal"]:
        s[:, ~arithmetic.visible(np.arange(shape["N"]), np.arange(shape["M"]))] = -np.inf
    p = np.exp(s - lse[..., None])
    ds = p * (np.einsum("bnd,bmd->bnm", upstream, v) - (upstream * o).sum(2, keepdims=True)) * scale
    turned = ds.swapaxes(1, 2), p.swapaxes(1, 2)
    return {"dQ": ds @ k, "dK": turned[0] @ q, "dV": turned[1] @ upstream}


def test_gradients_from_an_l_in_tf32_are_within_the_budget() -> None:
    """A backward pass in float32 may use O and L from a forward pass in TF32, but not from one with fewer bits."""
    size = {"N": 256, "M": 256, "d": 64, "causal": 1}
    for seed in range(6):
        shape, inputs = {**SHAPE, **size}, make_inputs("falling_gradient", {**SHAPE, **size}, seed)
        own = {name: inputs[name] for name in ("q", "k", "v", "dO")}
        expected = ORACLES["flash_backward"].expected(own, shape)
        for kept, fitting in ((0xFFFFE000, True), (0xFFFC0000, False)):
            saved = attention_of({name: cut(t, kept) for name, t in own.items()}, shape)
            found = fits(expected, gradients_of(own, shape, saved["O"], saved["L"]))
            assert all(found.values()) == fitting, (seed, found)


@pytest.mark.parametrize("causal", [0, 1])
def test_gradients_are_those_of_the_forward_pass(causal: int) -> None:
    """Compare gradients with central differences of sum(O dO) in random directions, with and without saved O and L."""
    shape, inputs, expected = drawn("heads_gradient", 4, "flash_backward", N=7, M=9, causal=causal)
    own = ORACLES["flash_backward"].expected({k: v for k, v in inputs.items() if k not in "OL"}, shape)
    assert all(np.allclose(own[name].value, expected[name].value, atol=1e-5) for name in own)
    draws, exact = Draws(9), {name: inputs[name].astype(np.float64) for name in ("q", "k", "v")}

    def loss(moved: Mapping[str, Array]) -> float:
        o, _ = arithmetic.attention(moved["q"], moved["k"], moved["v"], causal=bool(causal))
        return float((o * inputs["dO"]).sum())

    for name, gradient in (("q", "dQ"), ("k", "dK"), ("v", "dV")):
        way = draws.uniform(exact[name].shape, -1.0, 1.0).astype(np.float64)
        step = 1e-5
        above, below = ({**exact, name: exact[name] + side * step * way} for side in (1, -1))
        slope = (loss(above) - loss(below)) / (2 * step)
        # The inputs O and L are rounded to float32, hence the tolerance.
        assert slope == pytest.approx(float((expected[gradient].value * way).sum()), rel=1e-4, abs=1e-4), name


@pytest.mark.parametrize(("part", "distribution"), [*zip(TRITON_PARTS, DISTRIBUTIONS, strict=True)])
def test_sampled_expected_values_equal_the_whole_result(part: str, distribution: str) -> None:
    shape = {**SHAPE, "causal": 1}
    inputs = make_inputs(distribution, shape, 6)
    oracle = ORACLES[part]
    whole, (at, sample) = oracle.expected(inputs, shape), oracle.sample(inputs, shape, Draws(1), 6)
    if isinstance(whole, Expected):
        whole, sample = {"": whole}, {"": sample}
    for output, one in sample.items():
        assert np.allclose(whole[output].value[at], one.value, rtol=1e-12, atol=1e-14), output
        assert np.allclose(np.asarray(whole[output].tolerance)[at], one.tolerance, rtol=1e-3), output


CASES_OF = {"kernels, some": partial(some_cases, names=MORE), "kernels": replace}
CASES_OF["reference"] = lambda part: replace(part, cases=tuple(one for one in part.cases if not one.hidden))


@interpreted
@pytest.mark.parametrize("file", some(CASES_OF, 3))
def test_a_right_file_passes(file: str, tmp_path: Path) -> None:
    text = (LAB / f"{file.partition(',')[0]}.py").read_text(encoding="utf-8")
    parts = judged(tmp_path, text, [CASES_OF[file](ASSIGNMENT.part(one)) for one in TRITON_PARTS])
    found = {part.id: (part.verdict, part.diagnosis) for part in parts}
    assert found == dict.fromkeys(TRITON_PARTS, ("pass", None))


@pytest.mark.full
@interpreted
def test_tuned_kernels_are_right_on_small_and_ragged_shapes() -> None:
    ran = python(BESIDE / "tuned_small.py", timeout_s=600, TRITON_INTERPRET="1", PYTHONPATH=str(places.ROOT))
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(found) == 7, ran.stderr
    assert all(share < 1 for shares in found for share in shares), found


def named(mutation: Mutation, result: results.PartResult) -> bool:
    diagnosis = result.diagnosis
    return diagnosis is not None and diagnosis.code in mutation.codes and mutation.says in diagnosis.message


@interpreted
@pytest.mark.parametrize("made", in_files(known.WRONG, code_of, 60, [*softmax.WRONG, *operators.WRONG]))
def test_wrong_kernels_are_rejected_by_name(made: Made, tmp_path: Path) -> None:
    """To save time, judge each kernel on one case. If too many mistakes are not named, judge those on more cases."""
    found: dict[Mutation, results.PartResult] = {}
    others, allowed = list(made), 0.15 * len(made)
    for cases in (TELLING[:1], TELLING, ()):
        if len(others) > allowed or any(found[one].verdict == "pass" for one in others):
            found |= zip(others, known_kernels(tmp_path, others, cases), strict=True)
            others = [one for one in others if not named(one, found[one])]
    assert [one.name for one in made if found[one].verdict == "pass"] == []
    assert len(others) <= allowed, [(one.name, found[one].diagnosis) for one in others]


@interpreted
@pytest.mark.parametrize("made", in_files(known.RIGHT, part_of))
def test_right_kernels_in_other_styles_pass(made: Made, tmp_path: Path) -> None:
    found = zip(made, known_kernels(tmp_path, made, ("random", "ragged", "causal", "float16")), strict=True)
    assert [(mutation.name, part.diagnosis) for mutation, part in found if part.verdict != "pass"] == []


@interpreted
@pytest.mark.parametrize("form", FORMS)
def test_autograd_functions_are_judged(form: str, tmp_path: Path) -> None:
    file, seen, verdict = form.split()
    # Both files need the same backward pass. Only autograd_pytorch.py has it: copy it to the text of the other file.
    texts = {name: (BESIDE / f"autograd_{name}.py").read_text() for name in ("triton", "pytorch")}
    texts["triton"] += texts["pytorch"][texts["pytorch"].index("\n    @staticmethod\n    def backward") :]
    parts = [some_cases(ASSIGNMENT.part(one), TELLING) for one in TRITON_PARTS[4:]]
    for part in judged(tmp_path, texts[file].replace(">= columns", f"{seen} columns"), parts):
        assert part.verdict == verdict, part.diagnosis
        assert (part.diagnosis and part.diagnosis.code) == ("mask_reversed" if verdict == "wrong" else None)


def test_waves_of_the_published_example_and_where_throughput_falls() -> None:
    """On 108 multiprocessors, tiles of 256 x 128 cover side 1792 in one wave (98 tiles), and side 1793 in two (120)."""
    assert [waves.tiles(side, (256, 128)) for side in (1792, 1793)] == [98, 120]
    assert [waves.waves(side, (256, 128), 108) for side in (1792, 1793)] == [1, 2]
    assert waves.cliffs((1664, 1792, 1793, 1920), (256, 128), 108) == (1793,)
    assert waves.filled(1792, (256, 128), 108) == pytest.approx(98 / 108)
    sides = tuple(range(1024, 5633, 128))
    jitter = 1 + 0.01 * np.sin(np.arange(len(sides)))
    times = tuple((s, 0.1 * waves.waves(s, (128, 256), 132) * j) for s, j in zip(sides, jitter, strict=True))
    study = waves.WavesStudy(times, 4096, (128, 256), 132, "a card")
    assert study.wave_ms == pytest.approx(0.1, rel=0.01)
    rates = {side: study.rate(side, ms) for side, ms in times}
    marked = waves.cliffs(sides, study.tile, 132)
    steps = list(pairwise(sides))
    assert len(marked) > 3 and all(rates[b] > rates[a] for a, b in steps if b not in marked)
    assert any(rates[b] < rates[a] for a, b in steps if b in marked)
    assert len(study.table().rows) == len(sides) and study.table().text().count("cliff") > len(marked)
    assert [one.label for one in study.figures()[0].series][-1] == "one more wave begins"  # type: ignore[union-attr]


def test_the_roofline_names_the_limit() -> None:
    kernels = roofline.kernels_of({"gelu": 0.07, "matmul": 1.7, "flash_forward": "RuntimeError: no"})
    study = roofline.RooflineStudy(4e12, 7e14, kernels, "a card")
    rows = {row[0]: row for row in study.table().rows}
    assert study.ridge == pytest.approx(175)
    assert rows["gelu"][4] == "memory" and rows["matmul"][4] == "tensor cores"
    assert rows["gelu"][8] == pytest.approx(100 * (4 * 8192**2 / 0.07e-3) / 4e12)
    assert rows["matmul"][8] == pytest.approx(100 * 2 * 8192**3 / 1.7e-3 / 7e14)
    assert rows["flash_forward"][5] == "RuntimeError: no" and rows["softmax"][5] == "not measured"
    assert study.figures()


def test_profile_counts_launches() -> None:
    elementwise = [[f"void at::native::vectorized_elementwise_kernel<4, {k}>", 1, 600.0] for k in range(8)]
    found = {
        "by hand": {"ms": 5.5, "kernels": elementwise},
        "PyTorch": {"ms": 0.53, "kernels": [["void at::native::gelu<4>", 1, 530.0]]},
        "Triton": {"ms": 0.6, "kernels": [["_gelu", 1, 595.0]]},
        "CUDA": "kernels.cu: no nvcc",
    }
    ways = profile.ways_of(found)
    counts = {"by hand": 8, "PyTorch": 1, "compiled": 0, "Triton": 1, "CUDA": 0}
    assert {way.name: way.count for way in ways} == counts
    study = profile.ProfileStudy(ways, "a card")
    text = study.table().text()
    assert "no nvcc" in text and "not measured" in text and text.count("vectorized_elementwise_kernel") == 8
    rates = {row[0]: row[2] for row in study.table().rows if row[2] is not None}
    assert rates["Triton"] == pytest.approx(2 * 4 * 8192**2 / 0.6e-3 / 1e12) and study.figures()


def test_memory_grows_with_the_square_and_with_n() -> None:
    sizes = [(n, 2 * 2 * 8 * n * n if n < 4096 else None) for n in (512, 1024, 2048, 4096)]
    study = memory.MemoryStudy([(n, naive, 2 * 8 * n * 64 + 4 * 8 * n) for n, naive in sizes], "a card")
    for name, power in (("naive", 2), ("flash", 1)):
        assert memory.growth(study.of(name)) == pytest.approx(power)
    assert study.table().rows[-1][1] is None and study.table().rows[-1][3] is None
    assert "naive N^2.00, flash N^1.00" in study.table().caption and study.figures()


def test_the_ladder_lists_measured_rows_and_the_gpus_limit() -> None:
    shape = {"B": 64, "N": 4096, "M": 4096, "d": 64, "causal": 0, "precision": 11}
    limits = ladder.limits_of("flash_forward", shape, 4e12, 7e14)
    assert limits["arithmetic"] == pytest.approx(4 * 64 * 4096**2 * 64 / 7e14 * 1e3)
    assert limits["memory"] == pytest.approx((2 * 64 * 4 * 4096 * 64 + 4 * 64 * 4096) / 4e12 * 1e3)
    measured = {"by hand": 4.0, "yours": 1.0, "compiled": "no"}
    study = ladder.LadderStudy("flash_forward", measured, limits, "a card")
    assert study.limit[0] == "arithmetic"
    names = [row[0] for row in study.table().rows]
    assert {*measured} < {*names} and names.index("by hand") < names.index("yours")
    assert names[-1] == "the GPU's limit: arithmetic" and study.figures()
    assert ladder.limits_of("gelu", {"R": 8192, "C": 8192, "precision": 24}, 4e12, 7e14)["memory"] > 0.1


@pytest.mark.full
@cardless
def test_studies_say_in_one_line_that_there_is_no_gpu(tmp_path: Path) -> None:
    refused("GPU|pip install", asking.measured, "waves", tmp_path / "kernels.py", of=errors.KitError)


def test_a_study_does_not_hide_a_module_of_pythons_library(tmp_path: Path) -> None:
    """The lab has a study `profile`. torch's compiler imports Python's module of the same name."""
    put(tmp_path, {"profile.py": "", "child.py": "import cProfile\nprint(cProfile.run.__name__)\n"})
    ran = subprocess.run([*asking.PYTHON, str(tmp_path / "child.py")], capture_output=True, text=True)
    assert ran.stdout == "run\n", ran.stderr
