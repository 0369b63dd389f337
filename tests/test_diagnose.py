"""The diagnosis names each simulated bug, at several shapes, with the place and numbers of the first error."""

import time
import timeit
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch_kernels import Inputs, arrays, compare, expect, make_inputs, right, scores

from grader.core.arrays import np
from grader.core.results import CaseResult, Diagnosis
from grader.explain import diagnose
from grader.explain.comparison import Expected
from grader.explain.oracle import Oracle
from grader.report import student
from labs.attention.oracle import ORACLES

Shape = dict[str, int]
RAGGED = {"B": 2, "H": 3, "N": 97, "d": 40, "Br": 16, "Bc": 24, "threads": 4}
LARGE = {"B": 1, "H": 4, "N": 1024, "d": 32, "Br": 256, "Bc": 256, "threads": 8}
ODD = {"B": 1, "H": 2, "N": 61, "d": 20, "Br": 7, "Bc": 11, "threads": 2}


class Counts(Oracle):
    """An oracle whose expected values are whole numbers of ten digits."""

    def expected(self, inputs: object, shape: object) -> Expected:
        return Expected(np.full((2, 3), 5_093_630_001.0), 0.0)


def explain(
    x: Inputs, shape: Shape, actual: Tensor, again: Sequence[Tensor] = (), *, oracle: str = "attention"
) -> Diagnosis:
    """Return the diagnosis of the wrong output `actual`. `again` has outputs of repeated calls on the same inputs."""
    expected = expect(oracle, x, shape)
    comparison = compare(expected, actual)
    assert not comparison.ok
    others = [output.numpy() for output in again]
    return diagnose.diagnose(ORACLES[oracle], arrays(x), shape, expected, actual.numpy(), comparison, others)


def attend(x: Inputs, given: Tensor, keys: slice = slice(None)) -> Tensor:
    return torch.softmax(given[..., keys], 3) @ x["V"][:, :, keys]


def zeroed(output: Tensor, index: tuple[slice | int, ...]) -> Tensor:
    output = output.clone()
    output[index] = 0
    return output


def noise(x: Inputs) -> Tensor:
    return torch.randn(x["V"].shape, generator=torch.Generator().manual_seed(1))


def stale_exponentials(x: Inputs) -> Tensor:
    """Return attention without clearing QK_t: scores are added to the previous head's undivided weights."""
    out, left = torch.empty_like(x["V"]), torch.zeros(scores(x).shape[2:])
    for head in np.ndindex(*out.shape[:2]):
        left = (left + scores(x)[head]).exp()
        out[head] = left / left.sum(1, keepdim=True) @ x["V"][head]
    return out


def flash_with_maximum(x: Inputs, block: int) -> Tensor:
    """Return flash attention with a running maximum, but without rescaling the row sum when the maximum grows."""
    out, li = torch.zeros_like(x["V"]), torch.zeros(*x["V"].shape[:3], 1)
    most = torch.full_like(li, -torch.inf)
    for start in range(0, out.shape[2], block):
        some = scores(x)[..., start : start + block]
        now = torch.maximum(most, some.amax(3, True))
        weights, values = (some - now).exp(), x["V"][:, :, start : start + block]
        lnew = li + weights.sum(3, keepdim=True)
        out = (li * (most - now).exp() * out + weights @ values) / lnew
        li, most = lnew, now
    return out


def of_tiles(x: Inputs, tile: int, *, of: Callable[[Tensor], Tensor]) -> Tensor:
    """Call `of` with exp(score) of each tile of keys, (B, H, N, tile). Return the results joined along the keys."""
    return torch.cat([of(part) for part in scores(x).exp().split(tile, 3)], 3)


def stale_places(x: Inputs, tile: int) -> Tensor:
    """Return attention in padded tiles. The end of the last, incomplete tile still has values of the previous tile."""

    def padded(t: Tensor, axis: int) -> Tensor:
        size = t.shape[axis]
        again = torch.arange(-size % tile) + size - tile
        return torch.cat([t, t.index_select(axis, again)], axis) if size % tile and size > tile else t

    return padded(torch.softmax(padded(x["Q"], 3) @ padded(x["K"], 3).mT, 3), 3) @ padded(x["V"], 2)


def running_maximum(x: Inputs) -> Tensor:
    """Return attention by an online softmax that does not rescale the output when the maximum grows."""
    kept = (scores(x) - scores(x).cummax(3).values).exp()
    return kept @ x["V"] / (scores(x) - scores(x).amax(3, True)).exp().sum(3, True)


#: Diagnosis code and wrong output of each mistake, computed by torch. tests/wrong has mistakes in compiled kernels.
BUGS: dict[str, tuple[str, Callable[[Inputs], Tensor]]] = {
    "scaled by 1/sqrt(d)": ("scaled", lambda x: attend(x, scores(x) / x["Q"].shape[3] ** 0.5)),
    "no softmax": ("softmax_missing", lambda x: scores(x) @ x["V"]),
    "safe but not normalised": ("not_normalised", lambda x: (scores(x) - scores(x).amax(3, True)).exp() @ x["V"]),
    "softmax over columns": ("wrong_axis", lambda x: torch.softmax(scores(x), 2) @ x["V"]),
    "double softmax": ("double_softmax", lambda x: torch.softmax(torch.softmax(scores(x), 3), 3) @ x["V"]),
    "divided down the column": ("wrong_axis",
        lambda x: (scores(x).exp() / scores(x).exp().sum(3)[..., None, :]) @ x["V"]),
    "Q for K": ("wrong_operand", lambda x: torch.softmax(x["Q"] @ x["Q"].mT, 3) @ x["V"]),
    "weights transposed": ("scores_transposed", lambda x: torch.softmax(scores(x), 3).mT @ x["V"]),
    "negated scores": ("negated", lambda x: torch.softmax(-scores(x), 3) @ x["V"]),
    "best key": ("hard_maximum", lambda x: one_hot(scores(x).argmax(3), x["V"].shape[2]).float() @ x["V"]),
    "last key missing": ("key_missing", lambda x: attend(x, scores(x), slice(0, -1))),
    "QK_t holds exp()": ("stale_scores", stale_exponentials),
    "value goes on over channels": ("stale_value", lambda x: right(x).cumsum(3)),
    "tiles of 16 normalised": ("tile_normalised",
        lambda x: of_tiles(x, 16, of=lambda part: part / part.sum(3, True)) @ x["V"]),
    "score kept in tiles of 16": ("stale_scores",
        lambda x: attend(x, of_tiles(x, 16, of=lambda part: part.log().cumsum(3)))),
    "last of tiles of 16 left out": ("tile_end",
        lambda x: attend(x, of_tiles(x, 16, of=lambda part: zeroed(part, np.s_[..., -1])).log())),
    "product of the last key": ("block_overwritten",
        lambda x: torch.softmax(scores(x), 3)[..., -1:] @ x["V"][:, :, -1:]),
    "last key alone": ("last_block_only", lambda x: attend(x, scores(x), slice(-1, None))),
    "weight of the last key for the sum": ("last_block_sum",
        lambda x: scores(x).exp() @ x["V"] / scores(x)[..., -1:].exp()),
    "score of the last channel": ("score_overwritten",
        lambda x: attend(x, x["Q"][..., -1:] @ x["K"][..., -1:].mT)),
    "maximum forgotten in O": ("maximum_not_rescaled", running_maximum),
    "maximum of the keys so far": ("maximum_so_far",
        lambda x: attend(x, scores(x) - scores(x).cummax(3).values)),
    "maximum not in the sum": ("maximum_only_above",
        lambda x: right(x) * (-scores(x).amax(3, True)).exp()),
    "sum of whole numbers": ("whole_sum",
        lambda x: scores(x).exp() @ x["V"] / scores(x).exp().floor().sum(3, True)),
    "divided at each key": ("normalised_twice",
        lambda x: scores(x).exp().mul(
            scores(x).exp().sum(3, True) ** torch.arange(-scores(x).shape[3], 0.0)) @ x["V"]),
    "key 0 twice": ("key_twice",
        lambda x: right(x) + torch.softmax(scores(x), 3)[..., :1] * x["V"][:, :, :1]),
    "divided by the sum so far": ("divided_early",
        lambda x: scores(x).exp() / scores(x).exp().cumsum(3) @ x["V"]),
    "old values in tiles of 8": ("tile_not_cleared", lambda x: stale_places(x, 8)),
    "columns of the tile before": ("columns_copied",
        lambda x: right(x)[..., torch.arange(x["V"].shape[3]) - 16 * (torch.arange(x["V"].shape[3]) >= 16)]),
    "each second row": ("rows_copied", lambda x: right(x)[:, :, torch.arange(x["V"].shape[2]) // 2 * 2]),
    "doubled": ("constant_factor", lambda x: 2 * right(x)),
    "1e-3 too large": ("constant_factor", lambda x: 1.001 * right(x)),
    "rows shifted": ("shifted", lambda x: right(x).roll(1, 2)),
    "last row": ("row_range", lambda x: zeroed(right(x), np.s_[:, :, -1])),
    "odd rows": ("periodic_rows", lambda x: zeroed(right(x), np.s_[:, :, 1::2])),
    "all heads but 0": ("heads", lambda x: zeroed(right(x), np.s_[:, 1:])),
    # Rows with small errors do not pass for copies of themselves.
    "small noise in two rows": ("low_precision",
        lambda x: right(x) + 1e-5 * noise(x) * (torch.arange(x["V"].shape[2]) // 2 == 1)[:, None]),
    # For an error without a pattern, no cause is named.
    "noise": ("wrong_values", lambda x: right(x) + noise(x)),
}  # fmt: skip
AT_LARGE = ("scaled by 1/sqrt(d)", "QK_t holds exp()", "softmax over columns", "last key missing", "odd rows")
TRIED = [(bug, shape) for bug in BUGS for shape in (RAGGED, ODD)]
TRIED += [(bug, LARGE) for bug in (*AT_LARGE, "1e-3 too large")]


@pytest.mark.parametrize(("bug", "shape"), TRIED)
def test_each_simulated_bug_is_named(bug: str, shape: Shape) -> None:
    code, wrong_kernel = BUGS[bug]
    x = make_inputs("random", shape, 11)
    found = explain(x, shape, wrong_kernel(x))
    also = {"last row": "remainder_tile", "1e-3 too large": "low_precision"}
    assert found.code in (code, also.get(bug)), found.message
    assert found.first_index is not None
    assert found.wrong_count is not None and 0 < found.wrong_count <= right(x).numel()


REMAINDERS = [
    (part, tile, shape)
    for part in ("keys", "product", "sum", "scores", "channels")
    for tile in (4, 8, 16, 32)
    for shape in (RAGGED, ODD)
    if 0 < (size := shape["d" if part == "channels" else "N"]) % tile < size
]


@pytest.mark.parametrize(("part", "tile", "shape"), REMAINDERS)
def test_an_ignored_remainder_is_named(part: str, tile: int, shape: Shape) -> None:
    x = make_inputs("random", shape, 3)
    size = shape["d" if part == "channels" else "N"]
    cut = size // tile * tile
    kept, weights = slice(0, cut), scores(x).exp()
    actual = {
        "keys": lambda: attend(x, scores(x), kept),
        "product": lambda: torch.softmax(scores(x), 3)[..., kept] @ x["V"][:, :, kept],
        "sum": lambda: weights @ x["V"] / weights[..., kept].sum(3, keepdim=True),
        "scores": lambda: attend(x, scores(x) * (torch.arange(size) < cut)),
        "channels": lambda: attend(x, x["Q"][..., kept] @ x["K"][..., kept].mT),
    }[part]()
    found = explain(x, shape, actual)
    code = "remainder_channels" if part == "channels" else "remainder_keys"
    assert found.code in ({code, "key_missing"} if size - cut == 1 else {code}), found.message
    assert size - cut == 1 or str(cut) in found.message


def test_flash_mistakes_in_output_and_maximum_are_named() -> None:
    x = make_inputs("random", RAGGED, 5)
    o, li = torch.zeros_like(x["V"]), torch.zeros(*x["V"].shape[:3], 1)
    by_own_sum = o
    for start in range(0, RAGGED["N"], RAGGED["Bc"]):
        weights = scores(x)[..., start : start + RAGGED["Bc"]].exp()
        lij, values = weights.sum(3, True), x["V"][:, :, start : start + RAGGED["Bc"]]
        by_own_sum = li * by_own_sum / (li + lij) + weights @ values / lij
        o = o + (li * o + weights @ x["V"][:, :, start : start + RAGGED["Bc"]]) / (li + weights.sum(3, True))
        li = li + weights.sum(3, keepdim=True)
    assert explain(x, RAGGED, o).code == "flash_o_twice"
    assert "PV is divided by lij, the sum of its own block" in explain(x, RAGGED, by_own_sum).message
    found = explain(x, RAGGED, flash_with_maximum(x, RAGGED["Bc"]))
    assert found.code == "maximum_not_rescaled" and "the old row sum is not" in found.message


def test_a_range_of_rows_is_named_with_its_tile() -> None:
    for shape, start, end, codes, words in (
        (RAGGED, 96, 97, ("remainder_tile", "row_range"), ()),
        (ODD, 48, 61, ("remainder_tile",), ("16", "48")),
        # Row 40 would begin the last tile if tiles had 20 rows, but this shape has tiles of 7 and 11.
        (ODD, 40, 61, ("row_range",), ("only the rows from 40 to the end (60) are wrong",)),
        (LARGE, 256, 384, ("row_range",), ("one of 8 threads",)),
    ):
        x = make_inputs("random", shape, 1)
        found = explain(x, shape, zeroed(right(x), np.s_[:, :, start:end]))
        assert found.code in codes and all(word in found.message for word in words), shape
        assert (found.first_index, found.actual) == ((0, 0, start, 0), 0.0)


def test_a_diagnosis_names_cause_place_and_first_wrong_element_and_a_differing_2nd_call_is_a_race() -> None:
    x = make_inputs("random", RAGGED, 2)
    actual = right(x)
    actual[:, 1:] = BUGS["scaled by 1/sqrt(d)"][1](x)[:, 1:]
    found = explain(x, RAGGED, actual)
    assert found.code == "scaled" and "every head but head 0" in found.message
    actual = right(x)
    actual[1, 2, 30, 4] += 0.5
    found = explain(x, RAGGED, actual)
    assert (found.first_index, found.wrong_count, found.total_count) == ((1, 2, 30, 4), 1, actual.numel())
    assert found.expected is not None and found.actual == pytest.approx(found.expected + 0.5, abs=1e-4)
    assert "b=1, h=2, i=30, j=4" in found.message and explain(x, RAGGED, right(x) / 0).code == "not_finite"
    assert explain({**x, "Q": x["Q"] * 20}, RAGGED, torch.full_like(x["V"], torch.nan)).code == "overflow"
    first, second = right(x), right(x)
    first[0, 0, 5] += 1
    found = explain(x, RAGGED, first, [second])
    assert found.code == "race"
    assert found.message.endswith("`python gpt149.py race part3` names the variable and the line.")
    assert "gpt149.py race part3" in student.numberless(found.message)
    assert explain(x, RAGGED, first, [first.clone()] * 3).code != "race"
    # In a race, two calls may lose the same element and give equal outputs.
    assert explain(x, RAGGED, first, [first.clone(), second]).code == "race"


def test_the_most_frequent_cause_is_the_most_informative() -> None:
    found = (("heads", 10), ("scaled", 5), ("negated", 50))
    place, cause, rare = (Diagnosis(code, "", wrong_count=count) for code, count in found)
    assert diagnose.most_informative([place, rare, cause, cause], ORACLES["attention"].axes) is cause
    assert diagnose.most_informative([place]) is place
    # Wrong values on one input are not reported as close to the right ones if those on another input are far off.
    close = Diagnosis("low_precision", "The values are close.", None, 1.0, 1.01)
    for actual in (1.01, 9.0):
        other = Diagnosis("shifted", "Shifted.", None, 1.0, actual)
        assert diagnose.most_informative([close, other, close]) is (other if actual == 9 else close)
    # "not_written" is preferred only if its output has far more wrong elements than all other outputs.
    zeros = Diagnosis("not_written", "Zeros.", wrong_count=20_000)
    for count, chosen in ((14, zeros), (900, None)):
        other = Diagnosis("not_normalised", "Too large.", wrong_count=count)
        assert diagnose.most_informative([other, zeros, zeros]) is (chosen or other)


def of_last_head(x: Inputs, *, of_batch: bool) -> Tensor:
    """Return attention by the scores of one head: the last of its batch entry if `of_batch`, else the last of all."""
    last = scores(x)[:, -1:] if of_batch else scores(x)[-1:, -1:]
    return attend(x, last.expand_as(scores(x)))


@pytest.mark.parametrize("of_batch", [False, True])
def test_a_mistake_that_another_input_refutes_is_not_named(of_batch: bool) -> None:
    """The two mistakes of `of_last_head` have equal outputs if B = 1. A second input with B > 1 distinguishes them."""
    one, two = make_inputs("random", ODD, 3), make_inputs("random", RAGGED, 3)
    words = "last head of its batch" if of_batch else "last head of all"
    first = explain(one, ODD, of_last_head(one, of_batch=of_batch))
    (alone,) = diagnose.settled([first])
    assert "last head of all" in alone.message and "last head of its batch" in alone.message
    assert diagnose.SAME_OUTPUT in alone.message and diagnose.undecided([first])
    second = explain(two, RAGGED, of_last_head(two, of_batch=of_batch))
    for found in ([first, second], [second, first]):
        assert not diagnose.undecided(found)
        for diagnosis in diagnose.settled(found):
            assert words in diagnosis.message and diagnose.SAME_OUTPUT not in diagnosis.message
            assert type(diagnosis) is Diagnosis and diagnosis.code == "other_heads_weights"
    # The diagnosis of a public case does not depend on hidden cases.
    cases = [CaseResult("a", {}, False, 1.0, first), CaseResult("b", {}, False, 1.0, second, hidden=True)]
    messages = [case.diagnosis.message for case in diagnose.settled_together(cases)]
    assert [diagnose.SAME_OUTPUT in message for message in messages] == [True, False]


def test_padded_keys_are_named_with_and_without_a_full_block() -> None:
    for shape in (RAGGED, {**ODD, "Bc": 64}):
        x = make_inputs("random", shape, 3)
        weights, padding = scores(x).exp(), -shape["N"] % shape["Bc"]
        found = explain(x, shape, weights @ x["V"] / (weights.sum(3, keepdim=True) + padding))
        assert found.code == "padded_keys" and "exp(0) = 1" in found.message


@pytest.mark.full
def test_diagnosing_a_large_output_costs_little() -> None:
    """Even if no suspect fits and all are tried, a diagnosis takes less time than 60 evaluations of the oracle."""
    x = make_inputs("random", LARGE, 2)
    actual = BUGS["noise"][1](x)
    how = {"timer": time.process_time, "number": 1, "repeat": 3}
    oracle_s = timeit.repeat(lambda: expect("attention", x, LARGE), **how)
    assert min(timeit.repeat(lambda: explain(x, LARGE, actual), **how)) < 60 * max(oracle_s)


def test_an_integer_off_by_one_is_shown_in_full_and_not_as_rounding() -> None:
    oracle = Counts()
    expected = oracle.expected({}, {})
    actual = (expected.value - 1).astype(np.int64)
    found = diagnose.diagnose(oracle, {}, {}, expected, actual, compare(expected, torch.from_numpy(actual)))
    assert found.code == "wrong_values"
    assert "Expected 5093630001, got 5093630000 at" in found.message and "close" not in found.message


def test_a_wrong_type_is_reported_with_the_returned_type() -> None:
    wanted = ((1, 2, 3, 4), "BHNd")
    assert diagnose.wrong_type("a tensor", "float32", (2, 3), *wanted).code == "wrong_shape"
    assert diagnose.wrong_type("a tensor", "float64", (1, 2, 3, 4), *wanted).code == "wrong_dtype"
    assert diagnose.wrong_type("nothing", None, None, *wanted).code == "wrong_type"
    message = diagnose.inputs_overwritten(["Q", "K"], ["Q", "K", "V"], "O").message
    assert "its input Q, K." in message and "Write to O" in message and "needs Q, K and V." in message


SHAPE_4D = {"B": 2, "H": 3, "N": 4, "d": 5}
OFFSETS: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "reversed": ("wrong_strides", lambda x, y, z, b: ((b * 4 + z) * 3 + y) * 2 + x),
    "y and z swapped": ("swapped_indices", lambda x, y, z, b: ((x * 3 + z) * 4 + y) * 5 + b),
    "x without sizeX": ("missing_factor", lambda x, y, z, b: x * 20 + y * 20 + z * 5 + b),
    "z without sizeZ": ("missing_factor", lambda x, y, z, b: x * 60 + y * 20 + z + b),
    "x left out": ("missing_term", lambda x, y, z, b: y * 20 + z * 5 + b),
    "always 0": ("missing_term", lambda x, y, z, b: 0 * x),
    "b + 1": ("off_by_one", lambda x, y, z, b: ((x * 3 + y) * 4 + z) * 5 + b + 1),
    "sizeX for sizeY": ("wrong_strides", lambda x, y, z, b: ((x * 4 + y) * 3 + z) * 5 + b),
}  # fmt: skip


@pytest.mark.parametrize(("code", "offset"), OFFSETS.values(), ids=OFFSETS)
def test_wrong_offsets_of_reads_and_writes_are_named(code: str, offset: Callable[..., Tensor]) -> None:
    x = make_inputs("indices", SHAPE_4D, 4)
    padded = torch.cat([x["tensor"].flatten(), torch.zeros(200)])
    assert explain(x, SHAPE_4D, padded[offset(*x["index"].unbind(1))], oracle="read4d").code == code
    x = make_inputs("some_indices", SHAPE_4D, 4)
    after = torch.cat([x["tensor"].flatten(), torch.zeros(200)])
    for at, value in zip(offset(*x["index"].unbind(1)).tolist(), x["values"].tolist(), strict=True):
        after[at] = value
    assert explain(x, SHAPE_4D, after[:120].reshape(2, 3, 4, 5), oracle="write4d").code == code


def test_missing_extra_and_wrong_writes_are_named() -> None:
    x = make_inputs("some_indices", SHAPE_4D, 4)
    extra = torch.from_numpy(expect("write4d", x, SHAPE_4D).value).float()
    extra[tuple((extra == x["tensor"]).nonzero()[0])] = -1.0
    value, index = x["tensor"].flatten().clone(), x["index"]
    value[((index[:, 0] * 3 + index[:, 1]) * 4 + index[:, 2]) * 5 + index[:, 3]] = 7.5
    value = value.reshape(2, 3, 4, 5)
    outputs = {"not_written": x["tensor"].clone(), "extra_write": extra, "wrong_value": value}
    for code, output in outputs.items():
        assert explain(x, SHAPE_4D, output, oracle="write4d").code == code
    wanted = torch.from_numpy(expect("write4d", x, SHAPE_4D).value).float()
    changed = wanted != x["tensor"]
    skipped = wanted.where(changed.cumsum(3) != 1, x["tensor"])
    assert "old value, because it is never" in explain(x, SHAPE_4D, skipped, oracle="write4d").message
    added = wanted + x["tensor"] * changed
    assert "is added to the old value" in explain(x, SHAPE_4D, added, oracle="write4d").message
    assert explain(x, SHAPE_4D, torch.zeros(len(index)), oracle="read4d").code == "not_written"
