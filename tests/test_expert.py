"""The kit's two fast kernels, expert and plain C++: right at each instruction-set level, for any shape and scores."""

import ctypes
import functools

import pytest
import torch
from conftest import some
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from module_ref_stub.library import expert_path

LEVELS = ("baseline", "avx2", "avx512")
#: Shapes: whole tiles, one row, fewer rows than lanes, a ragged last tile, ragged columns, several blocks of keys.
SHAPES = ((1, 2, 128, 32), (1, 1, 1, 1), (2, 1, 5, 3), (2, 3, 77, 19), (1, 2, 333, 40), (1, 1, 260, 128))
#: Least tolerance for an error: half a unit in the last place of values around 4. Tiny shapes need it: plain float32's
#: error may by chance be smaller there.
LEAST_ERROR = 2.4e-7


@functools.cache
def library() -> ctypes.CDLL:
    return ctypes.CDLL(str(expert_path()))


def set_level(wanted: str) -> str:
    """Select an instruction-set level. Return the level that is in use afterwards."""
    return LEVELS[library().gpt149_expert_set_level(LEVELS.index(wanted))]


def attention(Q: Tensor, K: Tensor, V: Tensor, *, threads: int = 1, kernel: str = "expert") -> Tensor:
    """Return softmax(Q K^T) V of contiguous float32 tensors (B, H, N, d)."""
    out = torch.empty_like(Q)
    library().gpt149_expert_set_threads(threads)
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (Q, K, V, out)]
    getattr(library(), f"gpt149_{kernel}_attention")(*pointers[:3], *Q.shape, pointers[3])
    return out


plain_attention = functools.partial(attention, kernel="plain")
#: Least tolerance in multiples of the budget: on a tiny shape, plain float32's error may by chance be smaller.
LEAST_UNITS = 1.0


def exact_and_budget(Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """Return softmax(QK^T)V and the error budget of each element, both (B, H, N, d) in float64.

    With u = 2^-24, rounding errs by about u |v|. Scores err by u |q||k|, which changes a weighted mean of values
    more if the values lie further apart. So the budget of column c is u (sqrt(E[v_c^2]) + sqrt(E[S^2]) sqrt(Var[v_c])).
    S_j is sum_k |q_k k_jk|. E and Var are the mean and variance over keys, by weight.
    """
    weights = torch.softmax(Q @ K.transpose(-2, -1), -1)
    reach = (weights * (Q.abs() @ K.abs().transpose(-2, -1)).square()).sum(-1, keepdim=True).sqrt()
    exact, squares = weights @ V, weights @ V.square()
    spread = (squares - exact.square()).clamp(min=0).sqrt()
    return exact, 2.0**-24 * (squares.sqrt() + reach * spread)


@pytest.fixture(params=some(range(len(LEVELS)), len(LEVELS)), autouse=True)
def level(request: pytest.FixtureRequest):
    """Run every test at each instruction-set level of this machine (fast tier: the best). Restore the best level."""
    best = LEVELS[library().gpt149_expert_level()]
    index = LEVELS.index(best) - request.param
    if index < 0:
        pytest.skip("this machine has fewer levels")
    assert set_level(LEVELS[index]) == LEVELS[index]
    yield LEVELS[index]
    set_level(best)
    torch.set_num_threads(1)  # undo a kernel's change of OpenMP's number of threads, which torch uses, too


def exact(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    return torch.softmax(Q @ K.transpose(-2, -1), -1) @ V


def random_inputs(shape: tuple[int, ...], seed: int, factor: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    Q, K, V = (torch.randn(shape, generator=generator) for _ in range(3))
    return [factor * Q, K, V]


def errors(actual: Tensor, inputs: list[Tensor]) -> list[tuple[float, float]]:
    """Return the root-mean-square and the largest error, first of `actual`, then of plain float32 attention."""
    expected = exact(*(tensor.double() for tensor in inputs))
    off = [(result.double() - expected).abs() for result in (actual, exact(*inputs))]
    return [(float(one.square().mean().sqrt()), float(one.max())) for one in off]


def assert_accurate(actual: Tensor, inputs: list[Tensor]) -> None:
    """Assert that errors are at most twice plain float32's errors, or twice LEAST_ERROR (more for large scores)."""
    assert torch.isfinite(actual).all()
    luck = LEAST_ERROR * max(1.0, float((inputs[0] @ inputs[1].transpose(-2, -1)).abs().max()) / 2)
    for mine, usual in zip(*errors(actual, inputs), strict=True):
        assert mine <= 2 * max(usual, luck), f"{mine} against {usual}, expected by chance {luck:.2g}"


def test_the_plain_kernel_is_right() -> None:
    for shape in SHAPES:
        inputs = random_inputs(shape, seed=7)
        assert_accurate(plain_attention(*inputs, threads=2), inputs)


def test_equal_keys_get_equal_weights_in_every_block() -> None:
    """If blocks rounded scores in different ways, the output would be wrong: by 0.08 at scores of 1e8."""
    for score in (10.1, 63.0, 65.0, 1e3, 1e6, -1e6, 1e30):
        Q, K = torch.ones(1, 1, 600, 1), torch.full((1, 1, 600, 1), score)
        V = (torch.arange(600) >= 300).float().reshape(1, 1, 600, 1)
        assert (attention(Q, K, V) - 0.5).abs().max() < (5e-6 if abs(score) < 64 else 1e-7), score


@settings(max_examples=15)
@given(
    shape=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 230), st.integers(1, 70)),
    factor=st.sampled_from((0.0, 0.1, 1.0, 30.0)),
    seed=st.integers(0, 1 << 30),
)
@example(shape=(1, 2, 333, 40), factor=30.0, seed=1)
@example(shape=(1, 1, 260, 128), factor=1.0, seed=2)
@example(shape=(1, 2, 128, 32), factor=0.1, seed=3)
def test_the_expert_kernel_is_right_for_any_shape(shape, factor, seed) -> None:
    """Compare the error on one random input with twice float32's, and the median error on 20 with the error budget."""
    # A fault shows on every input, and in the median. The largest error depends on chance: in 1 of 100 tests of a right
    # kernel it was over twice float32's error.
    found = []
    for more in range(20):
        inputs = random_inputs(shape, seed + more, factor)
        actual = attention(*inputs, threads=1)
        if not found:
            assert_accurate(actual, inputs)
        q, k, v = (tensor.double() for tensor in inputs)
        expected, budget = exact_and_budget(q, k, v)
        found.append([(result.double() - expected) / budget for result in (actual, exact(*inputs))])
    mine, usual = (torch.stack(units) for units in zip(*found, strict=True))
    largest, usually = (units.abs().flatten(1).amax(1).median() for units in (mine, usual))
    assert largest <= 2 * max(usually, LEAST_UNITS), (largest, usually)
    typical, usually = (units.square().mean().sqrt() for units in (mine, usual))
    assert typical <= 2 * max(usually, LEAST_UNITS / 4), (typical, usually)


def test_large_scores_do_not_overflow_or_vanish() -> None:
    """Scores grow along the keys, from -largest to largest, so every block has a new maximum."""
    N = 400
    for largest in (1e4, 1e6):
        Q, K = torch.zeros(1, 1, N, 5), torch.zeros(1, 1, N, 5)
        Q[..., 0], K[..., 0] = 1, torch.linspace(-largest, largest, N)
        Q[..., ::2, 0] = -1
        V = torch.arange(N, dtype=torch.float32).reshape(1, 1, N, 1).repeat(1, 1, 1, 5)
        for actual in (attention(Q, K, V, threads=1), plain_attention(Q, K, V, threads=1)):
            assert torch.allclose(actual[..., 1::2, :], torch.tensor(N - 1.0))
            assert torch.allclose(actual[..., ::2, :], torch.tensor(0.0), atol=1e-4)
    # A late block has one score far above or below all others. Above, weights by an earlier maximum would overflow.
    for score in (30.0, 90.0, 130.0, 5000.0, -5000.0):
        Q, K, V = random_inputs((1, 1, 300, 8), seed=3)
        K[:, :, 250] = 0.0
        K[:, :, 250, 0] = score
        Q[..., 0] = Q[..., 0].abs() + 0.5
        assert_accurate(attention(Q, K, V, threads=1), [Q, K, V])


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    inputs = random_inputs((2, 3, 333, 40), seed=5)
    for kernel in (attention, plain_attention):
        one, two, five = (kernel(*inputs, threads=threads) for threads in (1, 2, 5))
        assert torch.equal(one, two) and torch.equal(one, five)


def test_very_small_and_large_values_keep_their_accuracy() -> None:
    Q, K, V = random_inputs((1, 1, 200, 16), seed=11)
    for size in (1e-30, 1e20):
        inputs = [Q, K, size * V]
        (mine, _), (usual, _) = errors(attention(*inputs, threads=1), inputs)
        assert mine <= 2 * max(usual, size * LEAST_ERROR)
