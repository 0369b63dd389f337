"""`--watch`: what a session remembers, when a file counts as saved, and whole sessions up to Ctrl-C."""

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from building import cpu_growth
from classrows import part, result, score, timing
from conftest import COURSE, ROOT, Patch, insert_at_start, keeping, put, refused, write
from process_tree import descendants

import gpt149
from grader.core.errors import UsageError
from grader.source.cpptext import without_layout
from grader.study.watching import files
from grader.study.watching.loop import History, Judged, beside_last_good, changed, summary

#: `make test` installs watchfiles. Without it, only the tests that need it are left out.
needs_watchfiles = pytest.mark.skipif(find_spec("watchfiles") is None, reason="pip install watchfiles")
NOON = datetime(2025, 11, 21, 12, 0, 0)
#: Time limit that ends a test that hangs. No result depends on it.
LONGEST_WAIT_S = 300.0
DOUBLED = ("rowSum += weight;", "rowSum += 2.0f * weight;")
HANG = 'while (B) __asm__ volatile ("");'
#: Restores the default action of Ctrl-C. (Background jobs of a shell and their children ignore it.)
restore_ctrl_c = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
NOT_THERE = "does not exist yet: it is judged as soon as it is saved"
#: Runs the student's command without the search for an edit that repairs a kernel. The search takes seconds.
WITHOUT_EDITS = "from grader.explain import repair; repair.MOST_BUILDS = 0; import gpt149; gpt149.main()"
ALIKE = {"int a; // x\n": "int a;\n\n/* y */\n", "f( 1,\t2 );": "f( 1, 2 );", "1'000 // '": "1'000 "}
ALIKE["c = '/'; // x\n"] = "c = '/';\n"
OTHER = {'s = "a  b";': 's = "a b";', 's = "//";': 's = "";', "a/**/b": "ab", "a //": "a /"}
OTHER |= {"#define A 1\nint a;": "#define A 1 int a;", 'R"x(//  a\n)x";': 'R"x(// a\n)x";'}


def test_changes_of_layout_and_comments_are_ignored() -> None:
    for one, other in (ALIKE | OTHER).items():
        assert (without_layout(one) == without_layout(other)) is (one in ALIKE), one


@pytest.mark.parametrize("piece", ["/*a", '"x" ', "\n \n//", 'R"(', "'"])
def test_reading_without_layout_takes_linear_time(piece: str) -> None:
    assert cpu_growth(lambda count: without_layout(piece * count), 2_000, 64_000, repeat=3) < 200


def test_changes_are_named_by_line_and_function(master: str) -> None:
    edited = master.replace("int row = omp_get_thread_num();", "int row = 0;")
    line = edited[: edited.index("int row = 0")].count("\n") + 1
    several = changed(master, master.replace("float score = 0.0f", "float score = 1.0f"))
    assert several.endswith("of myNaiveAttention, myFusedAttention ... (+3 -3)"), several
    for before, after, words in (
        (master, edited, f"line {line} of myFusedAttention (+1 -1)"),
        (master, master, "nothing changed"),
        ("a\nb\n", "a\nb\nc\n", "line 3 (+1 -0)"),
        ("a\nb\n", "a\n", "line 2 (+0 -1)"),
        ("int f(\n  int a) {\n}\n", "int f(\n  int b) {\n}\n", "line 2 of f (+1 -1)"),
        ("int f() {\n}\n", "int f() {\n}\nint a;\n", "line 3 (+1 -0)"),
        ("", "x\n" * 50_000, "changed"),
    ):
        assert changed(before, after) == words


def judged(minute: int, verdict: str, text: str = "", object_sha256: str = "") -> Judged:
    found = result((part("part1", "naive", 10, verdict, ratio=0.8),))
    return Judged(NOON + timedelta(minutes=minute), text, object_sha256, found, score(found))


def test_a_time_is_compared_with_the_last_good_one() -> None:
    history = History()
    for minute, one in enumerate(["pass", "wrong", "pass"]):
        history.add(judged(minute, one, f"int a{minute};"))
    assert history.good["part1"][1] == "12:02:00"
    assert "1.00 x the last good" in history.lines[-1] and "first look" in history.lines[0]
    assert "x the reference" not in history.lines[1], "a wrong result has no time"
    known = timing(0.8), "12:02:00"
    assert beside_last_good(None, timing(0.8)) == ""
    assert "0.50 x the last good time (12:02:00): faster" in beside_last_good(known, timing(0.4))
    assert beside_last_good(known, timing(0.9)).endswith(": slower")
    assert "the difference may be chance" in beside_last_good(known, timing(0.81))
    found = result((part("part1", "one", 10), part("part2", "two", 20, "wrong")))
    line = summary(Judged(NOON, "", "", found, score(found)))
    assert line.startswith("1 of 2 pass") and line.endswith("(not part2)")


def test_an_earlier_verdict_is_found_by_object_or_text() -> None:
    history = History()
    history.add(judged(0, "pass", "int a;", "x"))
    history.add(judged(1, "wrong", "int b;", "y"))
    assert history.of_object("x") is history.judged[0] and history.of_object("z") is None
    assert history.alike("int  b;") is history.last
    assert history.alike("int b;", (b"x",)) is None, "a file beside it has changed"
    assert history.alike("int a;") is None, "only the last one is compared before it is compiled"
    before = history.good["part1"]
    history.add(history.judged[0], saved_at=NOON + timedelta(minutes=9))
    assert history.lines[-1].startswith("12:09:00  #1  PASS")
    assert "back to #1 of 12:00:00, first look: same program" in history.lines[-1]
    assert history.good["part1"] is before, "nothing was measured"
    for minute in range(100):
        history.add(judged(minute, "wrong", str(minute)))
    assert len(history.judged) <= 32 and len(history.lines) <= 6, "a session may last for days"


class Heard(queue.Queue[files.Content]):
    __call__ = queue.Queue.put

    def until(self, *wanted: bytes | None) -> None:
        """Wait until these contents are reported. The watcher may report a partly written file first."""
        while self.get(timeout=LONGEST_WAIT_S).files[: len(wanted)] != wanted:
            pass


def test_a_save_in_several_steps_is_reported_once(tmp_path: Path, monkeypatch: Patch) -> None:
    source, heard = tmp_path / "module.cpp", Heard()
    source.write_text("0")
    watcher = files.Watcher((source,), heard)

    def reported(*texts: str | None, gone_s: float = LONGEST_WAIT_S) -> list[bytes | None]:
        monkeypatch.setattr(files, "GONE_S", gone_s)
        remove = partial(source.unlink, missing_ok=True)
        steps = (remove if text is None else partial(source.write_text, text) for text in texts)
        # Each time the watcher waits, an editor does its next step.
        ended = SimpleNamespace(is_set=lambda: False, wait=lambda _: next(steps, bool)() and False)
        monkeypatch.setattr(watcher, "_ended", ended)
        watcher._settle()
        return [heard.get().source for _ in range(heard.qsize())]

    assert reported("3", "34", "345") == [b"345"], "in pieces"
    assert reported(None, None, "67") == [b"67"], "removed and written again at once"
    assert reported("67") == [], "equal bytes are not reported"
    assert reported(None, gone_s=-1.0) == [None]


def replace_file(source: Path, text: str) -> None:
    """Save as most editors do: write a new file and rename it, so that a partial text is never seen."""
    beside = source.with_name(".module.cpp.swp")
    beside.write_text(text)
    os.replace(beside, source)


@needs_watchfiles
@pytest.mark.parametrize("polls", [False, True], ids=["notified", "polled"])
def test_every_way_of_saving_is_seen(polls: bool, tmp_path: Path, monkeypatch: Patch) -> None:
    if polls:
        monkeypatch.setattr(files, "_has_file_events", lambda folders: False)
    monkeypatch.setitem(files.HOW, "rust_timeout", 100)
    source, heard = tmp_path / "work" / "module.cpp", Heard()
    put(source.parent, {source.name: "0"})
    with files.Watcher((source, source.parent / "module.ispc"), heard) as watcher:
        assert watcher.polls is polls
        source.write_text("1")
        heard.until(b"1")
        replace_file(source, "2")
        heard.until(b"2")
        source.unlink()
        heard.until(None)
        source.write_text("7")
        heard.until(b"7")
        (source.parent / "module.ispc").write_text("x")
        heard.until(b"7", b"x")
        # A save with equal bytes is not reported, nor is a change of another file.
        replace_file(source, "7")
        (source.parent / "notes.txt").write_text("x")
        replace_file(source, "8")
        assert heard.get(timeout=LONGEST_WAIT_S).files == (b"8", b"x")
        os.rename(source.parent, source.parent.with_name("old"))
        heard.until(None)
        source.parent.mkdir()
        for text in ("1", "2"):
            source.write_text(text)
            heard.until(text.encode())


def test_one_file_has_one_watcher_and_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    source, link = tmp_path / "module.cpp", tmp_path / "link.cpp"
    link.symlink_to(source)
    other = pytest.raises(UsageError, match=rf"another --watch \(process {os.getpid()}\)")
    with files.only_one(source), files.only_one(tmp_path / "other.cpp"), other, files.only_one(link):
        pass
    with files.only_one(source):
        pass
    os.mkfifo(source)
    assert files.Watcher((source,), print).content().source is None


def test_a_used_up_limit_of_watches_is_noticed(tmp_path: Path, monkeypatch: Patch) -> None:
    watchfiles = pytest.importorskip("watchfiles")

    def no_more(*_: object, **__: object) -> Iterator[object]:
        raise OSError("OS file watch limit reached about [...]")
        yield

    assert files._has_file_events([tmp_path])
    monkeypatch.setattr(watchfiles, "watch", no_more)
    assert not files._has_file_events([tmp_path])


@needs_watchfiles
def test_an_unfit_file_or_option_of_watch_is_refused(tmp_path: Path, monkeypatch: Patch) -> None:
    source = write(tmp_path, "")
    (tmp_path / "sub" / "module.cpp").mkdir(parents=True)

    def watch(*arguments: object) -> None:
        gpt149.run(["part1", "--watch", "--module", *map(str, arguments)])

    refused("is a folder", watch, tmp_path / "sub")
    refused("no such folder", watch, tmp_path / "none" / "module.cpp")
    refused("is a pipe or a device", watch, "/dev/null")
    refused("would overwrite", watch, source, "--json", source)
    refused("takes a file", watch, source, "--html", tmp_path)
    refused("leave out one of them", watch, source, "--github")
    monkeypatch.setattr(files.importlib.util, "find_spec", lambda name: None)
    refused("pip install watchfiles", watch, source)


@dataclass
class Session:
    process: subprocess.Popen[str]
    source: Path
    said: list[str] = field(default_factory=list)

    def read(self) -> None:
        for line in self.process.stdout or ():
            self.said.append(line)

    def until(self, reached: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + LONGEST_WAIT_S
        while not reached():
            assert time.monotonic() < end, f"{what}:\n{''.join(self.said)}"
            time.sleep(0.02)

    def wait(self, words: str, since: int = 0) -> None:
        self.until(lambda: words in "".join(self.said[since:]), f"{words!r} was not printed")

    def judged(self, words: str, since: int = 0) -> str:
        """Wait until the last line of the newest history contains `words`. Return the text since line `since`."""

        def reached() -> bool:
            said = self.said[since:]
            begun = max((k for k, line in enumerate(said) if line.startswith("-- ")), default=len(said))
            rows = [line for line in said[begun:] if re.match(r"  \d\d:\d\d:\d\d  ", line)]
            return bool(rows) and words in rows[-1]

        self.until(reached, f"no verdict {words!r}")
        return "".join(self.said[since:])

    def save(self, text: str, words: str) -> str:
        since = len(self.said)
        replace_file(self.source, text)
        return self.judged(words, since)

    def ended_by(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(LONGEST_WAIT_S)


@contextlib.contextmanager
def session(source: Path, *arguments: str) -> Iterator[Session]:
    """Start a session of part 1. Its time limits are too long to be reached, even on a slow machine."""
    limits = f"limits: {{build_s: {LONGEST_WAIT_S}, call_s: {LONGEST_WAIT_S}}}"
    patient = write(source.parent, f"extends: {COURSE}\n{limits}\n", "patient.yaml")
    options = [*arguments, "--watch", "--config", str(patient), "--module", str(source)]
    command = [sys.executable, "-u", "-c", WITHOUT_EDITS, "part1", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": ROOT}
    with subprocess.Popen(command, **pipes, preexec_fn=restore_ctrl_c) as process:
        one = Session(process, source)
        reader = threading.Thread(target=one.read)
        reader.start()
        try:
            yield one
        finally:
            process.kill()
            reader.join()


@pytest.fixture(scope="module")
def right(master: str) -> str:
    return keeping(master, "myNaiveAttention")


@pytest.mark.full
@needs_watchfiles
def test_a_session_without_a_verdict_does_not_end_as_one_that_passed(tmp_path: Path, right: str) -> None:
    source = tmp_path / "module.cpp"
    for words, code in ((NOT_THERE, 2), ("Running Part 1", 130)):
        with session(source) as one:
            one.wait(words)
            assert one.ended_by(signal.SIGINT) == code
        assert one.said[-1] == "0 verdicts\n"
        source.write_text(insert_at_start(right, "myNaiveAttention", HANG))


def test_ctrl_c_is_not_lost_while_numpy_is_imported() -> None:
    """While NumPy's generators register a class, they catch every exception, also the one of Ctrl-C."""
    program = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy.random._generator":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
try:
    import grader.core.arrays
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted", "numpy.random._generator" in sys.modules, signal.getsignal(signal.SIGINT).__name__)
"""
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, preexec_fn=restore_ctrl_c)
    assert ran.stdout == "interrupted True default_int_handler\n", ran.stderr


@needs_watchfiles
def test_a_session_from_the_first_save_to_ctrl_c(tmp_path: Path, right: str) -> None:
    source, report, page = tmp_path / "module.cpp", tmp_path / "result.json", tmp_path / "page.html"
    with session(source, "-N", "16", "-H", "2", "-d", "8", "--json", str(report), "--html", str(page)) as one:
        one.wait(NOT_THERE)
        text = one.save(right, "PASS 10 / 10")
        order = ("Correctness: right", "Time so far: ", "Time: ", "true peak", "PASS 10")
        assert sorted(map(text.index, order)) == list(map(text.index, order))
        assert json.loads(report.read_text())["parts"][0]["verdict"] == "pass"
        # If only a comment changes, the object is the same, and the known verdict is shown without a run.
        commented = right.replace("return fillTensor(", "/* O */ return fillTensor(", 1) + "// end\n"
        text = one.save(commented, "same program")
        assert "Only comments or layout changed" in text and "byte for byte" in text
        assert "Correctness" not in text
        broken = right.replace("float rowSum = 0.0f;", "float rowSum = 0.0f", 1)
        text = one.save(broken, "DOES NOT COMPILE 0 / 10")
        assert "module.cpp:" in text and "error: expected" in text
        text = one.save(right.replace(*DOUBLED, 1), "WRONG RESULT 0 / 10")
        assert "0.5 times" in " ".join(text.split()) and "Where it is wrong" in page.read_text()
        # The next save ends a kernel that hangs, and all its processes.
        since = len(one.said)
        replace_file(source, insert_at_start(right, "myNaiveAttention", HANG))
        one.wait("Running Part 1", since)
        one.until(lambda: bool(descendants(one.process.pid)), "no process hangs")
        text = one.save(insert_at_start(right, "myNaiveAttention", "__builtin_trap();"), "CRASHED 0 / 10")
        assert "Saved again: this run was stopped." in text
        # The right file is judged again, although its verdict is stored: the page needs pictures, which are not stored.
        assert "Correctness: right" in one.save(right, "PASS 10 / 10")
        one.until(lambda: not descendants(one.process.pid), "a process is left")
        since = len(one.said)
        source.unlink()
        one.wait("does not exist yet", since)
        assert one.ended_by(signal.SIGINT) == 0, "the last verdict is a pass"
    assert "verdicts; the last: PASS 10 / 10" in one.said[-1] and "Traceback" not in "".join(one.said)


@pytest.mark.full
@needs_watchfiles
def test_an_earlier_version_gets_its_stored_verdict(tmp_path: Path, right: str) -> None:
    source, wrong = tmp_path / "module.cpp", right.replace(*DOUBLED, 1)
    source.write_text(right)
    with session(source, "-N", "16", "--no-time", "--no-table") as one:
        one.judged("PASS open / 10  first look")
        one.save(wrong, "WRONG RESULT 0 / 10")
        text = one.save(right, "same program")
        assert "byte for byte" in text and "Correctness" not in text
        assert "PASS open / 10  back to #1 of " in text
        assert "Back to #1 of " in text
        text = one.save(wrong, "same program")
        assert "0.5 times" in " ".join(text.split()), "the stored diagnosis is shown again"
        assert one.ended_by(signal.SIGTERM) == 1, "the exit code is that of the last verdict"
