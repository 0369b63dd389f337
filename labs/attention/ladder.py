"""The ladder (command `frontier`): compares a kernel's time with the times of other kernels and the machine's limit.

The other kernels are called rungs: naive, the reference, a variant of the reference, PyTorch, and two fast kernels. The
rank of a kernel (`Standing`) is its speed relative to each rung and to the peak, the speed of multiply-adds alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from grader.assignment.options import chosen_options
from grader.backends.kinds import kind_of
from grader.core import commandline, plainfile
from grader.core.commandline import Parser, source_file, whole_number
from grader.core.errors import EXIT_PASS, EXIT_SUBMISSION, KitError, UsageError, explained
from grader.core.places import PUBLIC_CONFIG, STUDENT_COMMAND, STUDENT_PROGRAM
from grader.core.results import Standing, SubmissionResult

if TYPE_CHECKING:
    from grader.assignment.records import Assignment, Part
    from grader.backends.torch.zygote import Zygote
    from grader.explain.oracle import Oracle
    from grader.runner.session import Session

#: The other kernels, usually from slowest to fastest, with their printed names. Each key is a field of `Standing`.
WORDS = {
    "naive": "naive",
    "reference": "reference",
    "rows": "fused, V row by row",
    "plain": "plain best C++",
    "pytorch": "PyTorch",
    "expert": "expert",
}
RUNGS = tuple(WORDS)
#: Function of the rung "rows": part 3's reference with its last two loops exchanged, so that it reads V row by row.
ROWS = "gpt149_ref_fused_rows"
ROUNDS = 5
CHECKED_ROWS = 24
PEAK_THOUSANDS = 4000
SHORTEST_SHARE = 0.2
"""A kernel's time must exceed an empty call's time by at least this share. A smaller difference is mostly noise."""


@dataclass(frozen=True)
class Yardsticks:
    """Times of the rungs, by name, and the time of the necessary multiply-adds at peak speed on `cores` cores.

    Each is the median over rounds of a time divided by the reference's time in the same round. `cores` is 1 for a
    serial part.
    """

    against_reference: Mapping[str, float]
    peak_against_reference: float
    cores: int


def applies(part: Part) -> bool:
    """Return True if a part computes attention and is timed with a reference."""
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
    """Return the stored measurement for this part, shape and machine; None if it does not exist or is damaged."""
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
    """Store a measurement in the cache for later verdicts. Raises KitError when the cache cannot be written."""
    place = _place(part, shape)
    with explained(f"cannot write the cache {place.parent}", KitError, "point GPT149_CACHE elsewhere"):
        place.parent.mkdir(parents=True, exist_ok=True)
        plainfile.write(place, [json.dumps(asdict(known))])


def _place(part: Part, shape: Mapping[str, int]) -> Path:
    """Return the cache file of a measurement. Its name is a digest of reference, shape, machine and libraries."""
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

    Raises UsageError when the shape is too small to time. Raises KitError when a library cannot be built, a kernel is
    wrong, or the machine is too unsteady.
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
            raise KitError("the assignment has no part with a torch_function, which a ladder needs")
        torch_runner = runner("torch", "", cores)
        calls["pytorch"] = lambda: check(torch_runner, binding.request(torch_parts[0], shape, inputs))
        found: list[dict[str, float]] = []
        for k in range(rounds + 1):
            order = list(calls) if k % 2 else list(reversed(calls))
            found.append({name: calls[name]() for name in order})
    return _conclude(found[1:], oracle.flops(shape), shape, cores)


def _conclude(rounds: list[dict[str, float]], flops: int, shape: Mapping[str, int], cores: int) -> Yardsticks:
    """Return the median over rounds of each time, divided by the reference's time in the same round.

    `rounds`: for each round the seconds of each rung and of an empty call ("nothing"), and "peak" in FLOP/s. Raises
    UsageError if the size is too small to time, KitError if the machine is too busy.
    """
    # Other load on the machine only makes calls longer, so use the fastest call of each kernel for this check.
    fastest = {name: min(one[name] for one in rounds) for name in (*RUNGS, "nothing")}
    if min(fastest[rung] for rung in RUNGS) < (1 + SHORTEST_SHARE) * fastest["nothing"]:
        raise UsageError(
            f"N = {shape['N']} is too small for a ladder: passing inputs takes most of a call's time; give a larger -N"
        )

    def over_reference(name: str, one: dict[str, float]) -> float:
        net = flops / one["peak"] if name == "peak" else one[name] - one["nothing"]
        return net / (one["reference"] - one["nothing"])

    middle = {name: median(over_reference(name, one) for one in rounds) for name in (*RUNGS, "peak")}
    peak = middle.pop("peak")
    if not 0.0 < peak <= min(middle.values()):
        raise KitError(
            "a kernel was timed faster than multiply-adds alone: the machine is too busy; try again, with more --rounds"
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
    """Return a function that calls a kernel, checks some rows of its output, and returns the call's wall time in s."""
    from grader.core.draws import Draws
    from grader.explain.comparison import Expected, compare

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


def stand(ratio: float, known: Yardsticks) -> Standing:
    """Return the rank of a kernel that takes `ratio` times as long as the part's reference (see the module's text)."""
    times = {rung: known.against_reference[rung] / ratio for rung in RUNGS}
    return Standing(**times, peak_percent=100 * known.peak_against_reference / ratio, cores=known.cores)


def standing(part: Part, shape: Mapping[str, int], ratio: float) -> Standing | None:
    """Return the rank of a part's kernel; None if `gpt149.py frontier` has not measured the rungs on this machine."""
    known = kept(part, shape)
    return stand(ratio, known) if known else None


#: The rungs shown by `line`; `table` shows all of them.
LINE_RUNGS = ("naive", "reference", "pytorch", "expert")


def line(place: Standing) -> str:
    """Format a rank as `12.3× naive · 1.9× reference · 0.41× PyTorch · ...`: 12.3 times as fast as naive, and so on."""
    parts = [f"{_times(getattr(place, rung))}× {WORDS[rung]}" for rung in LINE_RUNGS]
    return " · ".join([*parts, f"{_percent(place.peak_percent)} % of {_machine(place.cores)} peak"])


def shares(place: Standing) -> dict[str, float]:
    """Return the speed of each rung in per cent of the machine's peak, by the rung's printed name."""
    return {
        WORDS[rung]: place.peak_percent / getattr(place, rung) for rung in RUNGS if getattr(place, rung) > 0
    }


def table(place: Standing, name: str) -> str:
    """Return a table of all rungs and of the kernel, which is listed as `name`, the fastest first."""
    rows = [(getattr(place, rung), WORDS[rung]) for rung in RUNGS]
    rows += [
        (1.0, f"{name}  <---"),
        (place.peak_percent / 100, f"nothing but {_machine(place.cores)} multiply-adds"),
    ]
    lines = [f"{'time / yours':>12}  {'% of peak':>9}  kernel"]
    for times, word in sorted(rows):
        lines.append(f"{_times(times):>12}  {_percent(place.peak_percent / times):>9}  {word}")
    return "\n".join(lines)


def hint(assignment: Assignment, result: SubmissionResult, sizes: Sequence[str] = ()) -> str:
    """Return a sentence with the command that measures the ladder for the last timed part without a rank.

    Return "" if all timed parts have a rank, or if no ladder can be measured. `sizes` are the size options of the run,
    which the command repeats.
    """
    could = {part.id for part in assignment.parts if applies(part)}
    unplaced = [part.id for part in result.parts if part.id in could and part.time and part.frontier is None]
    if not unplaced or not measurable():
        return ""
    command = " ".join([f"{STUDENT_COMMAND} frontier", unplaced[-1], *sizes])
    return f"\nHow far is this from the machine's limit? `{command}` measures it, also for later runs."


def _machine(cores: int) -> str:
    return "one core's" if cores == 1 else f"these {cores} cores'"


def _times(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _percent(value: float) -> str:
    return f"{value:.0f}" if value >= 9.5 else f"{value:.2g}"


# ---- `python gpt149.py frontier PART`: times the student's kernel and the rungs, each relative to the reference.
# The rungs' ratios to the reference depend on machine, shape and threads, and are cached. So a later verdict computes
# the student's rank from the student's ratio to the reference, without timing the rungs again.

TIME_BUDGET_S = 15.0
MOST_ROUNDS = 1000


def parser(arguments: list[str]) -> Parser:
    parse = Parser(
        prog=f"{STUDENT_PROGRAM} frontier",
        description="Compare your kernel with the naive one, the reference, the best kernels and the machine's limit.",
        epilog="The other kernels' times are stored: later verdicts on this machine and shape show your kernel's rank.",
    )
    parse.add_argument("part", metavar="PART", help="part1 to part4")
    commandline.add_sizes(parse, chosen_options(arguments))
    parse.path("--module", "the file to judge, or its folder (module.cpp)", "PATH")
    parse.add_argument("--rounds", metavar="n", default="7", help="calls of each kernel (default: 7)")
    parse.path("--config", "another assignment file (YAML)", default=PUBLIC_CONFIG)
    return parse


def main(arguments: list[str]) -> int:
    """Measure and print the ladder. Return 0, or 1 if the kernel is wrong or failed. Raises as `measure` does."""
    from grader.assignment.loading import load

    given = parser(arguments).parse_args(arguments)
    assignment = load(given.config)
    parts = {part.id: part for part in assignment.parts if applies(part)}
    if given.part not in parts:
        raise UsageError(f"'{given.part}' has no ladder of fast kernels: choose {', '.join(parts)}")
    part = parts[given.part]
    rounds = whole_number(given.rounds, "--rounds", 1, MOST_ROUNDS)
    chosen = commandline.sizes(given, assignment.size_options, assignment.minima, assignment.maxima)
    source = source_file(given.module, assignment.source)

    from grader.backends.torch.zygote import Zygote
    from grader.judge.bench import Options
    from grader.judge.evaluate import evaluate
    from grader.sandbox import of_file

    shape = {**assignment.defaults, **chosen}
    options = Options(chosen, time_budget_s=TIME_BUDGET_S, profile=False)
    with Zygote(sandbox=of_file(source)) as zygote:
        result = evaluate(assignment, source, (part,), options, zygote=zygote).parts[0]
        if sys.stderr.isatty():
            print(f"timing {len(RUNGS)} other kernels, {rounds} rounds ...", file=sys.stderr)
        known = measure(assignment, part, shape, zygote, rounds)
    keep(part, shape, known)
    sizes = " ".join(f"{name}={shape[name]}" for name in ("B", "H", "N", "d"))
    print(f"{part.id}: {part.title}, {sizes}, {known.cores} core{'s' if known.cores > 1 else ''}\n")
    if result.time is None:
        why = f": {result.diagnosis.message}" if result.diagnosis else ""
        print(f"Your kernel is not on the ladder yet: its verdict is '{result.verdict}'{why}\n")
        print(table(stand(1.0, known), "(the reference, in place of your kernel)"))
        return EXIT_SUBMISSION
    standing = stand(result.time.ratio, known)
    print(table(standing, "yours"))
    print(f"\n{line(standing)}")
    return EXIT_PASS
