"""Suspected bugs of strides: d and N exchanged in the workspace's rows, or in the sizes of Q, K and V."""

from __future__ import annotations

from grader.core.arrays import Array, np
from grader.judge.diagnosis.suspect import Suspect, registering

from ..scene import Scene
from ..softmax import softmax

SUSPECTS: list[Suspect] = []
suspect = registering(SUSPECTS)

#: Of every suspect of this file.
CODE = "wrong_stride"
#: Rows that are replayed one after the other at most.
_MOST_REPLAYED = 300
_RIGHT = "A row of QK_t has N elements: element (i, j) lies at i * N + j."


@suspect(
    CODE,
    f"The product with V reads the weights with stride d in the place of N, at i * d + j. {_RIGHT}",
)
def weights_read_with_stride_d(s: Scene) -> Array | None:
    places = s.rows[:, None] * s.d + np.arange(s.keys)
    if s.all_weights is None or s.all_sums is None or int(places.max()) >= s.keys**2:
        return None
    return (s.all_weights / s.all_sums[:, :, None]).reshape(len(s.q), -1)[:, places] @ s.v


def _written(s: Scene, places: Array) -> tuple[Array, Array]:
    """The score that lies at each of `places` (R, N) after all were written with stride d, the last one that was:
    (G, R, N), and which places have one: (R, N)."""
    i = np.minimum(places // s.d, s.keys - 1)
    j = places - i * s.d
    has = j < s.keys
    j = np.minimum(j, s.keys - 1)
    return (s.q[:, i] * s.k[:, j]).sum(3), has


@suspect(CODE, f"The scores are written with stride d in the place of N, at i * d + j. {_RIGHT}")
def scores_written_with_stride_d(s: Scene) -> Array | None:
    if s.first or s.d >= s.keys:
        return None
    scores, has = _written(s, s.rows[:, None] * s.keys + np.arange(s.keys))
    left, out = np.zeros_like(scores[0]), []
    for g in range(len(scores)):
        # Where no score is written the weights of the head before are left.
        left = softmax(np.where(has, scores[g], left), 1)
        out.append(left @ s.v[g])
    return np.stack(out)


@suspect(
    CODE,
    f"QK_t is read and written with stride d in the place of N everywhere, at i * d + j. {_RIGHT}",
)
def stride_d_everywhere(s: Scene) -> Array | None:
    if s.d >= s.keys or s.keys > _MOST_REPLAYED:
        return None
    held, _ = _written(s, np.arange((s.keys - 1) * s.d + s.keys)[None])
    held = held[:, 0]
    for at in range(0, s.keys * s.d, s.d):
        row = held[:, at : at + s.keys]
        row[:] = softmax(row, 1)
    return held[:, s.rows[:, None] * s.d + np.arange(s.keys)] @ s.v


def _register_exchanged_sizes() -> None:
    """One suspect for each input that is read with the sizes (H, d, N) in the place of (H, N, d)."""
    for name in "QKV":

        def predict(s: Scene, name: str = name) -> Array | None:
            if s.d == s.keys:
                return None
            flat = s.inputs[name].reshape(-1)
            head = s.first + np.arange(len(s.q))[:, None, None]
            places = (head * s.d + np.arange(s.keys)[:, None]) * s.keys + np.arange(s.d)
            # What lies behind the tensor is not known.
            known = flat[np.minimum(places, len(flat) - 1)].astype(np.float64)
            values = np.where(places < len(flat), known, np.nan)
            read = {"Q": s.q, "K": s.k, "V": s.v, name: values}
            return s.attend(read["Q"][:, s.rows] @ read["K"].mT, read["V"])

        words = (
            f"{name} is read with d and N exchanged, at ((b * H + h) * d + j) * N + k, which leaves the tensor for the "
            "last heads. Its sizes are (H, N, d): element (b, h, j, k) lies at ((b * H + h) * N + j) * d + k."
        )
        SUSPECTS.append(Suspect(CODE, words, predict, (f"{name} with d and N exchanged",)))


_register_exchanged_sizes()
