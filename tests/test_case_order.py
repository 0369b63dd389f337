"""Hidden cases are called after all calls whose results a student sees, so that no kernel can reveal a hidden size."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from building import binding, includes
from conftest import ASSIGNMENT, some, write

from grader.assignment.records import Case
from grader.backends.torch.zygote import Zygote
from grader.core.results import SubmissionResult
from grader.judge.bench import Bench, Options
from grader.judge.evaluate import evaluate
from grader.judge.events import Event, HiddenStarted, PartDone, PartStarted
from grader.runner.session import PipeSession
from labs.attention.threats.same_work import NAIVE

PUBLIC = Case("small", "random", 1, {"B": 1, "H": 1, "N": 8, "d": 4, "Br": 4, "Bc": 4})
OTHER = replace(PUBLIC, name="other", seed=2, shape={**PUBLIC.shape, "N": 6})
SLOTS, SLOT_MS = 16, 200
HIDDEN_SIZES = (3, 11, 14)
OPTIONS = Options(shape=PUBLIC.shape, profile=False, time_budget_s=1.0, seed=149)

#: An attack that passes a hidden size from part 1 to part 2 by the clock. Time is divided into slots, numbered modulo
#: SLOTS. Part 1 ends its hidden call in slot N, the case's size. Part 2 returns the slot in which its runner started.
CLOCK = f"""{includes("chrono cstdlib stdexcept unistd.h")}
static long slot() {{
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::milliseconds>(now).count() / {SLOT_MS} % {SLOTS};
}}
static const long started = slot();
"""
FIRST = NAIVE.replace("    return attention(", "    PART1\n    return attention(")
SECOND = FIRST[FIRST.index("torch::Tensor myNaiveAttention") :].replace("PART1", "PART2")
SOURCE = CLOCK + FIRST + SECOND.replace("myNaiveAttention", "myUnfusedAttentionBlocked")
SOURCE += binding("myNaiveAttention myUnfusedAttentionBlocked")
TELLS = f"if (N != 8 && N != 6) while (slot() != N % {SLOTS}) usleep(1000);"
READS = "return at::full({B, H, N, d}, float(1000 + started), at::kFloat);"


def judged(
    folder: Path, zygote: Zygote, events: list[Event] | None = None, *,
    size: int = 5, part1: str = "", part2: str = "", timing: bool = True,
) -> SubmissionResult:  # fmt: skip
    hidden = replace(PUBLIC, name="secret", seed=9, shape={**PUBLIC.shape, "N": size}, hidden=True)
    both = map(ASSIGNMENT.part, ("part1", "part2"))
    parts = tuple(replace(part, cases=(PUBLIC, OTHER, hidden)) for part in both)
    source = write(folder, SOURCE.replace("PART1", part1).replace("PART2", part2))
    hear = [].append if events is None else events.append
    course, options = replace(ASSIGNMENT, parts=parts), replace(OPTIONS, timing=timing)
    return evaluate(course, source, parts, options, hear, zygote=zygote)


def test_a_public_result_does_not_reveal_a_hidden_size(tmp_path: Path, zygote: Zygote) -> None:
    """If part 2 ran after part 1's hidden call, it would read all sizes. By chance it reads a size once in 16 calls."""
    read = []
    for size in HIDDEN_SIZES:
        first, second = judged(tmp_path, zygote, size=size, part1=TELLS, part2=READS, timing=False).parts
        assert (first.verdict, second.verdict) == ("pass", "wrong")
        read.append(second.diagnosis.actual - 1000)
    assert read != list(HIDDEN_SIZES)


@pytest.mark.parametrize(("part1", "part2", "verdicts"), some([
    ("", "", ("pass", "pass")),
    ("", READS, ("pass", "wrong")),
    ("", "if (N == 5) return V;", ("pass", "wrong")),
    ("if (N == 5) std::abort();", "", ("crash", "pass")),
    ('if (N == 8) throw std::runtime_error("no");', "", ("crash", "pass")),
], 2), ids=["right", "wrong on public cases", "wrong on the hidden one", "crash on the hidden one",
        "public crash"])  # fmt: skip
def test_no_runner_of_public_calls_starts_after_a_hidden_call(
    part1: str, part2: str, verdicts: tuple[str, str], tmp_path: Path, zygote: Zygote, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    started: list[PipeSession] = []
    calls: list[tuple[int, bool]] = []
    student, call = Bench.student, PipeSession.call

    def start(self: Bench, *arguments: Any, **how: Any) -> PipeSession:
        started.append(student(self, *arguments, **how))
        return started[-1]

    def send(self: PipeSession, request: Any, **how: Any) -> Any:
        if self in started:
            calls.append((started.index(self), bool(request.output_shape) and request.output_shape[2] == 5))
        return call(self, request, **how)

    monkeypatch.setattr(Bench, "student", start)
    monkeypatch.setattr(PipeSession, "call", send)
    assert tuple(one.verdict for one in judged(tmp_path, zygote, part1=part1, part2=part2).parts) == verdicts
    public, hidden = ([runner for runner, is_hidden in calls if is_hidden is kind] for kind in (False, True))
    assert max(public) < min(hidden) and calls == sorted(calls, key=lambda call: call[1])


def test_events_and_cases_keep_their_order_in_each_part(tmp_path: Path, zygote: Zygote) -> None:
    """The second part is wrong on its hidden case, so it is not timed."""
    events: list[Event] = []
    first, second = judged(tmp_path, zygote, events, part2="if (N == 5) return V;").parts
    known = (PartStarted, HiddenStarted, PartDone)
    emitted = [f"{type(event).__name__} {event.part.id}" for event in events if isinstance(event, known)]
    assert emitted[:4] == ["PartStarted part1", "PartStarted part2", "HiddenStarted part1", "PartDone part1"]
    assert emitted[4:] == ["HiddenStarted part2", "PartDone part2"]
    assert first.time is not None and second.time is None and (first.id, second.id) == ("part1", "part2")
    for part, oks in ((first, [True] * 3), (second, [True, True, False])):
        emitted = [(case.name, case.ok) for case in part.cases]
        assert emitted == [*zip(("small", "other", "secret"), oks, strict=True)]
