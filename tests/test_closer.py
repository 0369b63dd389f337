"""Explanations of a wrong part: facts that are true for every input, and lines of the source."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock, patch

import pytest
from building import cpu_growth
from conftest import ASSIGNMENT, ROOT, some, write

from grader.assignment import loading
from grader.assignment.inputs import CaseInputs
from grader.assignment.records import Case
from grader.backends.faults import Broken
from grader.backends.kinds import CPP, KERNELS
from grader.backends.native import crashes, sanitize
from grader.core.arrays import Array, np
from grader.core.errors import KitError
from grader.core.results import Diagnosis, Flag
from grader.explain import (
    clues,
    common_facts,
    diagnose,
    explanation_errors,
    hang_samples,
    repair,
    repair_inputs,
    size_probe,
)
from grader.explain.closer_look import Closer
from grader.explain.common_facts import Seen
from grader.explain.crash_explainer import CrashExplainer
from grader.explain.deviation import Deviation, usual_axes
from grader.explain.edited_calls import EditedCalls, OneThread
from grader.explain.explainer import COUNTED_EARLY, OUTSIDE, Findings
from grader.explain.further_calls import FurtherCalls
from grader.explain.judged_part import Checked
from grader.explain.race_explainer import OVERLAP, SAME_ELEMENT, WHOLE_LOOP, RaceExplainer
from grader.explain.sanitizer_sites import Site
from grader.explain.shown_lines import ShownLines
from grader.explain.suspect import PARTIAL, Suspect, matching_suspects
from grader.judge import explanation
from grader.judge.bench import Options, Watched
from grader.judge.part import PartJudge
from grader.runner.calls import Call
from grader.source import cpptext, dataflow, edited_source, edits, landmarks, scopes, word_edits
from labs.attention.dissect import dissect
from labs.attention.oracle import CLUES, ORACLES

AXES, TILES = ORACLES["attention"].axes, ORACLES["attention"].tiles
#: Shapes of three cases by name: a wrong case, a right case, and a case with the default sizes.
CHECKED_CASES: dict[str, dict[str, int]] = {"wrong": {"N": 5}, "right": {"N": 1}, "large": {}}
#: Function from an output's sizes to the index of its wrong elements.
Where = Callable[[Mapping[str, int]], tuple[slice | int, ...]]
OMP, RACED = "#pragma omp parallel for", Watched("width: two threads write it\n  Declare it")


def seen(wrong: Where, *, elsewhere: bool = False) -> list[Seen]:
    """Return outputs of several sizes that are wrong at the index `wrong(sizes)`, or at all others if `elsewhere`."""
    found = []
    for shape in ((2, 3, 21, 5), (1, 2, 33, 7), (2, 1, 10, 3)):
        sizes = {**dict(zip("BHNd", shape, strict=True)), "Br": 4, "Bc": 6}
        mask = np.full(shape, elsewhere)
        mask[wrong(sizes)] = not elsewhere
        found.append(Seen(sizes, mask))
    return found


def test_the_wrong_place_shared_by_all_inputs_is_named() -> None:
    for inputs, words in (
        (seen(lambda s: np.s_[:, :, -1]), "only the last row is wrong"),
        (seen(lambda s: np.s_[:, 1:]), "head 0 is right, and all other heads are wrong"),
        (seen(lambda s: np.s_[:, :, s["N"] // s["Br"] * s["Br"] :]), "only the rows beyond the last full tile of Br"),
        (seen(lambda s: np.s_[:, :, :: s["Br"]], elsewhere=True), "the first of each Br rows is right, and all others"),
        (seen(lambda s: np.s_[-1, -1], elsewhere=True), "only the last (b, h) is right"),
        (seen(lambda s: np.s_[:, :]), ""),
    ):  # fmt: skip
        found = common_facts.place(inputs, AXES, TILES)
        assert found.startswith(words) and bool(found) == bool(words)


def test_a_fact_that_one_input_refutes_is_not_named() -> None:
    inputs = seen(lambda s: np.s_[:, :, -1])
    assert common_facts.place(inputs, AXES, TILES)
    right = Seen({"B": 1, "H": 1, "N": 9, "d": 2, "Br": 4, "Bc": 6}, None)
    assert common_facts.place([*inputs, right], AXES, TILES) == ""
    assert common_facts.place([*inputs, Seen(right.sizes, None, weak=True)], AXES, TILES)
    # Indices of wrong elements are compared only within one output: those of O are not compared with those of L.
    of_o, of_l = np.zeros((1, 6, 4), bool), np.zeros((1, 6), bool)
    of_o[:, -1] = of_l[:, -1] = True
    alone = [Seen({"B": 1, "N": 6, "d": 4}, of_l, output="L")] * 2
    assert common_facts.place(alone, (), ()) != ""
    assert common_facts.place([Seen(alone[0].sizes, of_o, output="O"), *alone], (), ()) == ""


def test_the_sizes_that_are_right_are_named() -> None:
    tried = product((3, 8, 12, 16, 21, 24), (2, 3, 4, 5, 8), ((4, 8), (8, 3)))
    shapes = [{"N": n, "d": d, "Br": br, "Bc": bc} for n, d, (br, bc) in tried]
    for words, is_right in {
        "right where N is a multiple of Bc, wrong where it is not": lambda s: s["N"] % s["Bc"] == 0,
        "right where N is a multiple of 8, wrong where it is not": lambda s: s["N"] % 8 == 0,
        "right where Br >= N (one tile), wrong where Br < N": lambda s: s["Br"] >= s["N"],
        "right where N is not a multiple of Bc, wrong where it is": lambda s: s["N"] % s["Bc"] != 0,
        "right where N = d, wrong where they differ": lambda s: s["N"] == s["d"],
        "right where N <= 12, wrong where N >= 16": lambda s: s["N"] <= 12,
        "right where N <= 16 and d <= 4, wrong where one of them is larger": lambda s: s["N"] <= 16 and s["d"] < 5,
        "": lambda s: (s["N"] * 7 + s["d"] * 3 + s["Br"]) % 5 < 2,
    }.items():  # fmt: skip
        inputs = [Seen(s, None if is_right(s) else np.ones((1, 1, s["N"], s["d"]), bool)) for s in shapes]
        assert common_facts.condition(inputs, ["N", "d", "Br", "Bc"], TILES) == words


HEADS = np.array([0.0, 2.0]).reshape(1, 2, 1, 1)
#: Changes in a kernel's scores, weights or sums, and the expected message (None: no message).
WRONG_WEIGHTS: list[tuple[dict[str, Any], str | None]] = [
    ({"used": lambda keys: slice(0, keys // 2 * 2)}, "leaves out key 6 of 7"),
    ({"used": lambda keys: slice(2, None)}, "leaves out each of the keys 0 to 1 of 7"),
    ({"last": 0.0}, "key 6 of 7 has no weight (with N=7"),
    ({"last": 2.0}, "key 6 of 7 has too much weight (with N=7"),
    ({"earlier": 2.0}, "each earlier one has too much weight (with N=7 Br=3 Bc=2): look at the update of O"),
    ({"score": lambda s: np.stack([s[:, 0], s[:, 1] ** 2], 1)}, "Some heads (b, h) have the right weights"),
    ({"column": 5}, "columns of the output do not all take the same weights"),
    ({"divisor": lambda sums: sums[..., [0, 0, 2, 2, 4, 4, 6], :]}, " is the sum of row "),
    ({"start": 3.5}, "but they are divided by the sum of exp(score) plus 3.5"),
    ({"start": 1e-6}, "plus 1e-06"),
    ({"start": 1.0}, "plus 1, as if the sum began at 1 (or its logarithm"),
    ({"kept": lambda s, w: s + w.max(3, keepdims=True)}, "sum of exp(score - maximum) plus 1, as if"),
    ({"kept": lambda s, w: s.cumsum(1)}, "later heads plus the divisor of the same row in the head before"),
    ({"last": 8.0, "earlier": 8.0}, "all weights have the same wrong factor (the weights of a row add up to 8"),
    ({"last": HEADS[..., 0], "earlier": HEADS}, "All of head (b=0, h=0) of the output is 0, and other heads are"),
    ({"last": HEADS[..., 0] / 2, "earlier": HEADS / 2}, "of the output is 0, and the heads that are written are right"),
    ({"rest": 2}, "also contain the row before it, row 1 for example 0.1 times"),
    ({"unwritten": 5}, "Some rows of the output are all 0, and all others are right"),
    ({"rest": 1}, "also contain the same row of the head before, row 7"),
    ({"score": lambda s: s[..., :1] + 0 * s}, "All keys of a tile have the same weight"),
    ({"score": lambda s: np.maximum(s, -9)}, None),
    ({"score": lambda s: np.where(s < -0.5, -np.inf, s)}, "have no weight, and those from"),
    ({"score": lambda s: s + 1.5 * (np.arange(s.shape[-1]) < 4)}, "between blocks they are not"),
    ({"score": lambda s: np.where(np.arange(s.shape[-1]) % 3 < 2, s, -1e9)}, "last of each 3 is left out"),
    ({"blocks": 16, "begin": 0}, "once): does the loop over the channels of a tile"),
    ({"blocks": 16}, "exp() is applied before the sum over all d channels is complete"),
    # With a single key a wrong weight has no effect: the normalised weight is 1.
    ({"N": 1, "wrong_at": 1}, None),
    # If columns are never stored, the weights of keys cannot be computed from the output.
    *(({"stored": stored}, None) for stored in (slice(0, -2), slice(0, -3), slice(4, None))),
]  # fmt: skip


@pytest.mark.parametrize(("mistake", "words"), WRONG_WEIGHTS)
@np.errstate(all="ignore")
def test_keys_with_a_wrong_weight_are_named_by_index(mistake: dict[str, Any], words: str | None) -> None:
    stored = mistake.get("stored", slice(None))

    def ask(sizes: Mapping[str, int], inputs: Mapping[str, Array]) -> Array:
        used = mistake.get("used", lambda keys: slice(None))(sizes["N"])
        q, k, scores = inputs["Q"], inputs["K"], np.zeros((), np.float32)
        block = mistake.get("blocks", q.shape[3])
        for at in range(0, q.shape[3], block):
            some = slice(mistake.get("begin", at), at + block)
            scores = np.exp(scores) if at and some.start else scores
            scores = scores + q[..., some] @ k[..., some].mT
        scores = mistake.get("score", lambda scores: scores)(scores)
        weights = np.exp(scores)[..., used]
        sums = mistake.get("start", 0.0) + weights.sum(3, keepdims=True)
        sums = mistake.get("kept", lambda sums, weights: sums)(sums, weights)
        weights /= mistake.get("divisor", lambda sums: sums)(sums) if sizes["N"] == 7 else sums
        weights[..., -1] *= mistake.get("last", 1.0)
        weights[..., :-1] *= mistake.get("earlier", 1.0)
        made = weights @ inputs["V"][:, :, used]
        made[..., mistake.get("column", made.shape[3]) :] *= 2
        made += sizes["N"] == mistake.get("wrong_at")
        along = np.moveaxis(made, mistake.get("rest", 0), 0)
        for k in range(1, len(along)):
            along[k] += 0.1 * along[k - 1]
        made[..., mistake.get("unwritten", made.shape[2]) :, :] = 0
        output = np.zeros_like(made)
        output[..., stored] = made[..., stored]
        return output

    found = dissect(ask, {"B": 1, "H": 2, "N": mistake.get("N", 32), "d": 8, "Br": 3, "Bc": 2})
    assert (found is None) if words is None else (found is not None and words in found.words)


SOURCE = """\
#define TILE_SIZE 16
// void kernel(int a) { for (int i = 1; i < 2; i++) not this one; }
torch::Tensor kernel(torch::Tensor QTensor, std::vector<float> &K,
                     int N) {
    std::vector<float> Q = formatTensor(QTensor);
    std::vector<float> O(N);
    for (int i = 0; i < N; i++) {
        float sum = 0;  /* Q in
        two lines */
        for (int j = 1; j < N; j++) sum += Q[i] * K[j];
        for (int t = 0; t < N; t += TILE_SIZE) sum += std::exp(sum);
        O[i] = sum / N;
    }
    const char *text = "return K;";
    return fillTensor(OTensor, O);
}
float other(float K) { return K; }
"""


def bound(closer: Any, *methods: Callable[..., Any]) -> Any:
    for each in methods:
        setattr(closer, each.__name__, functools.partial(each, closer))
    return closer


def body(text: str) -> landmarks.Body:
    found = landmarks.function(text, "kernel")
    assert found is not None
    return found


def numbers(places: Iterable[landmarks.Place]) -> list[int]:
    return [place.line for place in places]


def shown(text: str, part: str, looked_for: Sequence[str]) -> list[tuple[int, str]]:
    found = clues.lines(body(text), ASSIGNMENT.part(part), looked_for)
    return [(each.place.line, each.words) for each in found]


SUMS = """\
torch::Tensor kernel(torch::Tensor OTensor, torch::Tensor LTensor, int N, int d) {
    std::vector<float> O = formatTensor(OTensor);
    std::vector<float> L = formatTensor(LTensor);
    for (int i = 0; i < N; i++) {
        float score = 0;
        for (int k = 0; k < d; k++) score += d;
        float total = 0;
        for (int k = 0; k < d; k++) total += std::exp(score) / N;
        float value = 0;
        for (int j = 0; j < N; j++) value += score / total;
        L[i] = total;
        twoDimWrite(O, i, 0, d, value);
    }
    return fillTensor(OTensor, O);
}
"""
WITHOUT_L = SUMS.replace("L[i] = total;", "")
STALE = """\
Tensor kernel(Tensor Q, Tensor K, Tensor V, Tensor S, int B, int H, int N, int d) {
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N; j++) {
            float score;
            for (int k = 0; k < d; k++) score += Q[i * d + k] * K[j * d + k];
            S[i * N + j] = score;
        }
        float value;
        for (int j = 0; j < N; j++) value += S[i * N + j] * V[j * d];
        O[i] = value;
    }
    return O;
}
"""
INDICES = """\
void kernel(float *temp, int N, int T) {
    for (int i0 = 0; i0 < N; i0 += T) {
        int end = i0 + T;
        float weight = 1;
        for (int i = i0; i < end; i++) {
            const int row = i;
            for (int j = 0; j <= N; j++)
                temp[row * N + j] = weight;
        }
    }
}
"""


def test_landmarks_find_loops_sums_and_stores() -> None:
    found = body(SOURCE)
    assert (found.first, found.opened, found.last, found.parameters) == (3, 4, 16, ("QTensor", "K", "N"))
    assert numbers(found.reads(["QTensor"])) == numbers(found.reads(["K"])) == numbers(found.loops()) == [10]
    assert numbers(found.steps()) == numbers(found.find(r"\bexp\s*\(")) == [11]
    assert numbers(found.stores(found.returned)) == [12] and landmarks.function(SOURCE, "missing") is None
    # A sum is a variable that is a divisor, or is stored in the output, or gets terms in a loop up to a size.
    found = body(SUMS)
    assert numbers(found.divisors()) == [7, 8] and numbers(found.stored(found.returned)) == [9, 10]
    assert numbers(found.summed_from(["d"])) == [5, 6]
    lines = [line for line, _ in shown(SUMS, "part4", CLUES["block_overwritten"])]
    assert lines == [9, 10, 12], "what is stored comes before the sums of other steps"
    copied = SUMS.replace("value += score / total", "value += score / L[i]")
    assert numbers(body(copied).divisors()) == [11], "a copy is no sum"
    assert shown(SUMS, "part4", ["fills"]) == [], "fillTensor sets nothing to zero"
    assert [line for line, _ in shown(SUMS, "part4", [r"text:\bL\b"])] == [11]
    assert shown(WITHOUT_L, "part4", [r"text:\bL\b"]) == [], "a copy of an argument that is not used"
    pointed = WITHOUT_L.replace("total += std", "sums[k] += std").replace(
        "std::vector<float> L = formatTensor(LTensor)", "float *sums = LTensor.data_ptr<float>()"
    )
    assert [line for line, _ in shown(pointed, "part4", [r"text:\bLTensor\b"])] == [8], "used by its pointer"
    for copied in ("float> L = formatTensor(LTensor)", "float> L(LTensor.data(), LTensor.data() + N)"):
        other = (
            SUMS.replace("float> L = formatTensor(LTensor)", copied)
            .replace("L[", "sums[")
            .replace("> L", "> sums")
        )
        assert [line for line, _ in shown(other, "part4", CLUES["flash_l_tile_row"])] == [11], "another name"
    first = [(4, "declared without a value"), (8, "declared without a value")]
    codes = [code for code in CLUES if code.startswith("stale_") and code != "stale_l"]
    assert codes and all(shown(STALE, "part1", CLUES[code])[:2] == first for code in codes)
    assert numbers(body(INDICES).indices(8)) == [7, 6]
    assert numbers(body(INDICES.replace("row * N", "i * N")).indices(8)) == [7, 3]
    summed = body("void kernel(int *y) {\nint at = 2;\nint sum = 0;\nsum += 7;\ny[at] = sum;\n}")
    assert numbers(summed.indices(5)) == [4, 3, 2] and numbers(summed.indices(5, stores=True)) == [2]


LEFT_OVER = """\
void kernel(float *Q, float *K, float *V, float *S, int Bc, int N, int d) {
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            float score = twoDimRead(S, i, j, N);
            for (int k = 0; k < d; k++) score += Q[i * d + k] * K[j * d + k];
            twoDimWrite(S, i, j, N, score);
        }
    for (int j0 = 0; j0 < N; j0 += Bc)
        for (int j = 0; j < std::min(Bc, N - j0); j++) V[j] = 0;
    for (int j = 0; j < Bc; j++) V[j] += S[j];
    for (int k = 0; k < d; k++) V[k] += S[k];
}
"""
MAXIMUM = """\
Tensor kernel(Tensor X, Tensor YTensor, int N) {
    std::vector<float> Y = formatTensor(YTensor);
    struct Row {
        float start;
    };
    float unset, set; float most = 0;
    set = 1;
    for (int i = 0; i < N; j++) {
        const float old = most;
        if (X[i] > most) most = X[i];
        Y[i] = std::exp(most - old) + unset;
    }
    for (int i = 0; i < N / 8; i++) Y[i] += set;
    return YTensor;
}
"""


def test_mistakes_visible_in_the_source_are_found() -> None:
    found, right = body(MAXIMUM), body(MAXIMUM.replace("j++", "i++").replace("most - old", "old - most"))
    assert numbers(found.bare()) == [6] and numbers(found.maxima_begun()) == [6]
    assert [(place.line, why) for place, why in found.stuck_loops()] == [(8, "it tests i, but changes j")]
    assert [(place.line, term) for place, term in found.grown_exponents()] == [(11, "exp(most - old)")]
    assert right.stuck_loops() == [] == right.grown_exponents()
    new = "larger = a > most ? a : most"
    larger = MAXIMUM.replace("most - old", "most - larger").replace("old = most", new)
    assert body(larger).grown_exponents() == []
    assert [(place.line, copy) for place, copy in found.lost_copies()] == [(14, "Y")]
    assert body(MAXIMUM.replace("return YTensor", "return fillTensor(YTensor, Y)")).lost_copies() == []
    assert numbers(found.cut("N")) == [13]
    assert numbers(body(MAXIMUM.replace("N / 8", "(N + 7) / 8")).cut("N")) == []


ENDS = """\
Tensor kernel(Tensor X, Tensor YTensor, int N) {
    std::vector<float> Y = formatTensor(YTensor);
    auto at = [&](int i) { return i * N; };
    float *y = YTensor.data_ptr<float>();
    int last = N - 1; long sum = 0;
    for (int i = 0; i <= last; i++) {
        int keys = i + 1;
        float *row = y + i * N;
        for (int j = 0; j < last; j++) sum += X[at(j)];
        for (int j = 0; j < keys; j++) row[j] = sum;
        for (int j = 0; j <= i; j++) row[j] += 1;
    }
    return fillTensor(YTensor, Y);
}
"""


def test_landmarks_find_loop_ends_offsets_and_integer_sums() -> None:
    found = body(ENDS)
    assert numbers(found.one_short()) == [9] and numbers(found.ends_of_row()) == [7, 11]
    assert numbers(found.whole_sums()) == [5, 9]
    assert numbers(found.indices(9))[:1] == [3] and 8 in numbers(found.indices(10))
    assert [(place.line, *names) for place, *names in found.overwritten()] == [(13, "YTensor", "Y")]
    text = "void kernel(int OH, int OW) {\nfor (int h = 0; h < OH; h++)\nfor (int w = 0; w < OH; w++)\nf(w);\n}\n"
    assert numbers(body(text).same_ends()) == [2, 3]
    assert not body(text.replace("w < OH", "w < OW")).same_ends()


UPDATES = """\
void kernel(float *S, float *O, int Bc, int N, int d) {
    constexpr int T = 8;
    for (int h = 0; h < N * d; h++) {
        const int head = h / (N * d);
        for (int i = 0; i < (N + T - 1) / T; i++) {
            float total = 0, most = -1, m = 0;
            for (int j = 0; j < Bc; j++) {
                most = std::max(most, S[j]);
                S[j] = S[j] - most;
                total += S[at(head * 2 + j)];
            }
            for (int j = 0; j < Bc; j++) m += O[j] * S[j];
            total = total * m + 1;
            for (int k = 0; k < d; k++) O[i * d + k] = (m * O[i * d + k] + S[k]) / total;
            memcpy(S, O, Bc * d);
            memcpy(S, O, Bc * sizeof(float));
        }
    }
}
"""


def test_lines_of_updates_row_sums_and_heads_are_found() -> None:
    for clue, line in {"updates": 14, "minus_maximum": 9, "quotients": 4, "bytes": 15, "loops": 5}.items():
        assert [place for place, _ in shown(UPDATES, "part4", [clue])] == [line], clue
    exp_too = UPDATES.replace("m += O[j]", "m += std::exp(O[j])")
    assert numbers(body(exp_too).around_weights("Bc")) == [7, 12]
    assert numbers(body(UPDATES).around_weights("Bc")) == numbers(body(UPDATES).summing()) == [7]
    assert not body(UPDATES).leaves()
    assert numbers(body(UPDATES.replace("memcpy(S, O, Bc * d);", "return;")).leaves()) == [15]
    sums = [place for place, _ in shown(UPDATES, "part4", ["sums"])]
    assert sums == [6, 10, 13], "the constant T is no sum"
    assert numbers(body(UPDATES).row_sums()) == [10] and not body(UPDATES).kept_divisors()
    above = UPDATES.replace("float total = 0, ", "").replace("    const int", "float total = 0; const int")
    assert [name for _, name in body(above).kept_divisors()] == ["total"], "set in a loop further out"


def test_a_thread_s_own_copy_of_the_output_is_found() -> None:
    pragma = "#pragma omp parallel for firstprivate(O, S)"
    loop = "for (int i = 0; i < N; i++) {\nS[i] = Q[i];\nO[i] = S[i];\n}\nreturn O;\n}"
    text = f"torch::Tensor kernel(torch::Tensor Q, int N) {{\n{pragma}\n{loop}"
    assert [line for line, _ in shown(text, "part1", ["own_copies"])] == [2]
    assert not shown(text.replace("(O, S)", "(S)"), "part1", ["own_copies"])


def test_index_arithmetic_is_not_taken_for_a_division_or_a_sum() -> None:
    rows = "int bh;\nconst int b = bh / N;\nstd::size_t a = at(bh / N, bh % N);\nint T = (N + Br - 1) / Br;"
    assert not body(f"void kernel(int N, int Br, int n) {{\n{rows}\nO[n / N];\n}}").divisions()
    rows = "auto p = e / sum;\nfloat inv = 1 / N;\nO[n] = o / N;\nint q = e / sum;\nO[n] /= sum;"
    assert numbers(body(f"void kernel(int N, int n) {{\n{rows}\n}}").divisions()) == [2, 3, 4, 5, 6]
    rows = "int i, n, sum;\nfor (i = 0; i < N; i += 16)\nsum += x[i];\nn += 1;"
    assert numbers(body(f"void kernel() {{\n{rows}\n}}").whole_sums()) == [2, 4]
    cut = body("void kernel(float *x) {\nint s = 0;\nfloat e = x[0];\ns += e;\n}").cut_sums()
    assert [(place.line, name, adding.line) for place, name, adding in cut] == [(2, "s", 4)]
    assert numbers(body("void kernel(int n) {\nint i, s;\ni += n;\ns = s + e[i];\n}").whole_sums()) == [2, 4]
    for begun, lines in (("0", [2, 3]), ("0.0f", []), ("0.f", [])):
        assert numbers(body(f"void kernel() {{\nauto o = {begun};\no += x;\n}}").whole_sums()) == lines
    rows = "x[0] = 2 / n;\nx[1] = 2.0f / n + 1 / r;\nx[2] = 1 / (int)r;"
    found = body(f"void kernel(float *x, int n, float r) {{\n{rows}\n}}\n").whole_divisions()
    assert [(place.line, division) for place, division in found] == [(2, "2 / n"), (4, "1 / (int)r")]


def test_the_line_where_a_sum_begins_is_found() -> None:
    zero = LEFT_OVER.replace("twoDimRead(S, i, j, N);", "0;")
    stored = LEFT_OVER.replace(", score", ", 1.0f").replace("score += Q", "S[i] = S[i] + Q")
    by_copy = LEFT_OVER.replace("k < d; k++) score", "k < d; k++) { float x = Q[k]; S[j] += x; }")
    to_element = zero.replace("twoDimWrite(S, i, j, N, score);", "S[i * N + j] += score;")
    to_read = zero.replace("N, score", "N, twoDimRead(S, i, j, N) + score")
    for line, texts in {4: (LEFT_OVER, zero), 5: (stored, by_copy), 6: (to_element, to_read)}.items():
        assert [numbers(body(text).begun(["Q"])) for text in texts] == [[line], [line]]


MIXED = """\
Tensor kernel(Tensor Q, Tensor K, Tensor V, Tensor S, int B, int H, int N, int d) {
    const int n = N, share = n / omp_get_num_threads();
    for (unsigned i = share; i >= 0; i--) {
#pragma omp for simd nowait reduction(max : s)
        for (int k = 0; k < d; k++) s += Q[k] * K[k];
        e[i] = poly(s), z += e[i];
        for (int k = 0; k < n % d; k++) O[k] += f(e, [](float Q) { g(Q); }) * K[k]; }
}
"""
HELPED = """\
static void clear(float *t, int n) { for (int i = 0; i < n; i++) t[i] = 0.0f; }
static float last(const float *x) { return std::exp(x[0]); }
static float outer(const float *x) { return last(x); }
void kernel(float *Q, float *K, float *V, float *S, int Bc, int N, int d) {
    memset(S, 0, N * N);
    float *lij = Lij.data_ptr<float>();
    for (int j = 0; j < N; j += 16)
        for (int k = 0; k < d; k += 16) {
            clear(S, 256), memset(S, 0, N);
            float acc = k == 0 ? 0.f : V[j];
            if (k == 0) acc = 0;
            lij[k] += outer(Q);
            sums[k] = 0;
            sums[k] += acc;
        }
}
"""


def test_the_work_of_helpers_counts_at_their_calls() -> None:
    found = body(HELPED)
    assert [line for line, _ in shown(HELPED, "part4", ["call:exp"])] == [12, 2], "through two functions"
    assert numbers(found.zeroed_in("d")) == [9, 13], "memset is outside of the loop"
    assert numbers(found.restarts("d")) == [10, 11] and not found.restarts("N")
    own = HELPED.replace("last(const float *x) { return std::exp(x[0])", "last(float x) { return 1 + x")
    assert [line for line, _ in shown(own, "part4", ["own_exp"])] == [2]
    assert not shown(HELPED, "part4", ["own_exp"])
    assert shown(HELPED, "part2", ["restarts:d"]) == [], "a sum of scores is not one of the output"
    assert [(place.line, name) for place, name in found.never_begun()] == [(12, "lij")]
    looked_for = ["nowait", "shares", "added", "rest:N,d", "instead:K,V", "input:Q"]
    where = [[line for line, _ in shown(MIXED, "part1", [clue])] for clue in looked_for]
    assert where == [[4], [2, 3], [6], [7], [7, 5], [5]]
    assert [why for _, why in body(MIXED).stuck_loops()] == ["i >= 0 is always true: i is unsigned"]
    assert [bool(body(MIXED.replace("max", by)).mixed_reductions()) for by in ("max", "*", "-")] == [1, 1, 0]
    for begun in ("clear(lij, 2);", "lij[k] = 0;", "std::fill(lij, lij + 2, 0.0f);"):
        assert not body(HELPED.replace("clear(S, 256), memset(S, 0, N);", begun)).never_begun(), begun


FLOWING = """\
#define FOR(i, n) for (int i = 0; i < (n); i++)
#define AT(p, i, j) (p)[(i) * N + (j)]
template <class T>
static void product(float *C, const float *A, int rows, T add) {
    FOR(i, rows)
        for (int j = 0; j < rows && i < 8; j++) C[i * rows + j] = add(A[i], j);
}
struct Half { float most = 0; void take(float x) { most = x > most ? x : most; } };
Tensor kernel(Tensor Q, Tensor K, Tensor V, Tensor S, int B, int H, int N, int d) {
    float *o = O.data_ptr<float>(), *q = Q.data_ptr<float>();
    Half half;
    FOR(i, N) half.take(AT(S, i, 0));
    auto add = [&](float x, int j) { return x + j; };
    product(&AT(o, 0, 0), q + 1, N, add);
    int at = d - 1;
    at -= N;
    const int step = at * d;
    if (at < 0) return O;
    AT(o, step, at) = 1;
    return O;
}
"""


def test_values_are_followed_into_called_functions() -> None:
    own, *called = dataflow.reached(body(FLOWING))
    calls = [(at.body.name, numbers(at.calls)) for at in called]
    assert calls == [("take", [12]), ("product", [14]), ("add", [6])]
    assert [called[1].own([name]) for name in "QON"] == [["A"], ["C"], ["rows"]]
    assert called[0].own(["S"]) == [], "an accessor"
    for use in ("Span rows(N)", "std::vector<Span> rows", "auto f = Span<int>"):
        made = body(f"struct Span {{\nSpan(int n) {{ f(n); }}\n}};\nvoid kernel(int N) {{\n{use};\n}}")
        assert [at.body.name for at in dataflow.reached(made)] == ["kernel", "Span"]
    assert numbers(own.body.until("N")) == [12], "by a macro"
    blocks = "int i;\nfor (; i + 8 <= N; i += 8) s[0][i] += i;\nfor (; i < N; i++) s[1][i] = 0;\n}"
    blocks = f"void kernel(int N) {{\n{blocks}"
    assert numbers(body(blocks).values(["s"])) == [3, 4] and not body(blocks).loops()
    assert numbers(body(blocks.replace("; i < N; i++", "; i < N - 1; i++")).loops()) == [3, 4]
    lines = clues.lines(body(FLOWING), ASSIGNMENT.part("part1"), ["store", "loops", "maximum"])
    within = {19: "", 6: "product, which line 14 calls", 8: "take, which line 12 calls"}
    assert [(each.place.line, each.within) for each in lines] == [*within.items()]
    said = clues.in_words(lines[1:], body(FLOWING), "f.cpp").split("\n")
    assert said[0] == "Lines to look at in product, which line 14 calls:" and said[2].startswith(" In take")


def test_an_index_leads_to_its_assignments_and_a_size_or_line_to_its_loops() -> None:
    assert numbers(dataflow.indices(body(FLOWING), 19)) == [18, 17, 16, 15]
    assert numbers(body(FLOWING.replace("q + 1", "*q * step")).times(["Q"])) == [13, 17]
    assert numbers(dataflow.indices(body(FLOWING), 6)) == [6] and dataflow.indices(body(FLOWING), 3) == []
    found = body(LEFT_OVER)
    assert numbers(found.until("Bc")) == [10], "an end limited by N is right"
    assert numbers(found.until("d")) == [5, 11] and not found.until("d", mixed=True)
    assert shown(LEFT_OVER, "part4", ["?until:d", "?steps"]) == [(n, "this loop runs to d") for n in (5, 11)]
    bounds = ShownLines.bounds(cast(Any, None), "right where N = d, wrong where they differ")
    assert shown(LEFT_OVER.replace("j < N", "j < d", 1), "part4", bounds) == [(3, "this loop runs to d")]
    assert [numbers(found.enclosing(line)) for line in (6, 5, 9)] == [[2, 3], [2, 3, 5], [8, 9]]
    # A size from which on a part is wrong: threads with a second turn, and a loop's first or second turn.
    text = (
        "const int T = 8;\nvoid kernel(int N) {\nfloat s = 0;\n#pragma omp parallel\n{\nRow a(N);\n#pragma omp for\n"
        "for (int i = 0; i < N; i += T) {\ns += x[i];\ny[i] = x[i] / s;\n}\n}\n}\n"
    )
    threaded: Any = SimpleNamespace(kernel=SimpleNamespace(shape={"threads": 8}))
    for number, lines in ((8, [8, 10]), (9, [6, 8, 10]), (10, [10])):
        bounds = ShownLines.bounds(threaded, f"right where N <= {number - 1}, wrong where N >= {number}")
        assert sorted(line for line, _ in shown(text, "part3", bounds)) == lines
    assert not body(text.replace("float s", "s").replace("s += x", "float s = 0;\ns += x")).grown_divisors()


def test_an_exception_without_a_message_is_reported_as_one_and_that_of_a_wrong_type_with_its_lines() -> None:
    part, unsaid = ASSIGNMENT.part("part1"), "one without a message"
    for said, words in (("", unsaid), (" \n", unsaid), ("N", "exception: N")):
        call = Call("exception", 0.1, message=said)
        assert crashes.call_fault(Broken(part, call, "random")).diagnosis.message.endswith(words)
    found = body("void kernel() {\nX.data_ptr<float>();\n}")
    closer = bound(SimpleNamespace(body=found, source=Path("mine.cpp")), Closer._row, Closer._with_lines)
    said = Diagnosis("exception", "threw a C++ exception: expected scalar type Float but found Int (N=3)")
    _, advice, line = CrashExplainer._placed(closer, said).message.split("\n")
    assert "data_ptr<int>() in place of data_ptr<float>()" in advice and line.startswith("  mine.cpp:2: ")


@pytest.mark.parametrize("text", some(["/*" * 25_000, "kernel(" * 12_500, "{" * 50_000, '"\\' * 25_000], 4))
def test_a_hostile_text_is_read_in_linear_time(text: str) -> None:
    def read(times: int) -> None:
        landmarks.function(f"{text * times}\nvoid kernel() {{ {text * times} ", "kernel")
        macros = "#define A(x) x x x x\n#define B(x) A(A(A(x)))\nfloat f(float x) { return f(x); }\n"
        dataflow.reached(body(f"{macros}void kernel() {{\n{'f(B(B(B(1))));' * times * 250}\n }}"))

    assert cpu_growth(read, 1, 8, repeat=3) < 32, "for 8 times the text, quadratic time would grow 64-fold"


@pytest.mark.parametrize("line", some(["float*b{0}=a+1;", "x/=b{0}; b{0}=1;", "o[b{0}]=f(b{0}", "return"], 4))
def test_a_function_of_many_declarations_is_read_in_linear_time(line: str) -> None:
    """The reader looks up each declared name once; it does not compare the name with every word of the text."""
    argument = "Kernel(torch::Tensor O, torch::Tensor a, torch::Tensor c)"

    def body_of(lines: int) -> landmarks.Body | None:
        text = "\n".join(line.format(k) for k in range(lines))
        return landmarks.function(f"torch::Tensor {argument} {{\n{text}\n}}", "Kernel")

    def read(lines: int) -> None:
        body = body_of(lines)
        assert body is not None and not body.by_statements().reads(["c"])
        clues.lines(body, ASSIGNMENT.part("part1"), [*clues.KNOWN, "input:Q", "store", "stored", "into:Q"])

    assert cpu_growth(read, 800, 3200, repeat=3) < 9, "4 times the lines: 16-fold if quadratic"
    assert body_of(20_000) is None, "too large to be followed"


def test_only_mistakes_that_fit_all_outputs_are_named() -> None:
    suspect = Suspect("key_missing", "Key 0 is missing.", lambda s: None, ("missing",))
    diagnosis = diagnose.Explained("key_missing", "Key 0 is missing. Expected 1.", suspects=(suspect,))
    # Outputs with fewer than 8 wrong elements and an unknown cause do not refute a mistake.
    few = [Diagnosis("wrong_values", "Expected 2.", wrong_count=count) for count in (1, 7)]
    (first, *_) = diagnose.settled([diagnosis, diagnosis, *few])
    assert first is not None and first.message.startswith("Key 0 is missing.")
    # A mistake that most outputs refute is not named.
    others = [Diagnosis("wrong_values", "Expected 2."), Diagnosis("heads", "Expected 3.")]
    assert diagnose.settled([diagnosis, *others])[0] == Diagnosis("wrong_values", "Expected 1.")
    # A single unexplained output may be a special case, so the mistake is still named.
    for more in (others[:1], [Diagnosis("not_finite", "NaN."), Diagnosis("not_written", "Zeros.")]):
        assert diagnose.settled([diagnosis, *more])[0].code == "key_missing"


def test_a_mistake_that_right_elements_refute_is_named_for_the_wrong_ones_only() -> None:
    suspect = Suspect("doubled", "Doubled.", lambda s: 2 * s.expected, ("doubled",))
    for first, words in ((0, "Doubled."), (8, f"{PARTIAL} Doubled.")):
        expected, wrong = np.arange(1.0, 33.0), np.arange(32) >= first
        seen = Deviation(expected, expected * (1 + wrong), expected * 1e-3, wrong, {}, {}, usual_axes(1), ())
        assert [each.words for each in matching_suspects([suspect], seen, frozenset())] == [words]


def test_a_mistake_without_its_name_in_the_source_is_not_named_beside_others() -> None:
    first = Suspect("l_not_carried", "L is not carried.", lambda s: None, ("l",), seen_in=r"\bL\b")
    second = Suspect("last_block_only", "Only the last block is used.", lambda s: None, ("last",))
    explained = diagnose.Explained("l_not_carried", "L is not carried. Expected 1.", suspects=(first, second))
    assert explained.fitting(lambda _: True) == explained
    other = explained.fitting(lambda pattern: pattern != r"\bL\b")
    assert (other.code, other.suspects) == ("last_block_only", (second,))
    assert other.message == "Only the last block is used. Expected 1." and body(SUMS).uses(r"\bL\b")


def test_a_result_of_low_precision_gets_no_advice_to_sanitize() -> None:
    advice = ["Next: python gpt149.py part1 --sanitize names accesses outside of an array."]
    cases = [("wrong_values", CPP, advice), ("low_precision", CPP, []), ("wrong_values", KERNELS, [])]
    for code, kind, words in cases:
        kernel = SimpleNamespace(backend=SimpleNamespace(kind=kind))
        named = SimpleNamespace(second=None, kernel=kernel, _named=lambda: "python gpt149.py part1")
        found = Findings(Diagnosis(code, "The values are close."), False, None, None, None, ())
        assert Closer._next(cast(Closer, named), found) == words


def test_accesses_are_checked_although_freed_memory_fits_a_mistake() -> None:
    """Freed memory can look like a known mistake: if some elements are right, accesses are checked in spite of it."""
    wrong, right, large = (SimpleNamespace(name=name, shape=shape) for name, shape in CHECKED_CASES.items())
    kernel = SimpleNamespace(wrong={"wrong": object(), "right": None, "large": None})

    def checked(known: bool, code: str, wrong_count: int, at: Any) -> tuple[bool, list[str]]:
        asked: list[str] = []

        def look(part: None, cases: Sequence[Any]) -> Any:
            asked.extend(case.name for case in cases)
            return SimpleNamespace(sites=SimpleNamespace(found=[at] if at in cases else []))

        judged: Any = SimpleNamespace(second=SimpleNamespace(look=look), kernel=kernel, part=None)
        judged._public, judged._wrong_cases = (lambda: [wrong, right, large]), (lambda: [wrong])
        diagnosis = Diagnosis(code, "Key 0 is left out.", wrong_count=wrong_count, total_count=8)
        found = Closer._checked(judged, diagnosis, known)
        return found is not None and bool(found.sites.found), asked

    assert checked(True, "last_block_only", 8, wrong) == (False, [])
    assert checked(True, "last_block_only", 3, wrong) == (True, ["wrong"])
    assert checked(True, "last_block_only", 3, None) == (False, ["wrong", "right"])
    assert checked(True, "unsteady", 8, wrong) == (True, ["wrong"])
    assert checked(False, "wrong_values", 8, right) == (True, ["wrong", "right"])


def test_a_busy_machine_does_not_shorten_the_search_for_sizes() -> None:
    """Each call uses up the search's time limit by its processor time, or by its elapsed time if that is less."""

    def calls_made(wall_s: float, cpu_s: float | None) -> int:
        run = SimpleNamespace(call=SimpleNamespace(wall_s=wall_s, cpu_s=cpu_s), outputs={})
        part = ASSIGNMENT.part("part1")
        about = {"oracle": ORACLES["attention"], "part": part, "shape": ASSIGNMENT.defaults}
        kernel = SimpleNamespace(**about, sizes=dict, call=lambda *_, **__: run)
        prober = size_probe.Prober(cast(Any, kernel), cast(Any, SimpleNamespace()), part.cases[0])
        with pytest.raises(size_probe.Ended):
            while True:
                prober.called(CaseInputs({"B": 1, "H": 1, "N": 2, "d": 2}, {}))
        return prober.calls

    assert calls_made(wall_s=1.0, cpu_s=0.001) > size_probe.MOST_CALLS
    assert calls_made(wall_s=0.1, cpu_s=0.2) == calls_made(wall_s=0.1, cpu_s=None) <= 8


def test_the_smallest_wrong_size_lies_between_two_of_the_table() -> None:
    kernel: Any = SimpleNamespace(assignment=SimpleNamespace(defaults={}), oracle=SimpleNamespace(tiles=()))
    prober: Any = SimpleNamespace(kernel=kernel, is_wrong=lambda sizes: sizes["N"] > 24)
    prober.between = functools.partial(size_probe.Prober.between, prober)
    assert size_probe.Prober.shrunk(prober, {"N": 103}, "N") == 25
    part = loading.load(ROOT / "labs/softmax/assignment.yaml").part("naive")
    large: Any = SimpleNamespace(
        part=part, sizes=dict, shape={"R": 1024, "C": 2048}, wrong={part.cases[0].name: ""}
    )
    large.oracle = SimpleNamespace(probes={"R": (), "C": ()})
    assert size_probe.anchors(large) == [{"R": 1024, "C": 16}, {"R": 16, "C": 2048}]


def test_each_place_of_sanitizers_is_read_once(tmp_path: Path) -> None:
    source = write(tmp_path, "one\ntwo\nthree\n")
    stack = "    #0 0x1 in twoDimRead(int) /x/module.cpp:{0}\n    #1 0x2 in kernel() /x/module.cpp:3\n\n"
    asan = "==1==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x1\nREAD of size 4\n"
    output = asan + stack.format(1)
    for subscript, line in ((12, 1), (-3, 2), (13, 1), ((1 << 32) - 103, 3)):
        output += f"gpt149: subscript {subscript} of a container of 10 elements\n{stack.format(line)}"
    first, second, wrapped = sanitize.reports(output, source)
    assert "but the last is 9 (this is -103 in an unsigned variable)." in wrapped.message
    assert "index 12, but the last is 9" in first.message and first.place == (1, 3)
    assert "index -3, below 0" in second.message and second.frames[-1].text == "three"
    # A write out of bounds changes a number. Another thread then reports an overflow of this number, in the middle of
    # the report about the write.
    late = "module.cpp:2:5: runtime error: signed integer overflow: 9 * 1065353216 cannot be represented\n"
    (only,) = sanitize.reports(asan.replace("READ", "WRITE") + late + stack.format(1), source)
    assert only.kind == "heap-buffer-overflow write" and only.place == (1, 3) and not only.of_value
    # Other threads report local arrays in the middle of it, and one thread reports no index before another does.
    space = "module.cpp:{}:5: runtime error: insufficient space\n"
    index = "module.cpp:{}:5: runtime error: index 8 out of bounds\n"
    among = space.format(2) + asan + index.format(3) + space.format(1) + index.format(1) + stack.format(1)
    found = [(each.has_index, each.place) for each in sanitize.reports(among, source)]
    assert found == [(False, (1, 3)), (True, (3,)), (True, (1,)), (False, (2,))]


def test_a_fault_of_a_value_is_no_access_and_keeps_the_known_cause(tmp_path: Path) -> None:
    source = write(tmp_path, "void kernel(int *y, int n) {\nuint16_t sum = n;\ny[0] = sum * 9;\n}")
    part = SimpleNamespace(table="")
    closer = SimpleNamespace(
        body=body(source.read_text()), source=source, part=part, _repairs=lambda near: ""
    )
    bound(closer, Closer._with_indices, Closer._row, Closer._returned)
    known = Diagnosis("narrow", "The sum is kept in 32 bits. Expected 3, got 4")
    for said, headline in (
        ("signed integer overflow: 9 * 9 cannot be represented in type 'int'", "such as int64_t"),
        ("shift exponent 40 is too large for 32-bit type 'int'", "A shift"),
        ("division by zero", "divided by zero"),
        ("3e+10 is outside the range of representable values of type 'int'", "is converted"),
        ("pointer index expression with base 0x1 overflowed to 0x0", ""),
    ):
        found = sanitize.reports(f"module.cpp:3:1: runtime error: {said}", source)
        checked: Any = SimpleNamespace(sites=SimpleNamespace(found=[Site(found[0], "'random'")]))
        lead, *rest = Closer._outside(closer, known, checked, True).message.split("\n")
        assert (headline or "outside of an array") in lead
        assert f"The {'value' if headline else 'index'} depends on these lines:" in rest
        sized = "uint16_t sum = n;   (a type of small whole numbers: larger ones wrap round)"
        assert any(row.endswith(sized) for row in rest)
        assert rest[-1] == (known.message if headline else "Expected 3, got 4")


def test_a_race_is_looked_for_in_threads_that_are_wrong_only_in_timed_calls() -> None:
    for text, wrong, found in ((OMP, [], "races"), ("", [], None), (OMP, [1], None)):
        closer: Any = SimpleNamespace(body=body(f"void kernel() {{\n{text}\n}}"), _shared_out=list)
        closer._wrong_cases, closer._races = (lambda w=wrong: w), (lambda: "races")
        closer._raced = lambda *of: of[1]
        assert RaceExplainer.explained(closer, Diagnosis("not_finite", "NaN.")) == found


def test_a_private_vector_is_named() -> None:
    for use in ("a[n] = 0;", "put(a, n, 0);"):
        text = f"void kernel(std::vector<float> a, int n) {{\n#pragma omp parallel for private(a)\nfor (;;) {use}\n}}"
        closer: Any = SimpleNamespace(
            body=body(text), source=Path("m.cpp"), _counted=str, _row=lambda *of: of[1]
        )
        assert "firstprivate(a)?" in Closer._with_indices(closer, f"m.cpp:3: {use}")[0]


@pytest.mark.parametrize("clause, note", [("", WHOLE_LOOP), (" for", "the parallel region")])
def test_a_parallel_region_without_for_is_named(clause: str, note: str) -> None:
    text = f"void kernel(float *y, int n) {{\n#pragma omp parallel{clause}\nfor (int i = 0; i < n; i++) y[i] = 0;\n}}"
    closer = bound(SimpleNamespace(body=body(text), source=Path("mine.cpp")), Closer._row)
    assert RaceExplainer._shared_out(closer)[-1].endswith(f"({note})")
    # Of two regions, only the one around the race is named.
    closer.body = body(text.replace("}", text.partition("{\n")[2]).replace(" y[i]", "\ny[i]"))
    rows = RaceExplainer._shared_out(closer, "both in mine.cpp:7: y[i] = 0;")
    assert [row.partition(": ")[0][-1] for row in rows] == ["5", "6"][: 2 if clause else 1]
    closer.body = body("void kernel(float *y) {\n#pragma omp critical\ny[0] += 1;\ny[1] += 1;\n}")
    found = [RaceExplainer._unprotected(closer, f"both in mine.cpp:{line}: y") for line in (3, 4)]
    assert not found[0] and found[1][0].startswith("  mine.cpp:2: #pragma omp critical   (this protects only")


def test_threads_that_are_counted_outside_of_a_parallel_region_are_named() -> None:
    closer: Any = SimpleNamespace(body=body(MIXED))
    assert Closer._counted(closer, 2) == COUNTED_EARLY and Closer._counted(closer, 3) == ""
    for before in ("auto share = [&](int n) {", "#pragma omp parallel\n{"):
        closer.body = body(MIXED.replace("{", f"{{\n{before}", 1) + "}")
        assert {Closer._counted(closer, line) for line in range(9)} == {""}


@pytest.mark.parametrize("races, advice", [
    ("O: ", SAME_ELEMENT), ("S: s[j] = 1;", OVERLAP), ("S: s[j] = 1;", "one element apart"), ("S: x[j]", ""),
])  # fmt: skip
def test_advice_on_a_race_fits_the_file(races: str, advice: str) -> None:
    kernel = SimpleNamespace(body=body("void kernel() {\nreturn O;\n}"))
    closer: Any = SimpleNamespace(kernel=kernel, _named=str, _shared_out=list, _strides=list)
    closer._unprotected = lambda races: []
    part = f"{races}\n  Give each thread its own: declare it, or index it by omp_get_thread_num()."
    step = ";" if "apart" in advice else " * d;"
    closer._with_indices = lambda races: [part, f"float *s = T + omp_get_thread_num(){step}"]
    message = RaceExplainer._raced(closer, Diagnosis("race", ""), races).message
    assert advice in message and "Give each" not in message and (OVERLAP in message) == (advice == OVERLAP)


@pytest.mark.parametrize("begin, used", [
    ("float *s = T + U * d;", "s[j] = 0"), ("n = U;", "T[n * d + j] = 0"), ("", "Write(T, U, j, d, 0)"),
    ("Row s{T.data() + U * d, N};", "s[j] = 0"),
])  # fmt: skip
def test_a_step_between_the_parts_of_threads_is_compared_with_their_length(begin: str, used: str) -> None:
    text = f"void kernel() {{\n{begin}\nfor (int j = 0; j < N; j++) {used} = 0;\n}}"
    text = text.replace("U", "omp_get_thread_num()")
    for size, count in (("N", 1), ("d", 0), ("M", 0)):
        sized = text.replace("j < N", f"j < {size}").replace("d, N}", f"d, {size}}}")
        own: Any = SimpleNamespace(body=body(sized), source=Path("mine.cpp"))
        own.kernel, own._row = SimpleNamespace(shape={"N": 9, "d": 4}), functools.partial(Closer._row, own)
        found = RaceExplainer._strides(own)
        assert len(found) == count and all("(N in place of d? Thread t begins at" in row for row in found)


@pytest.mark.parametrize("text, right", [("f();", True), ("f();", False), ("omp_set_num_threads(4);", False)])
def test_a_part_that_is_wrong_with_one_thread_is_said_to_be(text: str, right: bool) -> None:
    call = Mock(return_value=SimpleNamespace(is_right=right))
    calls = SimpleNamespace(body=body(f"void kernel() {{{text}}}"), kernel=SimpleNamespace(call_case=call))
    calls.judged = SimpleNamespace(fresh=lambda threads: nullcontext(threads))
    case = Case("random", "random", 1, {"N": 3})
    calls._wrong_cases = lambda: [case]
    called = text == "f();"
    assert ("With one thread" in FurtherCalls.wrong_alone(calls)) == (called and not right)
    assert [(args[0], args[1].shape["threads"]) for args, _ in call.call_args_list] == [(1, 1)] * called


def test_a_crash_that_sanitizers_do_not_see_gets_no_advice_to_use_them() -> None:
    text = "__m256i mask(int n);\nvoid kernel(float *y, int n) {\n_mm256_maskstore_ps(y, mask(n), r);\n}"
    closer = bound(SimpleNamespace(body=body(text), source=Path("mine.cpp")), Closer._row, Closer._with_lines)
    message = CrashExplainer._unseen(
        closer, Diagnosis("sigabrt", f"The heap is damaged. {crashes.ADVICE}")
    ).message
    assert crashes.ADVICE not in message and "finds no such access" in message
    assert message.endswith("\n  mine.cpp:3: _mm256_maskstore_ps(y, mask(n), r);")
    text = "void kernel() {\nif constexpr (A)\ny = std::exp(x);\n}"
    assert [line for line, _ in shown(text, "part1", ["call:exp"])] == [3]


def test_a_loop_that_cannot_end_explains_a_crash(tmp_path: Path) -> None:
    text = "void kernel(float *y, int n) {\nfor (int i = 0, j = 0; i < n; j++) y[j] = 0;\n}"
    judged = SimpleNamespace(broken=(None, SimpleNamespace(status="crash", signal_name="SIGSEGV")))
    closer = SimpleNamespace(body=body(text), source=Path("mine.cpp"), judged=judged)
    bound(closer, Closer._row, CrashExplainer._stuck)
    crash = Diagnosis("crash", "It crashed with SIGSEGV: is an index wrong?")
    message = CrashExplainer._placed(closer, crash).message
    assert message.startswith("It crashed with SIGSEGV: This loop cannot end:\n  mine.cpp:2: ")
    assert message.endswith("(it tests i, but changes j)")
    # A malformed reply may be the effect of a write outside of an array, too: the checked build names its line.
    judged.broken, said = (None, Call("protocol")), "module.cpp:2:5: runtime error: division by zero"
    sites: Any = SimpleNamespace(found=[Site(sanitize.reports(said, write(tmp_path, text))[0], "'random'")])
    closer.part, closer.second = None, SimpleNamespace(look=lambda *_: SimpleNamespace(sites=sites))
    closer._with_indices = lambda places, _: [places]
    placed = CrashExplainer._placed(closer, Diagnosis("protocol", "No result."))
    assert "\n  mine.cpp:2: for" in placed.message
    # A proven access outside of an array comes before a time-out, which it may have caused.
    judged.broken = (None, Call("timeout"))
    said = said.replace("division by zero", "index 9 out of bounds for type 'int [8]'")
    sites.found = [Site(sanitize.reports(said, tmp_path / "module.cpp")[0], "'random'")]
    hung = Diagnosis("timeout", "It did not end. Look for a loop.")
    lines = CrashExplainer._placed(closer, hung).message.splitlines()
    assert lines[0] == OUTSIDE and lines[2].startswith("  mine.cpp:2: for") and lines[-1] == "It did not end."


def test_the_second_build_runs_in_the_sandbox_of_the_judged_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explanation, "of_file", lambda source: SimpleNamespace(locks=True))
    used: list[object] = []
    made = SimpleNamespace(native=True, judged=SimpleNamespace(ok=True))
    monkeypatch.setattr(explanation, "make", lambda *_, sandbox: used.append(sandbox) or made)
    monkeypatch.setattr(explanation, "NativeHost", lambda sandbox, checks: nullcontext(used.append(sandbox)))
    monkeypatch.setattr(explanation, "replace", lambda kept, **_: kept)
    options, backend = SimpleNamespace(sanitize=False), SimpleNamespace(kind=CPP)
    bench: Any = SimpleNamespace(of_file=lambda: backend, options=options, source=Path("x"), assignment=None)
    bench.host = SimpleNamespace(sandbox="of the judged build")
    second = explanation.SecondBuild(bench, ExitStack())
    assert second.checked is not None and used == ["of the judged build"] * 2
    assert not second.is_allowed


def test_an_index_that_no_thread_reported_is_found_with_one_thread(tmp_path: Path) -> None:
    """With several threads, the process may end before the report with the index is printed."""
    source = write(tmp_path, "void kernel(float *x, int i) {\nx[i] = 0;\n}\n")
    small = "store to address 0x7f with insufficient space"
    index = "index 9 out of bounds for type 'float [8]'"
    second = explanation.SecondBuild(cast(Any, None), ExitStack())
    second.checked = cast(Any, SimpleNamespace(source=source, build=SimpleNamespace(program=None)))
    for text, threads in ((small, [4, 1]), (index, [4])):
        called = list[int]()

        def call(
            marker: object, case: Case, found: Checked, called: list[int] = called, text: str = text
        ) -> float:
            called.append(case.shape["threads"])
            said = index if called[1:] else text
            found.sites.found = [
                Site(each, case.name)
                for each in sanitize.reports(f"module.cpp:2:5: runtime error: {said}", source)
            ]
            return 0.0

        with patch.object(second, "_call", call), patch.object(explanation, "Marker"):
            found = second.look(cast(Any, None), [Case("random", "random", 1, {"threads": 4})])
        assert found is not None and called == threads
        assert [site.report.has_index for site in found.sites.found] == [True]


def test_a_suspect_that_raises_becomes_a_flag_and_names_nothing(failed_explanations: list[Flag]) -> None:
    def broken(scene: object) -> None:
        raise ZeroDivisionError("of the lab's own")

    explanation_errors.flags()
    assert Suspect("scaled", "It is scaled.", broken, ("scaled",)).predicted(None) is None
    assert explanation_errors.attempt(lambda: 1, 2) == 1
    assert explanation_errors.attempt(lambda: broken(None), "", expected=(ArithmeticError,)) == ""
    (flag,) = explanation_errors.flags()
    place = f"tests/test_closer.py:{broken.__code__.co_firstlineno + 1}"
    assert flag.code == "explanation_failed" and f"{place}: ZeroDivision" in flag.message
    assert not explanation_errors.flags(), "noted once"
    failed_explanations.clear()


def test_a_hanging_call_is_placed_at_its_functions_innermost_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = hang_samples.Samples(Path("program"))
    stopped.addresses = [[1, 2, 3], [3, 2], [1]]
    # Source lines of each sampled address: 1 is in a library, 2 in an accessor above the function, 3 in the function.
    lines = {1: [], 2: [1], 3: [6, 5]}
    monkeypatch.setattr(stopped, "_named", lambda addresses: [lines[each] for each in addresses])
    assert stopped.lines(body(LEFT_OVER)) == {6: 2}
    waits = body("void kernel(int i, int n) {\nwhile (i < n) {\nint k = n;\ni += 0;\n}\ni = n = 2;\n}\n")
    assert numbers(waits.changes(waits.find("while"))) == [4]


def test_an_accessor_that_fails_its_test_is_named_by_the_parts_that_call_it() -> None:
    caller = landmarks.function("void kernel(float *Q) {\n  fourDimRead(Q, 1);\n}\n", "kernel")
    helpers = {"4Dread": True, "4Dwrite": True}
    bench = SimpleNamespace(helpers=helpers, assignment=ASSIGNMENT)
    results: Any = SimpleNamespace(bench=bench, marker=SimpleNamespace(body=caller))
    found = explanation.failing_helper(results)
    assert found is not None and found.function == "fourDimRead"
    helpers["4Dread"] = False
    assert explanation.failing_helper(results) is None, "it does not call fourDimWrite"


def test_files_that_could_not_be_opened_are_read_from_the_output() -> None:
    said = 'one\ngpt149: fopen "/proc/cpuinfo" failed\ntwo\n' + 'gpt149: open "x" failed\n' * 2
    assert crashes.refused_files(said) == (("fopen", "/proc/cpuinfo"), ("open", "x"))
    assert crashes.own_output(said) == "one\ntwo"


@pytest.mark.parametrize(("pragma", "found", "how", "codes"), [
    (OMP, RACED, {}, ["data_race"]), (OMP, RACED, {"timing": False}, ["data_race"]),
    (OMP, RACED, {"timing": False, "second_look": True}, ["races_unseen"]),
    (OMP, RACED, {"races": "free"}, []), (OMP, RACED, {"races": "wrong"}, ["data_race", "race"]),
    (OMP, Watched(), {}, ["no_data_race"]), (OMP, Watched(unseen="it has ordered"), {}, ["races_unseen"]),
    (OMP, None, {}, []), ("#pragma omp simd", RACED, {}, []),
    ("", RACED, {"shares_work": True}, ["data_race"]),
])  # fmt: skip
def test_right_kernels_with_threads_are_watched(pragma: str, found: Any, how: Any, codes: list[str]) -> None:
    options = Options(timing=how.get("timing", True), second_look=how.get("second_look", False))
    kernel = landmarks.function(f"void kernel(int N) {{\n{pragma}\nf(N);\n}}\n", "kernel")
    judge: Any = SimpleNamespace(verdict="pass", diagnosis=None, is_trusted=lambda: False, flags=[])
    judge.bench = SimpleNamespace(options=options, watched=lambda part: found, command="gpt149", noted=set())
    judge.marker, judge.backend = SimpleNamespace(body=kernel), SimpleNamespace(kind=CPP)
    judge.part = SimpleNamespace(id="p", time=SimpleNamespace(races=how.get("races", "review")))
    judge.results = SimpleNamespace(shares_work=how.get("shares_work", False))
    judge.conclude = functools.partial(PartJudge.conclude, judge)
    PartJudge.look_for_races(judge)
    named = [judge.diagnosis.code] if judge.verdict == "wrong" else []
    assert [flag.code for flag in judge.flags] + named == codes


@pytest.mark.parametrize(("wrong", "right"), [(set(), ""), ({"m"}, "Right on all inputs: o; look at m.")])
def test_findings_are_sentences_before_the_message(wrong: set[str], right: str) -> None:
    outputs = {"seen_outputs": {"m", "o"}, "wrong_outputs": wrong}
    closer: Any = SimpleNamespace(kernel=SimpleNamespace(**outputs), source=Path("m.cpp"))
    closer._right_outputs, closer._zeros = (lambda: Closer._right_outputs(closer)), (lambda checked: "")
    found = Findings(Diagnosis("wrong_values", "Expected 1, got 2."), False, None, None, None, [], "x")
    question = (
        "On 'x' no input changes the output: at these sizes, is the computation skipped, or multiplied by 0?"
    )
    words = filter(None, (question, right, "Expected 1, got 2."))
    assert Closer._lead(closer, found, "", None) == " ".join(words)


def test_lines_that_store_into_right_outputs_are_left_out() -> None:
    part = loading.load(ROOT / "labs/operators/assignment.yaml").part("linear_backward")
    text = "void kernel(T dY, T X, T W, T dX, T dW, T db, int N, int I, int O) {\n"
    text += "\n".join(f"{name}[0] = 1;" for name in ("dX", "dW", "db")) + "\n}\n"
    assert len(clues.lines(body(text), part, ["store"])) == 3
    assert [each.place.line for each in clues.lines(body(text), part, ["store"], ["dX", "dW"])] == [4]
    text = text.replace("dX[0] =", "dX[0] +=").replace("db[0] = 1", "std::copy(a, a + 2, db)")
    assert [each.place.line for each in clues.lines(body(text), part, ["overwritten"])] == [3, 4]


EDITED = """#include <vector>
#define TILE 8
#define AT(i, j) ((i) * N + (j))
#define EACH(i, n) for (int i = 0; i < (n); i++)
static void rows(const float *from, float *to, int m, int n) {
    if (m < 2) return;
    for (int r = 0; r < m; r++) to[r] = from[r * n];
}
torch::Tensor kernel(torch::Tensor QTensor, int N, int d) {
    std::vector<float> Q = formatTensor(QTensor), K = formatTensor(QTensor);
    int tiles = N / TILE, at = N * d;
    EACH(i, tiles) {
        rows(&Q[AT(i, d)], K.data(), N, d);
    }
    State even, odd;
    for (int D = 0; D < N; D++) {
        if (at > 2) return;
        tile[D][at] = even.m * d;
    }
    return QTensor;
}
"""


@pytest.mark.parametrize("line, old, new", [
    (3, "N", "d"), (6, "if (m < 2) return;", ""), (7, "m", "m - 1"),
    (11, "N / TILE", "(N + TILE - 1) / TILE"), (11, "N * d", "N * d - tiles"), (13, "Q", "K"),
    (13, "N, d", "d, N"), (17, "return;", "continue;"), (18, "[D][at]", "[at][D]"), (18, "even", "odd"),
    (18, "d", "D"),
])  # fmt: skip
def test_a_mistake_is_among_the_edits_that_are_tried(line: int, old: str, new: str) -> None:
    found = edits.candidates(EDITED, ["kernel", "rows"])
    assert (line, old, new) in [(each.line, each.old, each.new) for each in found]


CARRIED = """torch::Tensor kernel(torch::Tensor Q, int N, int T) {
    float total = 0.0f, least = FLT_MIN;
    std::vector<float> L(N);
    for (int i0 = 0; i0 < N; i0 += T) {
        int end = i0 + T;
        float old = 1.0f, sum;
        for (int i = i0; i < end; i++) {
            float old = L[i];
            if (old > least) least = old;
            total = exp(L[i]);
            L[i] /= total * old;
        }
        for (int i = 0; i < T; i++) L[b * N + i * T + i] += 1 - old;
        m = sum;
        sum += m;
    }
}
"""

LOOPED = """#define FOR(i, n) for (int i = 0; i < (n); i++)
torch::Tensor kernel(torch::Tensor Q, std::vector<float> T, std::vector<Row> rows, int N, int d) {
    int last = N - d, me = omp_get_num_threads() - 1;
    for (int h = 0; h < N; h++) {
        for (int k = 0; k < d; k++)
            for (int j = 0; j < last; j++) T[h * N + j] += exp(at(Q, j));
        for (Row r : rows) r.end(T[h] / twoDimRead(Q, h));
        FOR(k, d) {
            FOR(j, N) T[h * N + j] /= at(Q, j);
            tile<float>(h, k, N, d);
        }
        if (h < N) h++;
        for (int k = 0; k < d; k++);
        float m = 0, s = at(Q, (h - d) * N);
        if (T[h] > m) m = T[h];
        s = at(Q, h);
        float own = max(m, s), top = max(own, m), u = s * exp(m - top) + T[0], v = reduce(q, t, 0) + reduce(q, T[h]);
        for (int k = 0; k < min(h + d, N); k++) twoDimWrite(T, h, d, N, twoDimRead(T, h, d, N) + memcpy(t, q, d));
    }
}
"""

SKIPPED = """torch::Tensor kernel(torch::Tensor Q, float *x, int N, int d, int pad, int stride) {
    const float &top = x[N - 1];
    int c = 0, wide = N + 2 * pad, high = d + pad;
    for (int r = 0; r < N; r++) {
        while (c < d) {
            int at = (c + pad) / stride, row = at % N;
            if (at < 0) continue;
            int to = (c + pad) / stride;
            s.l = s.l * exp(s.m - top);
            c++;
        }
        for (int k = 0; k < N; k += 8) _mm256_storeu_ps(x + k, _mm256_andnot_ps(a, b));
        float e = exp2f(top - x[r]), f = exp2f((top - x[r]) * LOG2E), z = s.l * exp(s.m - top) + t.l;
        int half = N / 2; run(x, half); for (int k = N & 3; k < N; k++) run(k);
        for (int k = 0; k < N; k++) { if (k) { continue; } run(k); x += d, y += d; }
        switch (r) { case 0: run(0); case 1: run(1); }
        run(s.n, std::inner_product(x, x + d, x, *x)); e -= f;
    }
} struct Part { float m, l; int n; };
"""

AMONG = {SKIPPED: [
    (2, "without `&`: top changes with the element to which it refers"), (16, "before it add `break;`"),
    (5, "before it add `c = 0;`"), (8, "after it add `if ((c + pad) % stride != 0) continue;`"),
    (6, "at / d in place of at % N"), (9, "s.l * exp(s.m - top) + 1 in place of s.l * exp(s.m - top)"),
    (12, "k + 8 <= N in place of k < N"), (12, "_mm256_and_ps in place of _mm256_andnot_ps"),
    (13, "(top - x[r]) * LOG2E in place of top - x[r]"), (13, "t.l * exp(t.m - top) in place of t.l"),
    (17, "with 0.0f in place of *x, the first value of this sum"), (14, "N - half in place of half"),
    (3, "2 * pad in place of pad"), (14, "~3 in place of 3"),
    (17, "e += in place of e -="), (17, "d in place of s.n"), (15, "with `x += d, y += d;` before it"),
], CARRIED: [
    (4, "after line 4 add `total = 0.0f;`"), (7, "after line 7 add a loop that sets all of L to 0"),
    (6, "after line 6 add `sum = 0;`"), (2, "-INFINITY in place of FLT_MIN"), (14, "this line after line 15"),
    (8, "without float: this declares a second old, which hides the outer one"), (9, "with the opposite condition"),
    (10, "total += in place of total ="), (10, "exp(L[i] - old in place of exp(L[i]"), (13, "with `&& i0 + i < N`"),
    (10, "exp(L[i]) + old in place of exp(L[i])"), (5, "std::min(i0 + T, N) in place of i0 + T"),
    (13, "L[b * N + i * T + i] = in place of L[b * N + i * T + i] +="), (13, "with brackets around the sum before * T"),
], LOOPED: [
    (3, "omp_get_thread_num() in place of omp_get_num_threads() - 1"), (16, "at(Q, h) + 1.0f in place of at(Q, h)"),
    (6, "before the loop of line 5 add `for (int j = 0; j < last; j++) T[h * N + j] = 0;`"),
    (7, "Row &r in place of Row r"), (7, "without / twoDimRead(Q, h)"), (9, "exp(at(Q, j)) in place of at(Q, j)"),
    (9, "this loop before the loop of line 8"), (10, "d, N in place of N, d"), (6, "N in place of last"),
    (12, "`while (h < N)` in place of `if (h < N)`"), (13, "without the `;` at the end of this line"),
    (17, "T[0] * exp(own - top) in place of T[0]"), (18, "h in place of 0"), (18, "d * sizeof(float) in place of d"),
    (18, "before the loop of line 18 add `float zero = 0; twoDimWrite(T, h, d, N, zero);`"), (14, "T[h] in place of 0"),
    (17, "with 0.0 as the first value: from 0 each partial sum is cut to a whole number"), (2, "d, N in place of N, d"),
    (17, "with 0.0f in place of T[h], the first value of this sum"), (14, "h * N - d in place of (h - d) * N"),
    (14, "h + in place of h -"), (17, "top - m in place of m - top"),
]}  # fmt: skip


@pytest.mark.parametrize("source, line, words", [(each, *row) for each in AMONG for row in AMONG[each]])
def test_statements_terms_and_loops_are_among_the_edits(source: str, line: int, words: str) -> None:
    found = edits.candidates(source, ["kernel"])
    made = [repair._words(each) for each in found if each.line == line]
    assert words in made and "m + in place of m -" not in made
    assert edited_source.combined(source, "kernel", found).count("\n") == source.count("\n") + 1


def test_edits_of_one_place_are_nested_or_left_out() -> None:
    code = "torch::Tensor kernel(torch::Tensor Q) {\ny = exp(a) - m / s;\n}"
    begin, middle, last = code.index("exp"), code.index(" - m"), code.index(";\n")
    spans = ((begin, middle), (begin, last), (code.index("m / s"), last))
    texts = [edited_source.wrapped(span, f"(@ ? {k} : ", f" + {k})") for k, span in enumerate(spans)]
    made = [edits.Edit(2, "", "", tuple(places)) for places in texts]
    row = edited_source.combined(code, "kernel", made).splitlines()[-2].replace(edited_source.CHOSEN, "C")
    assert row == "y = (C == 2 ? 1 : (C == 1 ? 0 : exp(a) + 0) - (C == 3 ? 2 : m / s + 2) + 1);"
    for other in (((middle, last, " * 2"),), tuple(edited_source.wrapped((begin, code.index(" / s")), "("))):
        assert edited_source._whole([made[2], found := edits.Edit(2, "", "", other)], ()) == {found}


def test_ends_offsets_and_macros_that_declare_are_read() -> None:
    code = (
        "#define PTR(p, t) float *p = t\nvoid kernel(T Q, vector<float> u, vector<float> o, int B, int H, int N, int d"
        ") {\nPTR(q, Q);\nint b, h, off = b * N * d + h * N * d, e = min(off + T, N);\nfor (int k = N / 4; k <= e; k +"
        "= T) f();\nfor (int k = 0; k < N; k++) {\nfloat v = read(u, h, d);\nv += k;\nwrite(u, h, d, v);\n}\nint m = m"
        "in(b, h) - 1;\nfloat s = q[0] + u[0], l;\nfor (; b < m;) o[0] = (o[0] + e) / l;\nl = s + u[b];\ncopy(u.begin("
        "), u.end(), q);\nint g = N / 4;\nfor (int k = g; k < N; k++) f();\nfor (int t = 0; t + T <= N; t += T) {\nint"
        " to = t + T;\n}\no[0] = o[0] + e / l;\n}"
    )
    found = edits.candidates(code, ["kernel"])
    assert {(4, "b * N * d * H in place of b * N * d"), (4, "off + T - 1 in place of off + T"),
            (13, "b <= m in place of b < m"), (5, "N / 4 * 4 in place of N / 4"), (13, "o[0] * s in place of o[0]"),
            (15, "o in place of u, 2 times in this line"), (17, "g * 4 in place of g"),
            (18, "t < N in place of t + T <= N, and std::min(t + T, N) in line 19"),
            (21, "o[0] * s / l in place of o[0]"),
            (7, "before the loop of line 6 add `float zero = 0; write(u, h, d, zero);`")} <= {
                (each.line, repair._words(each)) for each in found}  # fmt: skip
    assert not any("PTR" in repair._words(each) or "d * N + h" in each.new for each in found)
    assert word_edits._likely(["x", "Tail"], ["x", "tai", "Tail"], "tai", ())[0] == "Tail"
    assert edits.tile_lengths("#define T 16\nfor (;; i += T) for (;; j += 300) for (;; k += 8)") == [16, 8]


ONE_LINE = """torch::Tensor kernel(torch::Tensor PTensor, torch::Tensor OTensor, int B, int H, int N) {
    int b, h;
    float *O = OTensor.data_ptr<float>();
    float *P = OTensor.data_ptr<float>();
    for (int i = 0; i < B * H; i++) {
        b = i / B, h = i % B;
        P[i] = exp(O[i] - P[h]);
    }
}
"""


def test_an_unused_tensor_and_all_uses_in_a_line_are_among_the_edits() -> None:
    found = edits.candidates(ONE_LINE, ["kernel"])
    words = {(each.line, repair._words(each, ONE_LINE)) for each in found}
    assert {(4, "PTensor in place of OTensor"), (6, "H in place of B, 2 times in this line")} <= words
    assert {(7, "O[i + N] in place of O[i]"), (7, "P[i + N] in place of P[i]")} <= words
    # A comma ends the value that edits put in brackets.
    (row,) = (row for row in edited_source.combined(ONE_LINE, "kernel", found).split("\n") if "h = (" in row)
    statement = row[row.index(" b = (") : row.index(";", row.index(" h = ("))]
    assert [piece.split()[0] for piece in cpptext.apart(statement)] == ["b", "h"]


def test_an_edit_outranks_a_suspect_with_other_lines() -> None:
    closer: Any = SimpleNamespace(source=Path("module.cpp"), body=body(SOURCE), _old_values=lambda _: ["old"])
    values, lines = "Expected 1, got 2.", ["  module.cpp:7: s = 1;"]
    lead = f"The sum is wrong. {values}"
    for known, edit, left in ((True, 8, values), (True, 7, lead), (False, 8, values)):
        assert Closer._beside(closer, f"  module.cpp:{edit}: s;", lead, lines, known) == (left, [])
    other = "  module.cpp:7: {   (after line 7 add a loop that sets all of O to 0)"
    left = Closer._beside(closer, other, f"Q is not set to zero. {lead}", lines, True)
    assert left == (values, ["old"])
    same = f"O is not set to zero. {lead}"
    assert Closer._beside(closer, other, same, lines, True) == (same, lines)


@pytest.mark.parametrize(("N", "Bc", "least"), [(48, 24, (1, 1, 48, 1)), (4, 4, None)])
def test_edits_are_tried_on_few_numbers(N: int, Bc: int, least: tuple[int, ...] | None) -> None:
    """Edits are tried at sizes that fail; if the kernel is right there (`least` None), on a small random case."""
    part = ASSIGNMENT.part("part4")
    kernel: Any = SimpleNamespace(part=part, shape=ASSIGNMENT.defaults, oracle=ORACLES["attention"])
    kernel.inputs_of = lambda case: None

    def called(case: Any, number: int, **how: Any) -> Any:
        n, tile = case.shape["N"], case.shape["Bc"]
        call = SimpleNamespace(status="ok", signal_name="", has_waited=False)
        return SimpleNamespace(call=call, is_right=n % tile != 0 or n == 4)

    wrong = [next(case for case in part.cases if case.shape.get("N") == case.shape.get("Bc") == 131)]
    search: Any = EditedCalls(SimpleNamespace(call=called))  # type: ignore[arg-type]
    sizes, drawn = {"B": 1, "H": 1, "d": 1, "N": N, "Bc": Bc}, [*repair_inputs.further_cases(kernel, wrong)]
    (case,) = repair_inputs.tiny_case(kernel, search, wrong, sizes, 9, lambda: drawn)
    tried = tuple(case.shape[name] for name in "BHNd")
    assert tried == least or (least is None and repair_inputs.output_elements(kernel, case) < 1000)
    # An edit that ran before in the same runner may have caused a crash, so the call is repeated in a new runner.
    crash = SimpleNamespace(call=SimpleNamespace(status="crash", has_waited=False), is_right=False)
    search.built.call = lambda case, number, fresh, **how: called(case, number) if fresh else crash
    assert search.is_right(wrong[0], 1) is called(wrong[0], 1).is_right and not search.is_right(wrong[0], 1)
    for status in ("ok", "timeout"):
        run = SimpleNamespace(call=SimpleNamespace(status=status), is_right=False)
        search.built.call = lambda case, number, run=run, **how: run
        assert search.is_wrong(wrong, 1) is (status == "ok")
    made = SimpleNamespace(outputs={"": np.array([1.0, np.inf])})
    search.built.call = lambda case, number, **how: made
    for right, is_finite in ((1.0, False), (np.inf, True)):
        made.expected = {"": SimpleNamespace(value=np.array([0.0, right]))}
        assert search.is_finite(wrong[0], 1) is is_finite
    made = SimpleNamespace(bad=(), call=lambda case, _: case.shape, is_clean=lambda cases, _: cases[0].shape)
    alone: Any = OneThread(SimpleNamespace(edited=lambda *_, checked: made)).edited(part, "")  # type: ignore[arg-type]
    shape = {**wrong[0].shape, "threads": 1}
    assert alone.call(wrong[0], 1) == alone.is_clean(wrong, 1) == shape


@pytest.mark.parametrize("paused", ["start", "call"])
def test_a_pause_of_the_machine_costs_no_edit(paused: str) -> None:
    """If a runner does not start in time, or its call waits, the edit is called again in a new runner."""
    left = {paused}

    def student(*_: Any, **__: Any) -> Any:
        if "start" in left:
            left.clear()
            raise KitError("a runner did not become ready")
        return nullcontext(SimpleNamespace(close=lambda: None))

    def call_case(*_: Any, **__: Any) -> Any:
        waits = "call" in left
        left.clear()
        call = SimpleNamespace(status="timeout" if waits else "ok", has_waited=waits)
        return SimpleNamespace(call=call, is_right=not waits)

    inputs = type("Drawn", (dict,), {"shape": {"threads": 1}, "starting": lambda *_: "chosen"})({"Q": None})
    bench, call = SimpleNamespace(student=student), lambda *_, **__: None
    marker: Any = SimpleNamespace(part=ASSIGNMENT.part("part1"), bench=bench, call=call, call_case=call_case)
    marker.inputs_of = lambda _: inputs
    with ExitStack() as stack:
        run = explanation.Edited(marker, stack, ()).call(ASSIGNMENT.part("part1").cases[0], 7)
    assert run is not None and run.is_right and not left


TILED = """torch::Tensor kernel(torch::Tensor Q, int N, int d) {
    const int T = TILE_SIZE;
    for (int k = 0; k < N; k += T) {
        int last = std::max(k + T, N);
        for (int i = k; i < last; i++) sums[i] += N;
    }
}
"""


def test_no_edit_hides_a_mistake() -> None:
    """Edits that can only hide a mistake are not tried, such as N in place of a tile size, an index or a counter."""
    tried = functools.partial(edits.candidates, names=["kernel"])
    named = TILED.replace("TILE_SIZE", "24").replace("k += T", "k += last")
    assert not [each for each in tried(named) if each.line == 2]
    macro = "#define TILE_SIZE 16\n" + TILED.replace("+= N", "+= d * N")
    assert not [each for each in tried(macro) if each.new.startswith("TILE_SIZE *")]
    least = "void kernel(torch::Tensor Q, int N, int T) {\nfor (int i = 0; i < N; i += T)\nQ[0] = min(T, N - i);\n}"
    assert (3, "T", "N") not in [(each.line, each.old, each.new) for each in tried(least)]
    found = [(each.line, each.old, each.new) for each in tried(TILED)]
    assert (4, "std::max", "std::min") in found and (5, "i", "k") in found
    assert not [each for each in found if each[0] == 2 or "- TILE_SIZE" in each[2] or each == (5, "i", "N")]
    assert not {(3, "k", "N"), (3, "N", "k"), (3, "k", "T")} & set(found)
    code = "void kernel(torch::Tensor Q, int N, int d) {\nint a = N < 4 ? 1 : N;\nint b = d < 4 ? 1 : d;\n}"
    assert not [each for each in tried(code) if each.declared]
    code = "void kernel(torch::Tensor Q) {\nfor (int i = 0; i < 9; i++) {\nif (Q[i] > t) t = Q[i];\ns += exp(t);\n}\n}"
    moved = [each for each in tried(code) if "its own before" in each.words]
    assert [(each.line, each.is_weak) for each in moved] == [(3, False), (4, True)]
    code = "void kernel(torch::Tensor Q) {\nfloat s;\nfor (int i = 0; i < 9; i++)\ns += Q[i];\nQ[0] = s;\n}"
    assert "`Q" not in "".join(each.old for each in tried(code) if "before the loop" in each.words)
    code = "void kernel(torch::Tensor Q) {\nfloat s = 0, t = 1;\nfloat u = s + t;\nt = s + u;\nQ[0] = u + s;}"
    assert {each.line for each in tried(code) if each.words.startswith("this line after")} == {3}
    # Brackets around `d % e` would change `N / d % e`. A maximum of equal numbers, a lost reset, a double may hide it.
    code = "int a = N / d % e;\nm[a] = 0;\nx[a] = std::max(m[a], l[a]);\n}"
    code = f"void kernel(torch::Tensor Q, float *m, float *l, float *x, int N, int d, int e) {{\n{code}"
    made = {(each.line, each.old, each.new): each.is_weak for each in tried(code)}
    code = "void kernel(torch::Tensor Q, double sum, float x, float y) {\nQ[0] = sum + exp(x - y);\n}"
    texts = [new for each in tried(code) for _, _, new in each.places if "sum" in new]
    assert texts and all("(float)sum" in text or "sum +" in text for text in texts)
    assert (2, "d % e", "d / N") not in made and (4, "m", "l") not in made and made[3, "m", "l"]
    length, fact, other = (edited_source.Edit(k, "a", "b", (), is_weak=k == 1) for k in (1, 2, 3))
    assert repair._causes({1: length, 2: fact, 3: other}, ()) == {2: fact, 3: other}
    assert repair._causes({1: length, 2: fact, 3: other}, (2,)) == {2: fact}


@pytest.mark.parametrize(("body", "words"), [
    ("for (int c = 0; c < N; c++) s += *p++;", "after this loop set p back to its value before the loop"),
    ("for (int j = 0; j < N; j++) {\nfor (int j = 0; j < N; j++) s += p[j];\n}", "this j hides the j of line 5"),
    ("EACH(j, N) {\nEACH(j, N) s += p[j] * p[j];\n}", "this j hides the j of line 5"),
    ("bool in = N < d && d < N;\nvector<float> a(N);\nfor (int i = 0; i < N; i++) {\nsum(a.begin(), p);\n}",
     "d and N exchanged | after line 7 add a loop that sets all of a to 0"),
    ("for (int c = d; c < N; c++) s += 1;\nfor (int c = 0; c < N; c++) s += rows<9, N>(c);", "d in place of 0"),
    ("if (N < 0 || N % d != 0 || N / d >= 9) s = 0;\nif (d < 0 || d / N >= 9) s = 1;",
     "with `|| d % N != 0`, as in a similar condition"),
    ("if (N > 1 && d > 1) s = 0;\nif (s > 1) s = 1;\nif (d > 1) s = 2;", "with `&& N > 1`"),
    ("for (int i = 0; i < N; i++) {\nt += exp(s);\nfor (int c = 0; c < d; c++) o[c] = p[c];\n}",
     "this line in a loop of its own after the loop of line 5 | p[c] / t in place of p[c]"),
    ("for (int c = 0; c < d; c++) {\nfloat e = 0;\no[c] += *p;\n}", "this line before | o[c] * s in place of"),
    ("s = std::inner_product(p, p, p, 0);\nfor (size_t j = N; j >= 0; j--) s += p[j];", "with 0.0f | a signed j"),
    ("int a = N / d;\nint b = d / N;\no[N * d] = 1;\no[N * d] = 2;",
     "rounded up, like each quotient in lines 5 and 6 | d in place of N, in lines 7 and 8"),
    ("EACH(i, N) s += p[i];\nfor (int i = 0; i < N; i++) {\nfor (int j = 0; j < N; j++) s += p[i * d + j];\n}",
     "with this loop over j and the loop of line 7 over i"),
    ("int k = N * d;\nfor (int u = 0; u < N; u += d)\nfor (int i = 0; i < d; i++) o[i] = 0;", "(u + i) | (k + i)"),
    ("const float *q = p;\nfor (int i = 0; i < N; i++, p += d) s += q[i];", "with `p += d, q += d`"),
    ("s *= exp(p[0]);\nt = (t + p[1]) * exp(s);\nwhile (t > 0) {\nreturn X;\n}\nreturn X;",
     "after it add `s += 1;` | without exp() | without return X; | t * exp(s) + p[1] in place of"),
    ("for (int j = 0, i = 0; j < d; j++) o[i + j * N + i] = 0;\nint a = N / d, b = N % d;\nt = o[a];\no[a] = s * o[a];",
     "i * N + j in place of j * N + i | N / d % d in place of N / d | t in place of o[a]"),
    ("for (int i = 0; i < N; i++)\nfor (int c = 0; c < d; c++) o[i] += p[c];", "loop of line 6 add `o[i] = 0;`"),
    ("std::vector<float> c(N);\nfloat us = 0;\nfor (int i = 0; i < N; i++) {\nint a = p[i];\nif (s >= t) {\nput(&c[i]);"
     "\n}\nt += s + a;\no[0] = exp(us);\n}", "float in place of int, which cuts p[i] | before this `}` add `continue;`"
     " | s > in place of s >= | all of c to 0 | exp(us) + s in place of exp(us)"),
    ("#define AT(a, i) a[i]\nstd::vector<float> e(N);\nfor (;;) {\nAT(e, d) += s;\n}", "sets all of e to 0"),
    ("int t = N / (d + 1);\nint u = N / (N + 1);\nint e = N + 4, f = std::min(d, 9);",
     "N in place of d, and d in place of N in line 6 | std::min(N + 4, d) in place of N + 4"),
    ("for (int i = 0; i < N; i += d) {\nfor (int j = 0; j < N; j += N) s += p[j];\n}",
     "N in place of d, and d in place of N in line 6"),
    ("each(N, [&](int i, int k) {\ns += p[k];\n});", "i in place of k | without `s += p[k];`"),
    ("const float *q = p, *r = p;\nfor (int i = 0; i + d <= N; i += d) {\nr += N * d;\ns += q[i] * r[i];\n}",
     "i < N in place of i + d <= N | without + d | add `q += N * d;` | i * d in place of i | loop set r back"),
    ("int i = 0;\nwhile (i < N) {\nif (i > d) continue;\ni += d;\n}", "with `i += d;` before | break; in place of"),
    ("std::vector<Row> R(N);\nfor (int i = 0; i < N; i++) {\nRow &r = R[i];\nint k = 0;\ns = k ? t : 0;\n}",
     "all of R to {} | i in place of k"),
    ("int k = 0;\nconst int at = k * d;\nauto row = [=](int i) { return p[k + i]; };\nfor (k = 1; k < N; k++) {\n"
     "s = t / (p[at] * s);\nt = exp(s) - p[0] * t;\nreturn (s + t) * s;\n}",
     "used: line 8 sets k only later | &k in its [...]: | of `t / p[at] * s` | `exp(s - p[0]) * t` | `s + t * s`"),
    ("float a = s + t;\nfor (int i = 0; i < N; i++) {\nt += p[i];\n}\no[0] = a;",
     "this line after the loop of line 6"),
    ("memset(o, 0, N);\no[omp_get_num_threads() * N] = 1;\nt = 1 / (t + 1e-6f);\nfloat &f = *o;\nf = s + *p / t;",
     "omp_get_max_threads() in | omp_get_thread_num() in | "
     "N * sizeof(float) in | without + 1e-6f | brackets of `(s + *p) / t`"),
    ("Span a, b;\nt = 0;\n#pragma omp for\nfor (int i = 0; i < a.n; i++) {\nt += b.m;\n}", "start of | b.m in"),
    ("std::vector<float> L(N);\nfor (int i = 0; i < N; i++) {\nconst float *q = p;\nL[i] = exp(L[i] - q[i]);\n}",
     "all of L to -INFINITY | this line and the declaration of q in a loop of its own after the loop of line 6"),
    ("float *m = (float *)malloc(4 * N);\nfloat *w = new float[N];\nfor (int i = 0; i < N; i += d) {\n"
     "float s = 0;\nm[i] += s += *p;\ns += i + d == N;\nw[i] += exp(w[i] - s);\n}",
     "all of m to 0 | all of w to 0 | with the outer s: line 8 declares | i + d >= N in place of i + d == N"),
    ("int n = N;\nfor (int i = 0; i < N; i++) {\nVec m(N, -1e30f);\nint n = d;\nconst float keep = exp(s - t);\n"
     "for (int j = 0; j < n && j * i < d; j++) o[j] = s + t;\nfor (int k = 0; k < n; k++) t += m[k];\n}",
     "without this declaration of a second n, which hides that of line 5 | this line before the loop of line 6 | "
     "s * keep in place of s | with `&& k * i < d`"),
    ("float a = exp(t - s);\nfloat b = exp(p[0] - s);\nauto u = cut(N, d);\nauto v = cut(N, N);\n"
     "o[N * d + 1] += o[N * N + 1];",
     "in place of exp(p[0] - s) in line 6 | N in place of d\n | N in place of d, and d in place of N in line 8"),
    ("int j = 0;\nwhile (j < N) {\ns *= t;\nfor (int c = 0; c < d; c++) o[c] += s;\n"
     "for (int c = 0; c < d; c++) {\no[c] /= s;\n}\n}",
     "after it add `for (int c = 0; c < d; c++) o[c] *= t;` | this statement after the loop of line 6"),
    ("t = 0;\nfor (int i = 0; i < N; i++) {\nfor (int j = 0; j < N; j++) {\nt += p[j];\n}\n}",
     "this line at the start of the loop of line 7"),
    ("#pragma omp parallel num_threads(4)\n{ s = 1; }\nint w = 2;\nfor (int i = 0; i < N; i++) o[i] = p[i * w];\n"
     "t += exp(o[1]);\nint a = std::min(w, N), b = std::min(w, d);\nif (a == w) s = 1 / (s + t);\nw = N + d * w;\n"
     "for (;t;) {\nif (N % w == 0) { t += s; s = 0; }\n}", "omp_get_max_threads() in place of 4 | i * w in |"
     " o[1] = exp(o[1]) in | with `&& b == w` | t in place of (s + t) | N * w + d in | the loop of line 13 add `t +="),
    ("std::vector<float> a(p, p + N);\nfloat g = p[0] * s;\nfor (int i = 0; i < N; i++) {\na[i] += _mm256_sum(t);\n"
     "if (i < d) o[i] = g;\nauto h = _mm256_extractf128_ps(t, 0);\no[0] = s;\n}",
     "add `a = std::vector<float>(p, p + N);` | p[0] in place of g | add `else o[i] = 0;` | o[4] in place of o[0]"
     " | _mm256_extractf128_ps(t, 1) in place of"),
    ("const float *q = p + N * d;\nint c = 0;\nfor (; c + 4 <= N; c += 4) put(p, c);\nif (c < N) put(p, c);\nfloat k[4]"
     ";\nfloat e = exp(k[0] - k[1]);\nk[2] = *std::max_element(p, p + d);\nt = e * t + s;\nfor (int i = 0; i < N; i++)"
     " {\np += d;\nfloat u = 0;\nt += p[i] / N - (i == d) / N;\nput(_mm256_cmp_ps(a, b, _CMP_GE_OQ), u);\n}",
     "p + N * d in place of p | for (; c < N; c++) in | s * exp(k[2] - k[1]) in place of s | p[i] in place of 0 | "
     "N * d in place of d | (float)(i == d) / N in place of | _CMP_GT_OQ in place of _CMP_GE_OQ"),
    ("std::vector<float> u;\nint top = 0, n4 = N / 4, e = (N - d) / d;\nfor (int i = 0; i < N; i++) {\n"
     "u.push_back(s);\nif (i == d) continue;\nif (p[i] > top) top = i;\ns = std::max(t, p[n4 + i]);\n"
     "_mm_storeu_ps(o, _mm_fmsub_ps(a, b, c));\nput(i);\np += d;\n++o;\n}",
     "after line 7 add `u.clear();` | with `p += d; ++o;` before it | p[top] in place of top | 4 * n4 in | "
     "std::max(s, std::max(t, p[n4 + i])) in | _mm_fnmadd_ps in | (N - d + d - 1) / d in"),
    ("std::vector<float> u(N);\nauto row = [=](int i) { return u[i]; };\nfor (int i = 0; i < N; i++) {\nu[i] = least("
     "p, d);\nput(_mm_movehl_ps(a, b));\nfloat e = exp(p[i] - s);\ns = s * e + 1;\nint k = i / N % d, m = (i * d + k)"
     ";\nt += *std::max_element(p, p + N);\n}\neach(N, [&](int q) {\nu[q] += s;\nfloat r[9];\nfor (int k = 0; k < N; "
     "k++) {\nstd::copy(p, p + d, r);\nt += r[k];\n}\n});\nEACH(j, N) EACH(k, d) o[k] += p[j];\nconst float top = std"
     "::max(s, t);\nfloat z[4];\ndouble l[4];\nt += exp(z[0] - top);\nz[1] = s;\nfor (int k = 0; k < N; k++) {\nfor ("
     "int i = 0; i < d; i++) t += p[i];\nfor (int i = 0; i < d; i++) o[i] *= t;\nput(u.begin() + k, s);\n}",
     "with &u in its [...] | b, a in place of a, b | with least(p, d) computed once, before the loop of line 7 | with"
     " *std::max_element(p, p + N) computed once | i / N / d in place of i / N % d | k * N + i in place of i * d + k "
     "| before it add `t *= e;` | 0 in place of exp(p[i] - s) where it is | after line 15 add a loop that sets all of"
     " u | after line 18 add a loop that sets all of r | add `EACH(k, d) o[k] = 0;` | with t * exp(s - top) in | top "
     "in place of s | this loop before the loop of line 30 | k * d in place of k | after line 2 add `clear();`"),
    ("#define TILES(a, b, n) \\\nfor (int a = 0, b; b = a + 9, a < (n); a = b)\nRunning a, all, lane[4];\nfor (int i "
     "= (N - 1) / d; i < N; i++) {\nput(X.data_ptr<float>(), 1, N, p);\ns = exp(p[i] - lane[0].m) - all.m;\np += d * "
     "d;\no[ids[i]] = s;\n}\nfloat m = mean(N);\nTILES(lo, hi, N) {\nt += lo;\nt /= s;\n}\nsums(4, d);\nconst int w ="
     " d - 1;\nsums(0, d);", "(N - 1) / d + 1 in | d in place of N\n | all.m in place of lane[0].m | N * d in place o"
     "f d * d | with `* s` after exp(p[i] - lane[0].m) | o[ids[i]] += in place of o[ids[i]] = | mean<float>(N) in | t"
     "his line after the loop of line 15 | w in place of d"),
])  # fmt: skip
def test_pointers_hidden_counters_and_conditions_are_edited(body: str, words: str) -> None:
    source = "#define EACH(v, n) for (int v = 0; v < n; v++)\nvoid kernel(torch::Tensor X, int N, int d) {\n"
    source += f"const float *p = X.data_ptr();\nfloat s = 0, t = 0, *o;\n{body}\n}}\nfloat least() {{}}"
    source += (
        "\nvoid sums(int k, int n) { clear(); }\ntemplate <typename T>\nT mean(T n) {\nreturn 1 / n;\n}\n"
    )
    every = edits.candidates(source, ["kernel"])
    assert not [each for each in every if each.new in ("l", "-INFINITY") and "inf" not in each.places[0][2]]
    found = "\n".join(map(repair._words, every))
    assert not [each for each in words.split(" | ") if each not in found]


def test_the_edits_beside_an_error_of_the_compiler_are_kept() -> None:
    source, texts = "void kernel(torch::Tensor X, int N, int d) {\nint a = N + d;\n}\n", list[str]()
    found = sorted(edits.candidates(source, ["kernel"]), key=lambda each: each.places)

    def built(part: Any, text: str) -> Any:
        """Stand in for the compiler: report two errors in edit 2 in the first build, none in later builds."""
        texts.append(text)
        condition = f"{edited_source.CHOSEN} == 2 ? "
        column = text.split("\n")[2].find(condition) + len(condition) + 1
        return SimpleNamespace(bad=[] if texts[1:] else [(3, column)] * 2)

    judged: Any = SimpleNamespace(kernel=SimpleNamespace(part=SimpleNamespace(function="kernel")))
    second: Any = SimpleNamespace(edited=built)
    with patch.object(repair, "MOST_BUILDS", 2):
        assert repair._built(judged, second, source, found) is not None
    assert texts == [edited_source.combined(source, "kernel", found, without) for without in ((), found[1:2])]
    # An error at a use of an `auto` removes the edits in its declaration.
    source = source.replace("int a", "auto a").replace(";\n}", ";\nf(a);\nint c = N;\n}")
    found = sorted(edits.candidates(source, ["kernel"]), key=lambda each: each.places)
    second.edited = lambda _, text: SimpleNamespace(bad=[] if "auto a = N + d;" in text else [(4, 3)])
    with patch.object(repair, "MOST_BUILDS", 3):
        assert repair._built(judged, second, source, found) is not None
    # A reset that does not compile in one line is not tried in others.
    ends = [k + 1 for k, letter in enumerate(source) if letter == ";"]
    alike = [edited_source.Edit(k, "", "bad;", ((k, k, " if (@) bad; "),), declared=2) for k in ends]
    second.edited = lambda _, text: SimpleNamespace(bad=[(3, 42)] * ("bad;" in text))
    with patch.object(repair, "MOST_BUILDS", 2):
        assert repair._built(judged, second, source, alike) is not None


def test_an_edit_that_leaves_a_wrong_access_is_dropped() -> None:
    source = "void kernel(torch::Tensor X, int N) {\nint a = N + 1;\n}\n"
    found = dict(enumerate(edits.candidates(source, ["kernel"])[:2]))
    judged: Any = SimpleNamespace(kernel=SimpleNamespace(part=SimpleNamespace(function="kernel")))
    kept = sorted(found.values(), key=lambda edit: edit.places)[1]
    for bad, left in ((), [kept]), ([(1, 1)], [*found.values()]):
        built = SimpleNamespace(bad=bad, is_clean=lambda cases, number: number == 2)
        second: Any = SimpleNamespace(edited=lambda *_, checked, built=built: built)
        assert [*repair._clean(judged, second, source, found, ()).values()] == left


@pytest.mark.parametrize("damages, steady", [(True, True), (False, True), (True, False)])
def test_edits_after_one_that_damages_its_runner_are_called_again(damages: bool, steady: bool) -> None:
    """Edit 1 damages its runner: all later calls in it are wrong. Edit 2 is right."""
    calls, damaged, tried = iter(range(99)), [False], [edited_source.Edit(k, "a", "b", ()) for k in (1, 2)]

    def call(case: Any, number: int, *, fresh: bool = False, cpu_s: float = 0) -> Any:
        damaged[0] = (damaged[0] and not fresh) or (damages and number == 1)
        output = np.array([np.nan, float(damaged[0]) if steady else next(calls)])
        found = SimpleNamespace(status="ok", has_waited=False)
        return SimpleNamespace(call=found, is_right=number == 2 and not damaged[0], outputs={"": output})

    search = EditedCalls(cast(Any, SimpleNamespace(call=call)))
    passed = search.passing(tried, {tried[0]: 1, tried[1]: 2}, [(cast(Any, None), 1.0)])
    assert [*passed] == tried[1:]


def test_a_function_that_changes_only_a_copy_is_found() -> None:
    text = SOURCE.replace("float other(float K) { return K; }", "")
    found = [(1, "K", "std::vector<float>")]
    for parameters in (
        "std::vector<float> K, int n",
        "std::vector<float> K",
        "std::vector<float> &K",
        "const float *K",
    ):
        loop = (
            "for (float &k : K) k = 0;"
            if parameters[-3:] == "> K"
            else "for (int i = 0; i < 9; i++) K[i] *= 2;"
        )
        helper = f"void scaled({parameters}) {{ {loop} }}\n"
        changed = dataflow.without_effect(body(helper + text.replace("float sum = 0;", "scaled(K, N);")))
        assert [(place.line, *rest) for place, *rest in changed] == found
        found = found if "n" in parameters[-2:] else []
    helper = "void total(float K) {\nfor (int i = 0; i < 9; i++) K += 2; }\n"
    text_ = text.replace("float sum = 0;", "total(sum);")
    assert [rest for _, *rest in dataflow.without_effect(body(helper + text_))] == [["K", "float"]]
    for loop in ("std::for_each(Q, Q + N, [sum](float q) { q /= sum; });", "for (float q : Q) q /= sum;"):
        changed = dataflow.without_effect(body(text.replace("O[i] = sum / N;", loop)))
        assert [rest for _, *rest in changed] == [["q", "float"]]
        assert dataflow.without_effect(body(text.replace("O[i] = sum / N;", loop.replace(" q", " &q")))) == []
    made = body("void kernel(T XTensor) {\nstd::vector<float> X = formatTensor(XTensor);\nXTensor.zero_();}")
    assert [(place.line, *rest) for place, *rest in made.cleared_sources()] == [(3, "XTensor", "X")]


def test_a_variable_that_a_parallel_region_shares_is_found() -> None:
    source = "void kernel(float *o, int N) {\nfloat s, t; int own;\n#pragma omp parallel for private(own)\n"
    source += "for (int i = 0; i < N; i++) {\nfloat t = 0;\nown = i; s = own; t = s;\n}\ns = t = 0;\n}\n"
    assert scopes.shared_numbers(source, 0, len(source)) == {2: ["s"]}
    # Each thread runs the first two loops whole. The others write only to the thread's array or to its share of one.
    own = ("own[i] = 1;", "W[at + i] = 1;", "if (i % of == 0) x[i] = 1;")
    loops = ("x[i] = 1;", "{ float *p = X + i; p[0] = 1; }", *own)
    source = "void kernel(float *x, int N) {\nint at, of;\n#pragma omp parallel private(at, of)\n{\n"
    source += "at = N * omp_get_thread_num(); of = omp_get_num_threads();\nstd::vector<float> own(N);\n"
    source += "\n".join([*(f"for (int i = 0; i < N; i++) {each}" for each in loops), "}\n}\n"])
    assert [each.name for each in cpptext.definitions(source)] == ["kernel"]
    assert scopes.whole_loops(source, 0, len(source)) == [7, 8]
    single = "void kernel(float *x, int N) {\n#pragma omp parallel\n{\nfloat own[9]; own[0] += 1;\n#pragma omp single\n"
    single += "{ for (int i = 0; i < N; i++) x[i] += own[i]; }\n}\n}\n"
    assert [*scopes.lost_shares(single, 0, len(single))] == [(5, "single", "own")]
    loop = "for (int i = 0; i < N; i++) x"
    for shares in ("for", "single", "for collapse(2)"):
        shared = source.replace(loop, f"#pragma omp {shares}\n{loop}")
        assert scopes.whole_loops(shared, 0, len(shared)) == []
    # The note is on the line that sets the variable before the loop, or that uses its first value.
    source = "float s;\ns = 0;\nfor (int i = 0; i < N; i++) {\nfloat t = o[i];\nt += i; s += t;\n}\n}"
    made = edits.candidates(f"void kernel(float *o, int N) {{\n{source}", ["kernel"])
    notes = {each.declared: each.note for each in made if each.line in (4, 5) and "add" in each.words}
    assert (notes[3], notes[6]) == ("set here, outside of that loop", "uses that value")
    source = "void kernel(float *o, int N) {\nTile a(N), s(N, (N + 1));\nfor (int i = 0; i < N; i++) {\ns.add(o);\n}\n}"
    made = edits.candidates(source, ["kernel"])
    assert "after line 3 add `s = Tile(N, (N + 1));`" in {each.words for each in made}
    # The last piece is limited; a loop ends at a number that only another loop sets.
    source = "void kernel(float *o, int N) {\nfor (int i = 0; i < N; i++) {\nt.n = N - i;\nif (hi > N) break;\n}\nfor ("
    source += "int k = 0; k < N; k++)\nfor (int j = 0; j < t.n; j++) o[j] = k;\n}"
    assert "hi = N" in {each.new for each in edits.candidates(source, ["kernel"])}
    ((place, name),) = landmarks.function(source, "kernel").set_in_other_loops(7)
    assert (place.line, name) == (3, "t.n")


def test_edits_use_only_names_known_at_their_line() -> None:
    found = edits.candidates(EDITED, ["kernel", "rows"])
    assert not [each for each in found if each.line < 9 and each.new in ("tiles", "at", "Q")]
    # If the loop moves the pointer itself, pointer + index is not tried as the start of a tile.
    source = "void kernel(float *o, int N) {\nfor (int i = 0; i < N; i++, o += N) o[i + 1] = 1;\n}"
    assert not [each for each in edits.candidates(source, ["kernel"]) if each.new == "(o + i)"]
    # Names of types and constexpr constants are not tried in place of variables.
    source = "typedef std::vector<float> V;\nvoid kernel(torch::Tensor X, int N){\nconstexpr int n = N + 1;\nV a(n);\n}"
    assert [each.new for each in edits.candidates(source, ["kernel"])] == ["N"]
    # No edits are made in a function that the part does not call, or in a file that is too long.
    assert {each.line for each in edits.candidates(EDITED, ["kernel"])} <= {3, *range(9, 20)}
    assert edits.candidates(EDITED + " " * edits.LARGEST, ["kernel"]) == []


def test_all_edits_are_in_one_text_and_macros_without_brackets_get_them() -> None:
    found = edits.candidates(EDITED, ["kernel", "rows"])
    before, after = EDITED.split("\n"), edited_source.combined(EDITED, "kernel", found).split("\n")
    assert len(after) == len(before) + 1 and after[2:5] == before[1:2] + after[3:5]
    assert edited_source.combined(EDITED, "kernel", found, found).count(edited_source.CHOSEN) == 2
    assert edited_source.combined(EDITED, "missing", found) == ""
    # The variable CHOSEN, which selects the active edit, is declared before all edits, even before a later #include.
    later = EDITED.replace("torch::Tensor kernel", "#include <limits>\ntorch::Tensor kernel")
    text = edited_source.combined(later, "kernel", edits.candidates(later, ["kernel", "rows"]))
    assert 0 < text.index(f"static int {edited_source.CHOSEN}") < text.index(f"{edited_source.CHOSEN} ==")
    assert edited_source.bracketed(EDITED, ["AT"]) == (EDITED, [])
    macros = "#define M(a, b) ((a) < (b) ? (a) : (b))\n#define OF(i) AT(i, 0)\n"
    text, lines = edited_source.bracketed(f"#define AT(i, j) i * N + j\n{macros}", ["OF"])
    assert lines == [1, 3] and text.startswith("#define AT(i, j) ((i) * N + (j))\n#define M(a, b) ((a) <")
