"""Attention's inputs and oracle: properties, equality with torch, an error budget that only float32 meets."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from conftest import ROOT, refused, some
from torch import Tensor
from torch_kernels import Inputs, arrays, compare, expect, make_inputs, right, rounded, scores

from grader.core.arrays import array_bytes, as_array, item_bytes, np
from grader.core.draws import Draws
from grader.explain import comparison
from grader.runner.calls import DTYPE_NAMES
from labs.attention import cases, dissect, oracle

ATTENTION_DISTRIBUTIONS = [name for name in cases.DISTRIBUTIONS if not name.endswith("indices")]
ND = [(1, 1), (1, 32), (2, 5), (5, 3), (7, 32), (16, 1), (61, 19)]
ND += [(97, 40), (131, 17), (333, 128), (1024, 32)]
TABLE = {"B": 2, "H": 3, "N": 4, "d": 5}


def exact_scores(x: Inputs) -> Tensor:
    return x["Q"].double() @ x["K"].double().mT


def attention(distribution: str, *sizes: int, seed: int = 5) -> tuple[Inputs, comparison.Expected]:
    """Return the inputs and the expected output for sizes B, H, N and d."""
    shape = dict(zip("BHNd", sizes, strict=True))
    x = make_inputs(distribution, shape, seed)
    return x, expect("attention", x, shape)


@pytest.mark.parametrize("distribution", cases.DISTRIBUTIONS)
def test_equal_seeds_give_equal_inputs(distribution: str) -> None:
    shape = {"B": 2, "H": 3, "N": 7, "d": 5}
    first, again = make_inputs(distribution, shape, 9), make_inputs(distribution, shape, 9)
    other = make_inputs(distribution, shape, 10)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert all(value.is_contiguous() for value in first.values())
    if distribution != "ramp":
        assert not all(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("distribution", ATTENTION_DISTRIBUTIONS)
@pytest.mark.parametrize(("n", "d"), ND)
def test_scores_stay_within_float32s_exp(distribution: str, n: int, d: int) -> None:
    for seed in range(3):
        x = make_inputs(distribution, {"B": 2, "H": 2, "N": n, "d": d}, seed)
        assert all(value.dtype == torch.float32 and value.shape == (2, 2, n, d) for value in x.values())
        assert exact_scores(x).abs().max() <= cases.MAX_ABS_SCORE


@pytest.mark.parametrize("distribution", ["random", "onehot", "permuted_keys", "rising"])
@pytest.mark.parametrize(("n", "d"), [size for size in ND if size[0] > 1])
def test_graded_scores_spread_and_outputs_are_of_order_one(distribution: str, n: int, d: int) -> None:
    x, expected = attention(distribution, 2, 2, n, d, seed=4)
    s = exact_scores(x)
    assert (s.amax((2, 3)) - s.amin((2, 3))).min() >= 10
    size = np.sqrt(np.square(expected.value).mean((2, 3)))
    assert size.min() > 0.02 and size.max() < 3


@pytest.mark.parametrize("distribution", [name for name in ATTENTION_DISTRIBUTIONS if name != "ramp"])
def test_heads_are_independent(distribution: str) -> None:
    _, expected = attention(distribution, 2, 2, 40, 8, seed=4)
    copied = np.broadcast_to(expected.value[0, 0], expected.value.shape)
    for b, h in ((0, 1), (1, 0), (1, 1)):
        assert comparison.compare(expected, copied).wrong[b, h].mean() > 0.5


def test_the_ramp_has_rank_2_and_index_tables_visit_every_index_once() -> None:
    x, expected = attention("ramp", 2, 2, 64, 32, seed=0)
    assert torch.linalg.matrix_rank(exact_scores(x)[0, 0]) <= 2 and torch.equal(x["Q"][0, 0], x["Q"][1, 1])
    assert np.allclose(x["V"].mean(2, keepdim=True).expand_as(x["V"]), expected.value, atol=1e-4)
    x = make_inputs("indices", TABLE, 1)
    offsets = dissect.flat_offsets(x["index"], TABLE)
    assert sorted(offsets.tolist()) == list(range(120)) and offsets.tolist() != sorted(offsets.tolist())
    assert sorted(x["tensor"].flatten().tolist()) == list(range(1, 121))
    assert not set(x["values"].tolist()) & set(x["tensor"].flatten().tolist())
    assert len(make_inputs("some_indices", TABLE, 1)["index"]) == 60


def test_an_unknown_distribution_and_a_size_of_0_are_refused() -> None:
    for distribution, n, words in (("gaussian", 1, "unknown distribution"), ("random", 0, "N")):
        refused(words, make_inputs, distribution, {"B": 1, "H": 1, "N": n, "d": 1}, 0)


def test_expected_rows_equal_rows_of_the_whole_result() -> None:
    x, whole = attention("random", 2, 3, 97, 40)
    rows = np.array([96, 0, 31])
    some = oracle.Attention().expected_rows(arrays(x), rows)
    assert np.allclose(some.value, whole.value[:, :, rows], rtol=1e-12, atol=0)
    assert np.allclose(some.tolerance, np.asarray(whole.tolerance)[:, :, rows], rtol=1e-9)


@pytest.mark.parametrize("sizes", [(1, 2, 1, 7), (2, 3, 97, 40), (40, 3, 5, 3), (1, 4, 1024, 32)])
def test_the_oracle_equals_torch(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle equals torch up to float64's rounding. It splits the work by heads or rows among several threads."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    x, expected = attention("random", *sizes)
    by_torch = torch.softmax(exact_scores(x), 3) @ x["V"].double()
    assert np.allclose(expected.value, by_torch.numpy(), rtol=1e-12, atol=1e-13)


def test_nan_stays_in_its_row_and_is_wrong() -> None:
    x, _ = attention("random", 1, 2, 9, 4)
    x["Q"][0, 1, 3, 2] = np.nan
    value = expect("attention", x, {}).value
    assert np.isnan(value[0, 1, 3]).all() and np.isnan(value).sum() == 4
    expected = comparison.Expected(np.zeros(4), 1.0)
    for value in (float("nan"), float("inf"), -float("inf")):
        found = compare(expected, torch.tensor([0.0, value, 0.5, 0.0]))
        assert not found.ok and found.max_error == float("inf")
        assert found.wrong.tolist() == [False, True, False, False]
    assert compare(expected, torch.tensor([0.0, 1.0, -1.0, 0.0])).budget_used == 1.0


def added_up(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix product a (..., n, k) @ b (..., k, m) in float32, summed over k in order, as in a loop."""
    columns = a.mT.contiguous()
    total = torch.zeros(*a.shape[:-1], b.shape[-1])
    for k in range(a.shape[-1]):
        total.addcmul_(columns[..., k, :, None], b[..., k, None, :])
    return total


def row_sums(weights: Tensor) -> Tensor:
    return added_up(weights, torch.ones(*weights.shape[:-2], weights.shape[-1], 1))


def course_style(x: Inputs) -> Tensor:
    weights = added_up(x["Q"], x["K"].mT).exp()
    return added_up(weights / row_sums(weights), x["V"])


def safe_softmax(x: Inputs) -> Tensor:
    s = added_up(x["Q"], x["K"].mT)
    weights = (s - s.amax(3, keepdim=True)).exp()
    return added_up(weights, x["V"]) / row_sums(weights)


def flash(x: Inputs, block: int) -> Tensor:
    """Return flash attention in the published order: O = (l * O + weights @ V) / l_new, l the sum of weights so far."""
    out, li = torch.zeros_like(x["Q"]), torch.zeros(*x["Q"].shape[:3], 1)
    for start in range(0, x["K"].shape[2], block):
        weights = added_up(x["Q"], x["K"][:, :, start : start + block].mT).exp()
        lnew = li + row_sums(weights)
        out = (li * out + added_up(weights, x["V"][:, :, start : start + block])) / lnew
        li = lnew
    return out


HONEST = {"course-style": course_style, "safe softmax": safe_softmax}
HONEST |= {"flash, one key at a time": lambda x: flash(x, 1), "flash, blocks of 64": lambda x: flash(x, 64)}


@pytest.mark.parametrize("distribution", ATTENTION_DISTRIBUTIONS)
@pytest.mark.parametrize("n, d", some([(1, 7), (97, 40), (2, 5), (7, 32), (16, 1), (128, 128), (256, 32)], 4))
def test_honest_kernels_use_a_tenth_of_the_budget(distribution: str, n: int, d: int) -> None:
    x, expected = attention(distribution, 1, 2, n, d)
    used = {name: compare(expected, kernel(x)).budget_used for name, kernel in HONEST.items()}
    assert max(used.values()) <= 0.1, used


@pytest.mark.parametrize("distribution", ["constant_rows", "random"])
def test_honest_kernels_use_a_tenth_of_the_budget_at_2048(distribution: str) -> None:
    """Long sums of equal numbers have the largest errors, because their rounding errors do not cancel."""
    x, expected = attention(distribution, 1, 1, 2048, 8)
    assert compare(expected, course_style(x)).budget_used <= 0.1


#: Inaccurate kernels by name, each with the least multiple of the error budget that its error must reach.
COARSE: dict[str, tuple[float, Callable[[Inputs], Tensor]]] = {
    "float16 inputs": (3, lambda x: right(rounded(x, torch.float16))),
    "bfloat16 inputs": (25, lambda x: right(rounded(x, torch.bfloat16))),
    "float16 weights": (2, lambda x: torch.softmax(scores(x), 3).half().float() @ x["V"].half().float()),
    "1e-3 too large": (3, lambda x: 1.001 * right(x)),
    "V's mean": (1000, lambda x: x["V"].mean(2, keepdim=True).expand_as(x["V"])),
    "1 + x": (1000, lambda x: (w := 1 + scores(x)) / w.sum(3, keepdim=True) @ x["V"]),
    "head 0 copied": (1000, lambda x: right(x)[:, :1].expand_as(x["V"])),
    "not normalised": (1000, lambda x: scores(x).exp() @ x["V"]),
    "zeros": (1000, lambda x: torch.zeros_like(x["V"])),
    "tiny": (1000, lambda x: torch.full_like(x["V"], 1e-6)),
}


@pytest.mark.parametrize(("times", "coarse"), COARSE.values(), ids=COARSE)
@pytest.mark.parametrize(("n", "d"), [(97, 40), (333, 128), (1024, 32)])
def test_coarse_kernels_exceed_the_budget(times: float, coarse: Callable, n: int, d: int) -> None:
    x, expected = attention("random", 1, 2, n, d)
    found = compare(expected, coarse(x))
    assert not found.ok and found.budget_used >= times


@pytest.mark.parametrize("seed", [0, 1, 149, 2**32 - 1, 2**40 + 17, 2**60 - 1])
def test_draws_equal_torchs(seed: int) -> None:
    ours, theirs = Draws(seed), torch.Generator().manual_seed(seed)
    for size in ((3,), (2, 5, 7), (1000,), (0,)):
        assert np.array_equal(ours.uniform(size), torch.rand(size, generator=theirs).numpy())
        assert np.array_equal(ours.permutation(size[0]), torch.randperm(size[0], generator=theirs).numpy())
        assert np.array_equal(ours.below(11, size), torch.randint(0, 11, size, generator=theirs).numpy())
    scaled = torch.rand(1000, generator=theirs).mul_(2 * 1.3).sub_(1.3)
    assert np.array_equal(ours.uniform((1000,), -1.3, 1.3), scaled.numpy())
    # Drawing 5 numbers of a permutation uses as many random words as drawing all 97, so that later draws are the same.
    assert np.array_equal(ours.permutation(97, 5), torch.randperm(97, generator=theirs)[:5].numpy())
    assert np.array_equal(ours.words(4) & 0xFFFFFF, torch.rand(4, generator=theirs).numpy() * 2**24)


def test_random_inputs_are_those_of_version_1() -> None:
    """Results of version 1 contain the seed with which torch drew the inputs. The same seed must give these inputs."""
    d, generator = 32, torch.Generator().manual_seed(7)

    def uniform(bound: float, rows: int = 1024) -> torch.Tensor:
        return torch.rand((1, 4, rows, d), generator=generator).mul_(2.0 * bound).sub_(bound)

    bound = (3.0 * 3.3 / d**0.5) ** 0.5
    wanted = {"Q": uniform(bound), "K": uniform(bound), "V": uniform(1.0) + uniform(0.5, rows=1)}
    made = make_inputs("random", {"B": 1, "H": 4, "N": 1024, "d": d}, 7)
    for name, value in wanted.items():
        assert torch.equal(made[name], value), name


def test_arrays_of_each_dtype_are_read_and_written() -> None:
    for code, name in DTYPE_NAMES.items():
        assert item_bytes(name) == getattr(torch, name).itemsize, code
    assert item_bytes("type 99") is None and as_array(bytearray(8), "bfloat16", (4,)) is None
    payload = bytearray(np.arange(5, dtype=np.int16).tobytes())
    read = as_array(payload, "int16", (2, 2), 2)
    assert read is not None and read.tolist() == [[1, 2], [3, 4]]
    assert bytes(array_bytes(read)) == payload[2:]
    assert bytes(array_bytes(np.array(7, np.uint8))) == b"\x07" and not array_bytes(np.zeros((3, 0)))


def test_numpys_blas_starts_no_threads_and_leaves_the_environment() -> None:
    program = "import os\nbefore = dict(os.environ)\nfrom grader.core.arrays import np\n"
    program += "a = np.ones((700, 700)); a @ a\nassert dict(os.environ) == before\n"
    program += "tasks = '/proc/self/task'\nassert not os.path.isdir(tasks) or len(os.listdir(tasks)) == 1\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MKL_NUM_THREADS": "2"}
    environment.pop("OMP_NUM_THREADS", None)
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
