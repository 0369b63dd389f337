"""`--watch`: when a file counts as saved, what a session remembers, and one session from the first save to Ctrl-C."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from classrows import part, result, score
from conftest import ROOT, insert_at_start, keeping

from grader.base.errors import UsageError
from grader.base.results import Timing
from grader.build.cpptext import without_layout
from grader.study.watching import files
from grader.study.watching.files import Content, Watcher
from grader.study.watching.history import GoodTime, History, Judged, beside_last_good, changed, summary

#: `make test` installs it; a Python without the extra runs the other tests.
needs_watchfiles = pytest.mark.skipif(
    not importlib.util.find_spec("watchfiles"), reason="watchfiles is an extra"
)
NOON = datetime(2025, 11, 21, 12, 0, 0)


# ---- what a session remembers


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("int a; // x\n", "int a;\n\n/* y */\n", True),
        ("f( 1,\t2 );", "f( 1, 2 );", True),
        ('s = "a  b";', 's = "a b";', False),
        ('s = "//";', 's = "";', False),
        ("c = '/'; // x\n", "c = '/';\n", True),
        ('R"x(//  a\n)x";', 'R"x(// a\n)x";', False),
        ("a/**/b", "ab", False),
        ("#define A 1\nint a;", "#define A 1 int a;", False),
        ("1'000 // '", "1'000 ", True),
        ("a //", "a /", False),
    ],
)
def test_layout_and_comments_alone_change_nothing(one: str, other: str, same: bool) -> None:
    assert (without_layout(one) == without_layout(other)) is same


def test_reading_without_layout_takes_linear_time() -> None:
    def seconds(text: str) -> float:
        began = time.process_time()
        without_layout(text)
        return time.process_time() - began

    for piece in ("/*a", '"x" ', "\n \n//", 'R"(', "'"):
        short, long = (min(seconds(piece * n) for _ in range(3)) for n in (5_000, 20_000))
        assert long < 12 * short + 0.05, piece


def test_what_changed_is_told_by_line_and_function(master: str) -> None:
    assert changed(master, master) == "nothing changed"
    edited = master.replace("int row = omp_get_thread_num();", "int row = 0;")
    line = edited[: edited.index("int row = 0")].count("\n") + 1
    assert changed(master, edited) == f"line {line} of myFusedAttention (+1 -1)"
    several = changed(master, master.replace("float score = 0.0f", "float score = 1.0f"))
    assert several.endswith("of myNaiveAttention, myFusedAttention ... (+3 -3)"), several
    assert changed("a\nb\n", "a\nb\nc\n") == "line 3 (+1 -0)"
    assert changed("int f(\n  int a) {\n}\n", "int f(\n  int b) {\n}\n") == "line 2 of f (+1 -1)"
    assert changed("int f() {\n}\n", "int f() {\n}\nint a;\n") == "line 3 (+1 -0)", "behind the function"
    assert changed("a\nb\n", "a\n") == "line 2 (+0 -1)"
    assert changed("", "x\n" * 50_000) == "changed"


def timing(ratio: float, spread: float = 0.01) -> Timing:
    interval = (ratio - spread, ratio + spread)
    return Timing(100.0, 100 * ratio, ratio, interval, 0.98, 8, "cpu", 1.1, "pass", 1.0, True)


def judged(
    minute: int, verdict: str, *, time: Timing | None = None, text: str = "", object_sha256: str = ""
) -> Judged:
    found = result((replace(part("part1", "naive", 10, verdict), time=time),))
    return Judged(NOON + timedelta(minutes=minute), text, object_sha256, found, score(found))


def test_a_time_stands_beside_the_last_good_one() -> None:
    history = History()
    for minute, one in enumerate(["pass", "wrong", "pass"]):
        history.add(judged(minute, one, time=timing(0.8) if one == "pass" else None, text=f"int a{minute};"))
    assert history.good["part1"].clock == "12:02:00"
    assert "1.00 x last good" in history.lines[-1] and "first look" in history.lines[0]
    assert "x reference" not in history.lines[1], "a wrong result has no time"
    known = GoodTime("12:02:00", timing(0.8))
    assert beside_last_good(None, timing(0.8)) == ""
    assert "0.50 x the last good time (12:02:00): faster" in beside_last_good(known, timing(0.4))
    assert beside_last_good(known, timing(0.9)).endswith(": slower")
    assert "no difference to be sure of" in beside_last_good(known, timing(0.81))


def test_a_verdict_is_known_by_the_object_and_by_the_text() -> None:
    history = History()
    history.add(judged(0, "pass", time=timing(0.8), text="int a;", object_sha256="x"))
    history.add(judged(1, "wrong", text="int b;", object_sha256="y"))
    assert history.of_object("x") is history.judged[0] and history.of_object("z") is None
    assert history.alike("int  b;") is history.last
    assert history.alike("int b;", (b"x",)) is None, "a file beside it has changed"
    assert history.alike("int a;") is None, "only the last one is near enough to be told at once"
    before = history.good["part1"]
    history.add(history.judged[0], saved_at=NOON + timedelta(minutes=9))
    assert history.lines[-1].startswith("12:09:00  PASS") and "as 12:00:00, equal object" in history.lines[-1]
    assert history.good["part1"] is before, "nothing was measured"
    for minute in range(100):
        history.add(judged(minute, "wrong", text=str(minute)))
    assert len(history.judged) <= 32 and len(history.lines) <= 6, "a session may last for days"


def test_several_parts_are_summed_up() -> None:
    found = result((part("part1", "one", 10), part("part2", "two", 20, "wrong")))
    told = summary(Judged(NOON, "", "", found, score(found)))
    assert told.startswith("1 of 2 pass") and told.endswith("(not part2)")


# ---- when a file counts as saved


@dataclass
class Heard:
    saves: list[Content] = field(default_factory=list)
    change: threading.Event = field(default_factory=threading.Event)

    def __call__(self, content: Content) -> None:
        self.saves.append(content)
        self.change.set()

    def next(self, within_s: float = 10) -> bytes | None:
        assert self.change.wait(within_s), "nobody told of a change"
        self.change.clear()
        return self.saves[-1].source


@pytest.fixture(params=["told", "polled"])
def watched(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, Heard, Watcher]]:
    pytest.importorskip("watchfiles")
    if request.param == "polled":
        monkeypatch.setattr(files, "_system_tells", lambda folders: False)
    source, heard = tmp_path / "work" / "module.cpp", Heard()
    source.parent.mkdir()
    source.write_text("0")
    with Watcher((source, source.parent / "module.ispc"), heard) as watcher:
        assert watcher.polls is (request.param == "polled")
        time.sleep(0.1)
        yield source, heard, watcher


def test_every_way_of_saving_is_seen(watched: tuple[Path, Heard, Watcher]) -> None:
    source, heard, watcher = watched
    source.write_text("1")
    assert heard.next() == b"1"
    # As editors do: a new file takes the name.
    beside = source.with_name(".module.cpp.swp")
    beside.write_text("2")
    os.replace(beside, source)
    assert heard.next() == b"2"
    # In pieces: what is read is the whole of it.
    with source.open("w") as file:
        for piece in "345":
            file.write(piece)
            file.flush()
            time.sleep(0.005)
    assert heard.next() == b"345"
    # Removed and written anew at once: never gone.
    source.unlink()
    time.sleep(0.05)
    source.write_text("6")
    assert heard.next() == b"6"
    # Gone, and back later.
    source.unlink()
    assert heard.next() is None
    source.write_text("7")
    assert heard.next() == b"7"
    (source.parent / "module.ispc").write_text("x")
    assert heard.next() == b"7" and watcher.content().files[1] == b"x"
    # The same bytes once more are no change, nor is another file.
    count = len(heard.saves)
    source.write_text("7")
    (source.parent / "notes.txt").write_text("x")
    time.sleep(0.4)
    assert len(heard.saves) == count


def test_a_folder_that_was_made_anew_is_followed(watched: tuple[Path, Heard, Watcher]) -> None:
    source, heard, _ = watched
    os.rename(source.parent, source.parent.with_name("old"))
    assert heard.next() is None
    source.parent.mkdir()
    source.write_text("1")
    assert heard.next() == b"1"
    time.sleep(0.3)
    source.write_text("2")
    assert heard.next() == b"2"


def test_a_pipe_is_no_file_to_wait_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "module.cpp")
    assert Watcher((tmp_path / "module.cpp",), print).content().source is None


def test_one_file_has_one_watcher(tmp_path: Path) -> None:
    source = tmp_path / "module.cpp"
    link = tmp_path / "link.cpp"
    link.symlink_to(source)
    with files.only_one(source):
        with (
            pytest.raises(UsageError, match=rf"another --watch \(process {os.getpid()}\)"),
            files.only_one(link),
        ):
            pass
        with files.only_one(tmp_path / "other.cpp"):
            pass
    with files.only_one(source):
        pass


def test_watches_that_are_used_up_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watchfiles = pytest.importorskip("watchfiles")

    def no_more(*_: object, **__: object) -> Iterator[object]:
        raise OSError("OS file watch limit reached about [...]")
        yield

    assert files._system_tells([tmp_path])
    monkeypatch.setattr(watchfiles, "watch", no_more)
    assert not files._system_tells([tmp_path])


# ---- one session


def gpt149(*arguments: str, **how: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "gpt149.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **how)


@needs_watchfiles
def test_what_cannot_be_watched_is_told_in_one_line(tmp_path: Path) -> None:
    source = tmp_path / "module.cpp"
    source.write_text("")
    (tmp_path / "sub" / "module.cpp").mkdir(parents=True)
    without = "import sys; sys.modules['watchfiles'] = None; sys.argv = ['gpt149.py', *sys.argv[1:]]; "
    without += "import importlib.util as u; find = u.find_spec; "
    without += "u.find_spec = lambda name, *a: None if name == 'watchfiles' else find(name, *a); "
    without += f"import runpy; runpy.run_path({str(ROOT / 'gpt149.py')!r}, run_name='__main__')"
    for arguments, words in (
        (("--module", str(tmp_path / "sub")), "is a folder"),
        (("--module", str(tmp_path / "none" / "module.cpp")), "no such folder"),
        (("--module", "/dev/null"), "is a pipe or a device"),
        (("--module", str(source), "--json", str(source)), "would overwrite"),
        (("--module", str(source), "--html", str(tmp_path)), "takes a file"),
        (("--module", str(source), "--github"), "choose one"),
    ):
        ended = gpt149("part1", "--watch", *arguments)
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1), ended
        assert words in ended.stderr
    ended = subprocess.run(
        [sys.executable, "-c", without, "part1", "--watch", "--module", str(source)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert (
        ended.returncode == 2 and "pip install watchfiles" in ended.stderr and ended.stderr.count("\n") == 1
    )


@dataclass
class Session:
    """A `--watch` and what it has printed so far."""

    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)

    def wait(self, words: str, since: int, within_s: float = 90) -> str:
        """What was printed since then, once these words are in it."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            text = "".join(self.said[since:])
            if words in text:
                return text
            time.sleep(0.02)
        raise AssertionError(f"{words!r} was not printed:\n{''.join(self.said[since:])}")

    def judged(self, words: str, since: int, within_s: float = 90) -> str:
        """What was printed since then, once the last line of the newest history has these words."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            said = self.said[since:]
            begun = max((k for k, line in enumerate(said) if line.startswith("-- ")), default=len(said))
            rows = [line for line in said[begun:] if re.match(r"  \d\d:\d\d:\d\d  ", line)]
            if rows and words in rows[-1]:
                return "".join(said)
            time.sleep(0.02)
        raise AssertionError(f"no verdict {words!r}:\n{''.join(self.said[since:])}")

    def save(self, source: Path, text: str, words: str) -> str:
        since = len(self.said)
        source.write_text(text)
        return self.judged(words, since)


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found |= {child} | descendants(child)
    return found


@contextmanager
def session(source: Path, *arguments: str) -> Iterator[Session]:
    command = [sys.executable, "-u", str(ROOT / "gpt149.py"), *arguments, "--watch", "--module", str(source)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Where the tests are a shell's background job, Ctrl-C is ignored by all that they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        one = Session(process)
        reader = threading.Thread(target=one.read)
        reader.start()
        try:
            yield one
        finally:
            process.kill()
            reader.join()


@needs_watchfiles
def test_a_session_without_a_verdict_does_not_end_as_one_that_passed(tmp_path: Path, master: str) -> None:
    source = tmp_path / "module.cpp"
    with session(source, "part1") as one:
        one.wait("is not there: it is judged as soon as it is saved", 0)
        one.process.send_signal(signal.SIGINT)
        assert one.process.wait(20) == 2 and one.said[-1] == "0 verdicts\n"
    source.write_text(
        insert_at_start(
            keeping(master, "myNaiveAttention"), "myNaiveAttention", 'while (B) __asm__ volatile ("");'
        )
    )
    with session(source, "part1") as one:
        one.wait("Running Part 1", 0)
        one.process.send_signal(signal.SIGINT)
        assert one.process.wait(20) == 130 and one.said[-1] == "0 verdicts\n"


def test_ctrl_c_is_not_lost_while_numpy_is_imported() -> None:
    """NumPy's generators ignore whatever is raised while they register a class: the judge went on, with a kernel that
    hangs until its limit."""
    program = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy.random._generator":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
try:
    import grader.base.arrays
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted", "numpy.random._generator" in sys.modules, signal.getsignal(signal.SIGINT).__name__)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert ran.stdout == "interrupted True default_int_handler\n", ran.stderr


@needs_watchfiles
def test_a_session_from_the_first_save_to_ctrl_c(tmp_path: Path, master: str) -> None:
    right = keeping(master, "myNaiveAttention")
    source, report, page = tmp_path / "module.cpp", tmp_path / "result.json", tmp_path / "page.html"
    hang = insert_at_start(right, "myNaiveAttention", 'while (B) __asm__ volatile ("");')
    options = ("-N", "16", "-H", "2", "-d", "8", "--json", str(report), "--html", str(page))
    with session(source, "part1", *options) as one:
        one.wait("is not there: it is judged as soon as it is saved", 0)

        told = one.save(source, right, "PASS 10 / 10")
        assert (
            told.index("Correctness: right")
            < told.index("Time so far: ")
            < told.index("Time: ")
            < told.index("true peak")
            < told.index("PASS 10")
        )
        assert json.loads(report.read_text())["parts"][0]["verdict"] == "pass"
        # A comment: answered from what is known, and the object is compared.
        told = one.save(
            source,
            right.replace("return fillTensor(", "/* O */ return fillTensor(", 1) + "// end\n",
            "equal object",
        )
        assert (
            "Only comments or layout changed" in told
            and "byte for byte" in told
            and "Correctness" not in told
        )
        told = one.save(
            source, right.replace("float rowSum = 0.0f;", "float rowSum = 0.0f", 1), "DOES NOT COMPILE 0 / 10"
        )
        assert "module.cpp:" in told and "error: expected" in told
        wrong = right.replace("rowSum += weight;", "rowSum += 2.0f * weight;", 1)
        since = len(one.said)
        (tmp_path / "new").write_text(wrong)
        os.replace(tmp_path / "new", source)
        told = one.judged("WRONG RESULT 0 / 10", since)
        assert "0.5 times" in " ".join(told.split()) and "Where it is wrong" in page.read_text()
        # A hang is ended by the next save, and leaves no process.
        since = len(one.said)
        source.write_text(hang)
        one.wait("Running Part 1", since)
        time.sleep(0.2)
        assert len(descendants(one.process.pid)) > 0
        told = one.save(
            source, insert_at_start(right, "myNaiveAttention", "__builtin_trap();"), "CRASHED 0 / 10"
        )
        assert "Saved again: this run is ended." in told
        # Back to what was right: the page shows pictures of the last verdict, so it is judged anew.
        assert "Correctness: right" in one.save(source, right, "PASS 10 / 10")
        assert descendants(one.process.pid) == set()
        second = gpt149("part1", "--watch", "--module", str(source))
        assert second.returncode == 2 and f"process {one.process.pid}" in second.stderr
        assert second.stderr.count("\n") == 1
        since = len(one.said)
        source.unlink()
        one.wait("is not there", since)
        one.process.send_signal(signal.SIGINT)
        assert one.process.wait(20) == 0, "the last verdict is a pass"
        assert "verdicts; the last: PASS 10 / 10" in one.said[-1]
        assert "Traceback" not in "".join(one.said)


@needs_watchfiles
def test_going_back_to_an_earlier_version_is_answered_from_what_is_known(tmp_path: Path, master: str) -> None:
    source = tmp_path / "module.cpp"
    right = keeping(master, "myNaiveAttention")
    wrong = right.replace("rowSum += weight;", "rowSum += 2.0f * weight;", 1)
    source.write_text(right)
    with session(source, "part1", "-N", "16", "--no-time") as one:
        one.judged("PASS 10 / 10  first look", 0)
        one.save(source, wrong, "WRONG RESULT 0 / 10")
        told = one.save(source, right, "equal object")
        assert "byte for byte" in told and "Correctness" not in told and "PASS 10 / 10  as " in told
        told = one.save(source, wrong, "equal object")
        assert "0.5 times" in " ".join(told.split()), "the diagnosis stands again"
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(20) == 1, "as the last verdict"
