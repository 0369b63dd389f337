"""The record of a class, its timings and its display: the ledger, the machine's lock, the progress."""

import io
import json
import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from classes.acting_class import HANG_S
from classes.ledgers import AT, HOLDS_LEDGER, HOLDS_MACHINE, holding, record, some_run
from conftest import ASSIGNMENT, ROOT, refused

from grader.__main__ import to_resume
from grader.assignment.loading import load
from grader.core.errors import KitError, UsageError
from grader.report.progress import Progress, duration
from grader.staff.classroom import ledger
from grader.staff.classroom.ledger import Entry
from grader.staff.classroom.slot import Slot, need_of


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full is Linux's")
def test_a_full_disk_is_reported_with_what_to_do(tmp_path: Path) -> None:
    with open("/dev/full", "wb", buffering=0) as disk:
        book = ledger.Ledger(tmp_path, disk.fileno(), tmp_path)
        finish = partial(book.finish, record("ada"), {"points": 1.0})
        for write in (partial(book.open_run, some_run(), []), finish):
            refused("cannot write in .*No space left.*--resume", write, of=KitError)


def test_finish_puts_result_and_line_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut no line of the ledger refers to an empty result."""
    synced: list[os.stat_result] = []
    with ledger.hold(tmp_path) as book:
        book.open_run(some_run(), ())
        monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor)))
        book.finish(record("ada"), {"points": 1.0})
        size_bytes = {found.st_ino: found.st_size for found in synced}
        for path in (tmp_path / ledger.LEDGER, tmp_path / "ada" / ledger.RESULT):
            assert size_bytes[path.stat().st_ino] == path.stat().st_size > 0
        assert (tmp_path / "ada").stat().st_ino in size_bytes


def test_ledger_gives_back_what_was_written_and_the_last_record_counts(tmp_path: Path) -> None:
    assert ledger.read(tmp_path) == ledger.History()
    entries = (Entry("ada", "Ada"), Entry("bob", "=1+1", ("b@x.org",), AT, True))
    with ledger.hold(tmp_path / "new") as book:
        book.open_run(some_run(), entries)
        for points in (1.0, 2.0):
            book.finish(record("ada", points), {"points": points})
    history = ledger.read(tmp_path / "new")
    assert history == ledger.History((some_run(),), entries, {"ada": record("ada", 2.0)})
    assert json.loads((tmp_path / "new" / "ada" / ledger.RESULT).read_text()) == {"points": 2.0}


def test_torn_last_line_is_ignored_and_cut_off_and_any_other_is_reported(tmp_path: Path) -> None:
    with ledger.hold(tmp_path) as book:
        book.open_run(some_run(), ())
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
    refused(r"ledger\.jsonl:4: ", ledger.read, tmp_path, of=KitError)


def test_one_writer_at_a_time_and_a_dead_one_leaves_no_lock_and_no_scratch(tmp_path: Path) -> None:
    with holding(HOLDS_LEDGER, tmp_path) as (holder, said):
        in_use = f"in use by another run .process {holder.pid}."
        with pytest.raises(UsageError, match=in_use), ledger.hold(tmp_path):
            pass
    assert Path(said).is_dir()
    with ledger.hold(tmp_path):
        assert not Path(said).exists()


def test_timing_is_alone_and_is_not_starved_by_those_who_share(tmp_path: Path) -> None:
    """Four holders that keep a room busy would starve the fifth without a turnstile."""
    sharing: set[int] = set()
    entries = Counter[int]()
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
        for _ in range(10):
            with alone.shared(), alone.exclusive():
                seen.append(set(sharing))
                time.sleep(0.005)
                seen.append(set(sharing))
        starved = max(entries.values()) >= most
        over.set()
    assert not starved and len(entries) == 4
    assert seen == [set()] * 20, "somebody was there during a timing"


def test_killed_process_gives_the_machine_back(tmp_path: Path) -> None:
    entered = threading.Event()

    def enter() -> None:
        with Slot(tmp_path).shared():
            entered.set()

    with holding(HOLDS_MACHINE, tmp_path) as (_, said):
        assert said == "alone"
        threading.Thread(target=enter, daemon=True).start()
        assert not entered.wait(0.2)
    assert entered.wait(HANG_S)


def test_timings_on_cores_go_side_by_side_and_none_beside_one_of_the_machine(tmp_path: Path) -> None:
    """Six workers and two cores. Each worker times on a core, then on the machine, then on a core again."""
    held = Counter({"core 3": 0, "core 5": 0, "machine": 0})
    seen: list[dict[str, int]] = []
    all_share, both_hold = threading.Barrier(6), threading.Barrier(2)

    def work(_: int) -> None:
        slot = Slot(tmp_path, [3, 5])
        for step, need in enumerate(("core", "machine", "core")):
            with slot.shared():
                if step == 0:
                    all_share.wait(HANG_S)
                with slot.hold(need) as found:  # type: ignore[arg-type]
                    assert found.cpus == (None if need == "machine" else [int(found.resource.split()[1])])
                    held[found.resource] += 1
                    if step == 0:
                        both_hold.wait(HANG_S)  # a pair gets no further unless it holds both cores at once
                    seen.append({name: count for name, count in held.items() if count})
                    time.sleep(0.01)
                    held[found.resource] -= 1

    with ThreadPoolExecutor(6) as workers:
        list(workers.map(work, range(6)))
    assert len(seen) == 18 and all(max(one.values()) == 1 for one in seen), "two held one thing"
    assert all(len(one) == 1 for one in seen if "machine" in one), "something beside a timing of the machine"
    assert set().union(*seen) == {"core 3", "core 5", "machine"}


def test_all_timings_hold_the_machine_where_that_is_asked_for_or_no_core_can_be_held(tmp_path: Path) -> None:
    for slot in (Slot(tmp_path, [1], alone=True), Slot(tmp_path, [])):
        with slot.shared(), slot.hold("core") as held:
            assert (held.resource, held.cpus) == ("machine", None)
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
    assert lines[0] == "[1/3] ada: 2 pass, 1 slow; 25 of 30 points (20.0 s; 80 s left)"
    assert lines[1] == "bob?[2J: its worker died; it is graded once more"
    assert [duration(s) for s in (0, 89, 120, 3900)] == ["0 s", "89 s", "2 min", "1 h 05 min"]


def test_live_progress_shows_who_is_running_and_takes_names_literally() -> None:
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    with Progress(3, stream) as progress:
        progress.phase("[bold]ada[/bold]", "part1: timing")
        progress.finished("bob", {}, "", "a broken archive\nand more")
        progress.live.refresh()
    counts = ("1 of 3 done", "1 without a result", "[1/3] bob: a broken archive (")
    assert all(text in stream.getvalue() for text in ("[bold]ada[/bold]", "part1: timing", *counts))


def test_command_that_goes_on_keeps_what_was_asked_for() -> None:
    asked = ["run", "my class", "--out", "r", "--config", "c.yaml", "--resume", "--again", "--seed", "7"]
    assert to_resume(asked) == "python -m grader run 'my class' --out r --config c.yaml --seed 7 --resume"
