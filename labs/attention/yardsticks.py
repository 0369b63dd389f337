"""Times of other kernels beside a part's reference on this machine, measured once and kept in the kit's cache.

All are called through runners, as a student's kernel is, in interleaved rounds; what a call that only hands over inputs
and output takes is subtracted from each. PyTorch, the expert and the plain best kernel get the threads of the part's
timed calls, but no more than there are cores. Every answer is held against the oracle.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from grader.backends.kinds import kind_of
from grader.core.errors import KitError, UsageError

if TYPE_CHECKING:
    from grader.assignment.records import Assignment, Part
    from grader.backends.torch.zygote import Zygote
    from grader.judge.oracle import Oracle
    from grader.runner.session import Session

#: From the slowest on, as a rule. Each is a field of `Standing`.
RUNGS = ("naive", "reference", "rows", "plain", "pytorch", "expert")
#: Part 3's reference with its last two loops exchanged: V is read row by row, and not one column after the other.
ROWS = "gpt149_ref_fused_rows"
ROUNDS = 5
CHECKED_ROWS = 24
PEAK_THOUSANDS = 4000
SHORTEST_SHARE = 0.2
"""What a kernel's own time must be of that of a call that does nothing: two near equals' difference says little."""


@dataclass(frozen=True)
class Yardsticks:
    """Times of other kernels over the reference's, and that of the multiply-adds alone; medians of paired rounds.

    `cores` are those whose peak is meant: 1 for a serial part.
    """

    against_reference: Mapping[str, float]
    peak_against_reference: float
    cores: int


def applies(part: Part) -> bool:
    """Return True if a part computes attention and has a reference that it is timed against."""
    return part.oracle == "attention" and part.reference is not None and part.time is not None


def measurable() -> bool:
    """Return True if this copy of the kit has the expert library or its sources: a handout may lack both."""
    from module_ref_stub import library

    try:
        library.sources_digest(library.EXPERT)
    except (OSError, KitError):
        return False
    return True


def kept(part: Part, shape: Mapping[str, int]) -> Yardsticks | None:
    """What was measured for this part, shape and machine by this kit, or None. Never raises, measures nothing."""
    if not applies(part):
        return None
    try:
        values = json.loads(_place(part, shape).read_text(encoding="utf-8"))
        known = Yardsticks(
            {rung: float(values["against_reference"][rung]) for rung in RUNGS},
            float(values["peak_against_reference"]),
            int(values["cores"]),
        )
    except (OSError, ValueError, KeyError, TypeError, KitError):
        return None
    positive = min(*known.against_reference.values(), known.peak_against_reference, known.cores) > 0
    return known if positive else None


def keep(part: Part, shape: Mapping[str, int], known: Yardsticks) -> None:
    """Keep them for later verdicts. Raises KitError when the cache cannot be written."""
    place = _place(part, shape)
    partial = place.with_suffix(f".{os.getpid()}.partial")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(asdict(known)), encoding="utf-8")
        partial.replace(place)
    except OSError as error:
        raise KitError(
            f"cannot write the cache {place.parent}: {error.strerror}; point GPT149_CACHE elsewhere"
        ) from error


def _place(part: Part, shape: Mapping[str, int]) -> Path:
    """The file for a part's reference, a shape, this machine and these libraries."""
    from grader.backends.native.toolchain import cache_root, torch_version
    from grader.core import machine
    from module_ref_stub import library

    facts = machine.describe()
    assert part.time is not None
    what = [
        facts["processor"],
        facts["cores"],
        part.reference,
        _threads(part, shape),
        machine.timing_cpus(part.time.threads, part.time.cores),
        torch_version(),
    ]
    what += [f"{name}={shape[name]}" for name in sorted(shape) if name != "threads"]
    what += [library.sources_digest(recipe) for recipe in (library.REFERENCE, library.EXPERT)]
    name = hashlib.sha256(json.dumps([str(item) for item in what]).encode()).hexdigest()[:24]
    return cache_root() / "frontier" / f"{name}.json"


def _threads(part: Part, shape: Mapping[str, int]) -> int:
    assert part.time is not None
    return part.time.threads or shape["threads"]


# ---- measuring


def measure(
    assignment: Assignment, part: Part, shape: Mapping[str, int], zygote: Zygote, rounds: int = ROUNDS
) -> Yardsticks:
    """Time all rungs in interleaved rounds.

    Raises UsageError when the shape is too small to time, and KitError when a library cannot be built, a kernel is
    wrong, or the machine too unsteady.
    """
    from grader.backends import binding
    from grader.core import machine
    from module_ref_stub import library

    assert part.time is not None
    threads, cpus = _threads(part, shape), machine.timing_cpus(part.time.threads, part.time.cores)
    cores = max(1, min(threads, len(cpus or machine.usable_cpus()) or os.cpu_count() or 1))
    inputs = assignment.typical_inputs(part, shape, 1)
    oracle = assignment.lab.oracle(part.oracle)
    check = _checker(oracle, inputs, shape)
    naive = next(each for each in assignment.parts if applies(each))
    with ExitStack() as stack:

        def runner(kind: Any, path: Path | str, count: int) -> Session:
            return stack.enter_context(
                zygote.spawn(kind, path, threads=count, cpus=cpus, call_timeout_s=600.0)
            )

        reference = runner("raw", library.library_path(), threads)
        expert = runner("raw", library.expert_path(), cores)
        calls: dict[str, Callable[[], float]] = {
            "reference": lambda: check(reference, binding.request(part, shape, inputs, reference=True)),
            "naive": lambda: check(reference, binding.request(naive, shape, inputs, reference=True)),
            "rows": lambda: check(reference, _request(ROWS, inputs, shape, {"zeros": [threads, shape["N"]]})),
            "plain": lambda: check(expert, _request("gpt149_plain_attention", inputs, shape)),
            "expert": lambda: check(expert, _request("gpt149_expert_attention", inputs, shape)),
            "nothing": lambda: check(expert, _request("gpt149_expert_nothing", inputs, shape), right=False),
            "peak": lambda: _peak_flops(expert),
        }
        torch_parts = [each for each in assignment.parts if not kind_of(each).is_students]
        if not torch_parts:
            raise KitError("the assignment has no part that is PyTorch's own: there is no ladder without it")
        torch_runner = runner("torch", "", cores)
        calls["pytorch"] = lambda: check(torch_runner, binding.request(torch_parts[0], shape, inputs))
        found: list[dict[str, float]] = []
        for k in range(rounds + 1):
            order = list(calls) if k % 2 else list(reversed(calls))
            found.append({name: calls[name]() for name in order})
    return _conclude(found[1:], oracle.flops(shape), shape, cores)


def _conclude(rounds: list[dict[str, float]], flops: int, shape: Mapping[str, int], cores: int) -> Yardsticks:
    """Ratios within each round, and their medians. Raises UsageError and KitError where these mean nothing."""
    # The fastest calls of each: a busy machine adds to a call, and says nothing of whether the size is too small.
    fastest = {name: min(one[name] for one in rounds) for name in (*RUNGS, "nothing")}
    if min(fastest[rung] for rung in RUNGS) < (1 + SHORTEST_SHARE) * fastest["nothing"]:
        raise UsageError(
            f"N = {shape['N']} is too small for a ladder: most of a call is handing over its inputs; give a larger -N"
        )

    def over_reference(name: str, one: dict[str, float]) -> float:
        net = flops / one["peak"] if name == "peak" else one[name] - one["nothing"]
        return net / (one["reference"] - one["nothing"])

    middle = {name: median(over_reference(name, one) for one in rounds) for name in (*RUNGS, "peak")}
    peak = middle.pop("peak")
    if not 0.0 < peak <= min(middle.values()):
        raise KitError(
            "a kernel came out faster than multiply-adds alone: this machine is too busy; try again, or more --rounds"
        )
    return Yardsticks(middle, peak, cores)


def _request(
    function: str, inputs: Mapping[str, Any], shape: Mapping[str, int], *workspace: Mapping[str, Any]
) -> Any:
    from grader.runner.calls import Request

    sizes = tuple(shape[name] for name in ("B", "H", "N", "d"))
    arguments = [*({"input": k} for k in range(3)), *workspace, *({"value": size} for size in sizes)]
    return Request(function, arguments, [inputs[name] for name in ("Q", "K", "V")], sizes)


def _checker(oracle: Oracle, inputs: Mapping[str, Any], shape: Mapping[str, int]) -> Callable[..., float]:
    """A function that calls, checks some rows of the answer, and gives the call's wall seconds."""
    from grader.core.draws import Draws
    from grader.judge.comparison import Expected, compare

    at, wanted = oracle.sample(inputs, shape, Draws(2), CHECKED_ROWS)
    expected = wanted if isinstance(wanted, Expected) else next(iter(wanted.values()))

    def call(session: Session, request: Any, *, right: bool = True) -> float:
        answer = _answer(session, request)
        if right and not compare(expected, answer.output[at]).ok:
            raise KitError(f"{request.function} gave a wrong result; please report this")
        return answer.wall_s

    return call


def _peak_flops(session: Session) -> float:
    from grader.runner.calls import Request

    answer = _answer(session, Request("gpt149_expert_peak", [{"value": PEAK_THOUSANDS}], [], (1,)))
    return float(answer.output[0]) / answer.wall_s


def _answer(session: Session, request: Any) -> Any:
    if session.load_error is not None:
        raise KitError(f"a library cannot be loaded: {session.load_error}")
    answer = session.call(request)
    if answer.status != "ok" or answer.output is None:
        raise KitError(f"{request.function} failed ({answer.status}): {answer.message or answer.signal_name}")
    return answer
