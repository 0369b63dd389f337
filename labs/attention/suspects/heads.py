"""Suspected bugs of the indices b and h, and weights of a wrong head or row."""

from __future__ import annotations

from collections.abc import Callable

from grader.core.arrays import Array, np
from grader.explain.suspect import Suspect, registering, row

from ..scene import Scene, softmax

SUSPECTS: list[Suspect] = []
suspect = registering(SUSPECTS)


def _first_head(b: int, h: int) -> tuple[int, int]:
    return b, 0


def _first_batch(b: int, h: int) -> tuple[int, int]:
    return 0, h


def _very_first(b: int, h: int) -> tuple[int, int]:
    return 0, 0


def _register_ignored_heads() -> None:
    """Register suspects that read Q, K or V without the index h, without b, or without both."""
    for name in "QKV":
        for head, words in (
            (
                _first_head,
                f"{name} is read from head 0 for every head: the head is missing in its index or pointer.",
            ),
            (
                _first_batch,
                f"{name} is read from batch 0 for every batch: the batch is missing in its index or pointer.",
            ),
            (
                _very_first,
                f"{name} is read from batch 0 and head 0 for all: both are missing in its index or pointer.",
            ),
        ):

            def predict(
                s: Scene, name: str = name, head: Callable[[int, int], tuple[int, int]] = head
            ) -> Array:
                read = {"Q": s.q, "K": s.k, "V": s.v, name: s.head_of(name, head)}
                return s.attend(read["Q"][:, s.rows] @ read["K"].mT, read["V"])

            SUSPECTS.append(Suspect("head_ignored", words, predict, (f"{name} of {head.__name__}",)))


_register_ignored_heads()


# ---- mistakes with a workspace that holds one head: V is multiplied by another head's weights

ONE_HEAD = (
    "The workspace holds one head at a time: put scores, softmax and product with V into the same pass of the loops "
    "over b and h."
)


def _last(s: Scene) -> tuple[int, int]:
    return s.shape["B"] - 1, s.shape["H"] - 1


#: Sources of scores by name: words for students, and a function that returns the scores, (G, R, N), or (1, R, N) if all
#: heads get the same scores.
SOURCES: dict[str, tuple[str, Callable[[Scene], Array]]] = {
    "last": ("the weights of the last head of all", lambda s: s.scores_of(lambda b, h: _last(s))),
    "last of batch": (
        "the weights of the last head of its batch",
        lambda s: s.scores_of(lambda b, h: (b, _last(s)[1])),
    ),
    "last batch": (
        "the weights of the same head of the last batch",
        lambda s: s.scores_of(lambda b, h: (_last(s)[0], h)),
    ),
    "first": ("the weights of the first head of all", lambda s: s.scores_of(_very_first)),
    "first of batch": ("the weights of the first head of its batch", lambda s: s.scores_of(_first_head)),
    "first batch": (
        "the weights of the same head of batch 0 (Q and K are read without b)",
        lambda s: s.scores_of(_first_batch),
    ),
    "head before, first its own": (
        "the weights of the previous head (the first head of a batch has its own weights)",
        lambda s: s.scores_of(lambda b, h: (b, max(h - 1, 0))),
    ),
}


def _register_other_weights() -> None:
    for name, (source, scores) in SOURCES.items():

        def predict(s: Scene, scores: Callable[[Scene], Array] = scores) -> Array:
            return s.attend(scores(s))

        words = f"Every head's V is multiplied by {source}. {ONE_HEAD}"
        SUSPECTS.append(Suspect("other_heads_weights", words, predict, (f"weights of {name}",)))


_register_other_weights()


def _of_head_before(s: Scene) -> Array:
    """Return the output if each head gets the previous head's weights. The caller replaces the first head's output."""
    heads = s.shape["H"]
    return s.attend(s.scores_of(lambda b, h: divmod(max(b * heads + h - 1, 0), heads)))


@suspect(
    "other_heads_weights",
    "Every head's V is multiplied by the weights of the previous head, and the first one's by zeros: the product "
    "with V comes before the scores and the softmax of its own head.",
)
def product_before_scores(s: Scene) -> Array:
    out = _of_head_before(s)
    if s.first == 0:
        out[0] = 0
    return out


@suspect(
    "other_heads_weights",
    "Every head's V is multiplied by the weights of the previous head, and the first one's by equal weights: softmax "
    "and product with V come before the scores of their own head.",
)
def softmax_and_product_before_scores(s: Scene) -> Array:
    out = _of_head_before(s)
    if s.first == 0:
        out[0] = s.v[0].mean(0)
    return out


SUSPECTS += [
    row("scores_of_all_heads_added", "summed_heads",
        f"The scores of all heads are added up before one softmax, whose weights every head gets. {ONE_HEAD} Set each "
        "score (or clear the workspace) for each head.",
        lambda s: s.attend(_summed_scores(s))),
    row("scores_of_batch_added", "summed_heads",
        f"The scores of all heads of its batch are added up before one softmax, whose weights each head gets. "
        f"{ONE_HEAD} Set each score (or clear the workspace) for each head.",
        lambda s: s.attend(_summed_scores(s, of_batch=True))),
]  # fmt: skip


def _summed_scores(s: Scene, of_batch: bool = False) -> Array:
    """Return the scores summed over all heads, (1, R, N). `of_batch`: True for the heads of each batch, (G, R, N)."""
    # The sum over the heads of a batch is one matrix product of rows of H * d channels.
    q, k = (
        each.swapaxes(1, 2).reshape(len(each), each.shape[2], -1).astype(np.float64)
        for each in (s.inputs["Q"][:, :, s.rows], s.inputs["K"])
    )
    by_batch = q @ k.mT
    if not of_batch:
        return by_batch.sum(0, keepdims=True)
    return by_batch[[(s.first + g) // s.shape["H"] for g in range(s.q.shape[0])]]


#: A softmax that is applied more often than this gives equal weights, within any error budget.
_MOST_TIMES = 12


def _softmax_times(scores: Array, times: int) -> Array:
    for _ in range(min(times, _MOST_TIMES)):
        scores = softmax(scores, 2)
    return scores


def _register_repeated_softmax() -> None:
    sources: dict[str, tuple[str, Callable[[Scene], Array]]] = {
        "last": ("the last head's scores", SOURCES["last"][1]),
        "sum": ("the sum of all heads' scores", _summed_scores),
    }
    for name, (source, scores) in sources.items():

        def in_all(s: Scene, scores: Callable[[Scene], Array] = scores) -> Array:
            return _softmax_times(scores(s), s.shape["B"] * s.shape["H"]) @ s.v

        def one_more_each(s: Scene, scores: Callable[[Scene], Array] = scores) -> Array:
            weights = np.broadcast_to(scores(s), (len(s.v), len(s.rows), s.keys))
            return np.concatenate(
                [_softmax_times(weights[g : g + 1], s.first + g + 1) @ s.v[g] for g in range(len(s.v))]
            )

        for predict, times in (
            (in_all, "once for each head, before"),
            (one_more_each, "once more for each head and"),
        ):
            words = (
                f"Every head's V is multiplied by weights of {source}: separate loops fill the workspace first, and "
                f"the softmax is applied to it repeatedly, {times} the product with V. {ONE_HEAD}"
            )
            SUSPECTS.append(Suspect("repeated_softmax", words, predict, (f"{predict.__name__} of {name}",)))


_register_repeated_softmax()


# ---- mistakes with a workspace that holds one row: rows get another row's weights


SUSPECTS += [
    row("last_rows_weights", "other_rows_weights",
        "Every row has the weights of the last row of its head: temp holds one row at a time, so put scores, softmax "
        "and product with V into the same pass of the loop over rows.",
        lambda s: np.broadcast_to(s.truth_all[:, -1:], s.truth.shape)),
    row("first_rows_weights", "other_rows_weights",
        "Every row has the weights of the first row of its head: are scores and softmax computed again for each row?",
        lambda s: np.broadcast_to(s.truth_all[:, :1], s.truth.shape)),
]  # fmt: skip
