"""Records of a class: the ledger, the lock of the machine, progress, and regrading after a change."""

import io
import json
import math
import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path

import pytest
from classes import acting_class
from classes.acting_class import AT, HANG_S, RUN, SMALL, Class, holding, record
from conftest import ASSIGNMENT, ROOT, insert_at_start, keeping, refused, results_alone, write
from process_tree import wait_for

from grader import score
from grader.__main__ import to_resume
from grader.assignment import prints
from grader.assignment.loading import load
from grader.core import errors, typedjson
from grader.core.results import CaseResult, Diagnosis, Flag, PartResult, SubmissionResult, Timing
from grader.judge import regrade
from grader.judge.regrade import Rest
from grader.report import result_json
from grader.report.progress import Progress, duration
from grader.staff.classroom import ledger
from grader.staff.classroom.worker import Slot, need_of


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_a_full_disk_is_reported_with_what_to_do(tmp_path: Path) -> None:
    with open("/dev/full", "wb", buffering=0) as disk:
        book = ledger.Ledger(tmp_path, disk.fileno(), tmp_path)
        finish = partial(book.finish, record("ada"), {"points": 1.0})
        for write in (partial(book.open_run, RUN, []), finish):
            refused("cannot write in .*No space left.*--resume", write, of=errors.KitError)


def test_finish_puts_result_and_line_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is on the disk before its line, so after a power cut no line refers to an empty result."""
    synced: list[os.stat_result] = []
    with ledger.hold(tmp_path) as book:
        book.open_run(RUN, ())
        monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor)))
        book.finish(record("ada"), {"points": 1.0})
        size_bytes = {found.st_ino: found.st_size for found in synced}
        for path in (tmp_path / ledger.LEDGER, tmp_path / "ada" / ledger.RESULT):
            assert size_bytes[path.stat().st_ino] == path.stat().st_size > 0
        assert (tmp_path / "ada").stat().st_ino in size_bytes


def test_the_ledger_is_read_back_and_the_last_record_counts(tmp_path: Path) -> None:
    assert ledger.read(tmp_path) == ledger.History()
    roster = (ledger.Entry("ada", "Ada"), ledger.Entry("bob", "=1+1", ("b@x.org",), AT, True))
    with ledger.hold(tmp_path / "new") as book:
        book.open_run(RUN, roster)
        for points in (1.0, 2.0):
            book.finish(record("ada", points), {"points": points})
    assert ledger.read(tmp_path / "new") == ledger.History((RUN,), roster, {"ada": record("ada", 2.0)})
    assert json.loads((tmp_path / "new" / "ada" / ledger.RESULT).read_text()) == {"points": 2.0}


def test_torn_last_line_is_ignored_and_cut_off_and_any_other_is_reported(tmp_path: Path) -> None:
    with ledger.hold(tmp_path) as book:
        book.open_run(RUN, ())
        book.finish(record("ada"), {})
    path = tmp_path / ledger.LEDGER
    whole = path.read_bytes()
    for length in (1, 17, 80):
        path.write_bytes(whole + whole[-120:][:length].replace(b"\n", b" "))
        assert set(ledger.read(tmp_path).records) == {"ada"}
    with ledger.hold(tmp_path) as book:
        assert path.read_bytes() == whole
        book.finish(record("bob"), {})
    assert set(ledger.read(tmp_path).records) == {"ada", "bob"}
    path.write_bytes(whole + b"{torn}\n" + whole)
    refused(r"ledger\.jsonl:4: ", ledger.read, tmp_path, of=errors.KitError)


def test_one_writer_at_a_time_and_a_dead_one_leaves_no_lock_and_no_scratch(tmp_path: Path) -> None:
    with holding(acting_class.HOLDS_LEDGER, tmp_path) as (holder, said):
        in_use = f"in use by another run .process {holder.pid}."
        with pytest.raises(errors.UsageError, match=in_use), ledger.hold(tmp_path):
            pass
    assert Path(said).is_dir()
    with ledger.hold(tmp_path):
        assert not Path(said).exists()


def test_a_timing_has_the_lock_alone_and_does_not_starve(tmp_path: Path) -> None:
    """Four workers share the lock in turn, so it is never free. A timing needs the lock alone, and must get it."""
    sharing, entries = set[int](), Counter[int]()
    most, over = 2000, threading.Event()

    def share(k: int) -> None:
        slot = Slot(tmp_path)
        while not over.is_set() and entries[k] < most:
            with slot.shared():
                sharing.add(k)
                entries[k] += 1
                time.sleep(0.003)
                sharing.discard(k)

    alone, seen = Slot(tmp_path), []
    with ThreadPoolExecutor(4) as readers:
        readers.map(share, range(4))
        assert wait_for(lambda: len(entries) == 4)
        for _ in range(10):
            with alone.shared(), alone.exclusive():
                seen.append(set(sharing))
                time.sleep(0.005)
                seen.append(set(sharing))
        assert max(entries.values()) < most, "the timings starved"
        over.set()
    assert seen == [set()] * 20, "another worker ran during a timing"


def test_a_worker_gives_way_to_a_timing_before_its_next_runner(tmp_path: Path) -> None:
    """`give_way` returns when the other worker's timing has ended. A worker does not wait for its own timing."""
    order: list[str] = []
    waits = threading.Event()

    def time_one() -> None:
        alone = Slot(tmp_path, [])
        with alone.shared():
            waits.set()
            with alone.hold("machine"):
                alone.give_way()
                order.append("timing")
                time.sleep(0.05)
                order.append("timed")

    slot = Slot(tmp_path)
    with slot.shared():
        timing = threading.Thread(target=time_one, daemon=True)
        timing.start()
        assert waits.wait(HANG_S)
        while not order:
            slot.give_way()
        order.append("next runner")
    timing.join(HANG_S)
    assert order == ["timing", "timed", "next runner"]


def test_killed_process_gives_the_machine_back(tmp_path: Path) -> None:
    entered = threading.Event()

    def enter() -> None:
        with Slot(tmp_path).shared():
            entered.set()

    with holding(acting_class.HOLDS_MACHINE, tmp_path) as (_, said):
        assert said == "alone"
        threading.Thread(target=enter, daemon=True).start()
        assert not entered.wait(0.2)
    assert entered.wait(HANG_S)


def test_timings_on_cores_run_in_parallel_but_not_beside_one_of_the_machine(tmp_path: Path) -> None:
    """Run six workers on two cores. Each measures on one core, then on the whole machine, then on one core again."""
    held = Counter({"core 3": 0, "core 5": 0, "machine": 0})
    seen: list[dict[str, int]] = []
    all_share, both_hold = threading.Barrier(6), threading.Barrier(2)

    def work(_: int) -> None:
        slot = Slot(tmp_path, [3, 5])
        for step, need in enumerate(("core", "machine", "core")):
            with slot.shared():
                if step == 0:
                    all_share.wait(HANG_S)
                with slot.hold(need) as (resource, cpus):  # type: ignore[arg-type]
                    assert cpus == (None if need == "machine" else [int(resource.split()[1])])
                    held[resource] += 1
                    if step == 0:
                        both_hold.wait(HANG_S)  # passes only if two workers hold a core at the same time
                    seen.append({name: count for name, count in held.items() if count})
                    time.sleep(0.01)
                    held[resource] -= 1

    with ThreadPoolExecutor(6) as workers:
        list(workers.map(work, range(6)))
    assert len(seen) == 18 and all(max(one.values()) == 1 for one in seen), "two held one resource"
    assert all(len(one) == 1 for one in seen if "machine" in one), "another timing ran, too"
    assert set().union(*seen) == {"core 3", "core 5", "machine"}


def test_each_timing_locks_the_machine_if_asked_to_or_without_a_core_to_lock(tmp_path: Path) -> None:
    for slot in (Slot(tmp_path, [1], alone=True), Slot(tmp_path, [])):
        with slot.shared(), slot.hold("core") as held:
            assert held == ("machine", None)
    needs = {"part1": "core", "part2": "core", "part3": "machine"}
    assert {name: need_of(ASSIGNMENT.part(name)) for name in needs} == needs
    assert {need_of(part) for part in load(ROOT / "labs/gpu/assignment.yaml").parts} == {"machine"}


def test_plain_progress_is_one_line_for_each_with_verdicts_and_time_left() -> None:
    clock = iter(float(second) for second in range(0, 1000, 10))
    stream = io.StringIO()
    with Progress(3, stream, lambda: next(clock)) as progress:
        progress.phase("ada", "building")
        progress.finished("ada", {"part1": "pass", "part2": "slow", "part3": "pass"}, "25 of 30 points")
        progress.again("bob\033[2J", "its worker died")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "[1/3] ada: 2 pass, 1 slow; 25 of 30 points (10.0 s; 20 s left)"
    assert lines[1] == "bob?[2J: its worker died; it is graded once more"
    progress = Progress(12, stream, iter([0.0, 0.0, 0.0, 60.0, 60.0, 60.0]).__next__)
    for name in ("ada", "bob", "eve"):
        progress.phase(name, "building")
    progress.finished("ada", {}, "")
    assert "(60.0 s; 3 min left)" in stream.getvalue(), "11 of 60 s, two of which are done, by three at once"
    assert [duration(s) for s in (0, 89, 120, 3900)] == ["0 s", "89 s", "2 min", "1 h 05 min"]


def test_live_progress_shows_who_is_running_and_takes_names_literally() -> None:
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    with Progress(3, stream) as progress:
        progress.phase("[bold]ada[/bold]", "part1: timing")
        progress.finished("bob", {}, "", "a broken archive: hand it in again\nmore")
        progress.live.refresh()
    counts = ("1 of 3 done", "1 without a result", "[1/3] bob: a broken archive (")
    assert all(text in stream.getvalue() for text in ("[bold]ada[/bold]", "part1: timing", *counts))


def test_the_command_to_resume_keeps_the_options() -> None:
    asked = ["run", "my class", "--out", "r", "--config", "c.yaml", "--resume", "--again", "--seed", "7"]
    assert to_resume(asked) == "python -m grader run 'my class' --out r --config c.yaml --seed 7 --resume"


TIME = Timing(1.0, 1.0, 1.0, (0.9, 1.1), 0.98, 8, "cpu", 1.1, "pass", 1.0, fit=True, flags=("undecided",))


def case(name: str, ok: bool = True) -> CaseResult:
    return CaseResult(name, {}, ok, 0.0, None if ok else Diagnosis("places", "wrong there"))


def result(verdict: str, *cases: CaseResult, **more: object) -> SubmissionResult:
    part = PartResult("p", "P", verdict, 10.0, cases=cases, time=TIME, **more)  # type: ignore[arg-type]
    return SubmissionResult("ada", "", "small", {}, {}, {}, (part,), max_points=10.0)


OLD = prints.PartPrints("calls", "times", {"a": "1", "b": "1"})
NEW, FEWER = {"cases": {**OLD.cases, "c": "1"}}, {"cases": {"a": "1"}}
CHANGES = {
    "nothing": ({}, {"pass": {}}),
    "calls": ({"calling": "other"}, {"pass": None}),
    "times": ({"timing": "other"}, {"pass": None, "wrong": {}}),
    "a case more": (NEW, {"pass": {"p": ("c",)}, "wrong": {"p": ("c",)}, "crash": {}}),
    "another case": ({"cases": {**OLD.cases, "b": "2"}}, {"slow": {"p": ("b",)}}),
    "a case less": (FEWER, {"pass": {}, "wrong": None, "timeout": None, "compile_error": {}}),
}
TOO_DEEP = ("[" * 33 + "]" * 33, '["\\\\",' + "[" * 32 + "]" * 32 + "]")
IN_TEXTS = ('["' + "[" * 99 + '"]', '["\\"' + "[" * 99 + '"]', '["\\\\\\"' + "{" * 99 + '\\\\"]')
SHALLOW = ("[" * 32 + "]" * 32, *IN_TEXTS, '{"a": "]", "b": ' + "[" * 31 + "]" * 31 + "}")


@pytest.mark.parametrize(("change", "left_by_verdict"), CHANGES.values(), ids=CHANGES)
def test_the_parts_to_regrade_depend_on_the_change(change: dict, left_by_verdict: dict) -> None:
    now = replace(OLD, **change)
    for verdict, left in left_by_verdict.items():
        before = result(verdict, case("a"), case("b", verdict != "wrong"))
        assert regrade.rest({"p": OLD}, {"p": now}, before) == (None if left is None else Rest(left)), verdict
        # Only the part whose digest changed is judged again; the part "q" keeps its result.
        other = replace(before.parts[0], id="q", verdict="pass", cases=(case("a"), case("b")))
        two = replace(before, parts=(*before.parts, other))
        beside = regrade.rest({"p": OLD, "q": OLD}, {"p": now, "q": OLD}, two)
        assert beside == Rest({"p": ()} if left is None else left), verdict
        assert regrade.rest({}, {"p": now}, before) is None


def test_points_titles_and_weights_decide_no_verdict(tmp_path: Path) -> None:
    text = SMALL.read_text()
    changes = {"points: 10": "points: 11", "points_if_slow: 8": "points_if_slow: 2"}
    changes |= {"title: Fused Attention": "title: Fused", "seed: 2,": "seed: 2, weight: 7,"}
    changes["schema_version: 1"] = "schema_version: 1\nlate: {per_day: {points: 3}}"
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "a.yaml").write_text(text)
    before = prints.of_parts(load(SMALL))
    assert prints.of_parts(load(tmp_path / "a.yaml")) == before
    sized = (("d: 8, Br", "d: 9, Br"), ("call_s: 1,", "call_s: 2,"))
    for old, new in (*sized, ("schema_version: 1", "schema_version: 1\npackages: [einops]")):
        (tmp_path / "b.yaml").write_text(text.replace(old, new))
        changed = prints.of_parts(load(tmp_path / "b.yaml"))
        assert all(changed[name].calling != before[name].calling for name in before)
    (tmp_path / "c.yaml").write_text(text.replace("seed: 1}", "seed: 5}"))
    for name, now in prints.of_parts(load(tmp_path / "c.yaml")).items():
        assert now.calling == before[name].calling
        assert {case for case, its in now.cases.items() if its != before[name].cases[case]} == {"random"}


def test_a_wrong_new_case_removes_the_time_and_its_flags() -> None:
    assignment = load(SMALL)
    flags = (Flag("undecided"), Flag("odd", "look", "review"))
    old = result("pass", case("random"), flags=flags)
    old = replace(old, parts=tuple(replace(old.parts[0], id=one) for one in ("part1", "part3")), flags=flags)
    wrong = replace(old.parts[1], verdict="wrong", cases=(case("ragged", False),), time=None, flags=())
    right = replace(wrong, verdict="pass", cases=(case("ragged"),))
    left = Rest({"part3": ("ragged",)})
    kept = regrade.joined(assignment, old, replace(old, parts=(right,), flags=()), left)
    assert kept.parts[1].time == TIME and [c.name for c in kept.parts[1].cases] == ["random", "ragged"]
    assert kept.parts[0].max_points == 10 and kept.parts[1].max_points == 20 == kept.max_points - 10
    found = regrade.joined(assignment, old, replace(old, parts=(wrong,), flags=()), left).parts[1]
    assert (found.verdict, found.time, [flag.code for flag in found.flags]) == ("wrong", None, ["odd"])
    crashed = replace(right, verdict="crash", cases=(), diagnosis=Diagnosis("crash", "it crashed"))
    found = regrade.joined(assignment, old, replace(old, parts=(crashed,), flags=()), left).parts[1]
    assert found.verdict == "crash" and found.diagnosis == crashed.diagnosis and found.time is None


def test_judging_only_new_cases_gives_the_same_result_as_judging_all(master: str, tmp_path: Path) -> None:
    """Grade a real file that is right on public cases, and wrong on a hidden case that the test adds later."""
    hidden, public = tmp_path / "hidden.yaml", tmp_path / "public.yaml"
    extra = "{name: many, distribution: random, seed: 9, shape: {B: 1, H: 3, N: 17, d: 4}}"
    public.write_text(f"extends: {SMALL}\nseed: 3\n")
    hidden.write_text(f"{public.read_text()}hidden_cases:\n  - {extra}\n")
    kept = keeping(master, "myNaiveAttention", "myFusedAttention")
    source = write(tmp_path, insert_at_start(kept, "myFusedAttention", "H -= H > 2;"))
    before_assignment, assignment = load(public), load(hidden)
    before = results_alone(before_assignment, source, before_assignment.select("all"))
    assert [part.verdict for part in before.parts] == ["pass", "pass"]
    left = regrade.rest(prints.of_parts(before_assignment), prints.of_parts(assignment), before)
    assert left == Rest({"part1": ("many",), "part3": ("many",)})
    called = []

    def judged(parts: tuple) -> SubmissionResult:
        called.extend(case.name for part in parts for case in part.cases)
        return results_alone(assignment, source, parts)

    found = regrade.judge_rest(assignment, before, left, judged)
    whole = results_alone(assignment, source, assignment.select("all"))
    assert called == ["many", "many"] and [part.verdict for part in whole.parts] == ["pass", "wrong"]
    decided = attrgetter("verdict", "cases", "diagnosis", "flags")
    assert [decided(part) for part in found.parts] == [decided(part) for part in whole.parts]


@pytest.mark.full
def test_a_changed_rubric_starts_no_worker_and_only_a_new_case_is_called(acting: Class) -> None:
    acting.add_all({"ada": "", "bob": "slow", "eve": "wrong"})
    (acting.folder / "broken.zip").write_bytes(b"PK\3\4 no more than that")
    acting.grade(seed=1)
    text = acting.config.read_text().replace("points_if_slow: 8", "points_if_slow: 3")
    late = "late: {due: 2020-01-01T00:00:00Z, per_day: {points: 1}, cap_days: 2, after_cap: max_penalty}\n"
    acting.config.write_text(text.replace("points: 10", "points: 40") + late)
    unstartable = ["-c", "import sys; sys.exit('a worker was started')"]
    assert "3 get new points without being judged again" in acting.grade(command=unstartable, file_times=True)
    assert acting.totals() == {"ada": "58", "bob": "41", "eve": "0", "broken": "0"}
    stored = acting.result("bob")
    assert [part["points"] for part in stored["parts"]] == [40, 3] and stored["max_points"] == 60
    assert ledger.read(acting.out).records["bob"].points == 43
    assert Counter(acting.graded()) == {"ada": 1, "bob": 1, "eve": 1}
    assert "4 were finished before and stay as they are" in acting.grade(command=unstartable)
    more = "cases:\n  - {name: another, distribution: random, seed: 3}\n"
    acting.config.write_text(acting.config.read_text().replace("cases:\n", more))
    assert "3 are graded again (assignment changed: only the cases another): ada, bob, eve" in acting.grade()
    called = (acting.state / "called").read_text().splitlines()
    again = sorted(line.split()[0] for line in called if line.endswith("part1:another part3:another"))
    assert again == ["ada", "bob", "eve"] and Counter(acting.graded()) == {"ada": 2, "bob": 2, "eve": 2}


def test_a_result_is_written_as_json_itself_writes_it() -> None:
    odd = '\u00e9\n"\\ \U0001f600 \ud800'
    found = replace(result("pass", case("a"), case("b", False)), flags=(Flag("odd", odd, "review"),))
    unmeasured = replace(found.parts[0], time=replace(TIME, ratio=math.inf, self_ratio=math.nan), cases=())
    found = replace(found, parts=(*found.parts, unmeasured))
    values, text = result_json.dumped(found, score.score(load(SMALL), found))
    assert text == json.dumps(values, indent=2, allow_nan=False) + "\n"
    assert values["parts"][1]["time"]["ratio"] is None and values["flags"][0]["message"] == odd
    assert list(values["parts"][0])[:2] == ["id", "title"]


@pytest.mark.parametrize("text", [*TOO_DEEP, *SHALLOW])
def test_depth_is_counted_outside_of_texts(text: str) -> None:
    with pytest.raises(ValueError, match="deep") if text in TOO_DEEP else nullcontext():
        assert typedjson.parse(text.encode()) == json.loads(text)
