"""Main loop of `--watch`: it judges the file at each save. A new save stops the judging of the previous one."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import queue
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from difflib import SequenceMatcher
from pathlib import Path
from types import FrameType

from grader import score
from grader.assignment.labs import Ladder
from grader.assignment.records import Assignment, Part
from grader.backends.native import ispc
from grader.backends.torch.zygote import Zygote
from grader.core import procfs
from grader.core.commandline import EXIT_INTERRUPTED
from grader.core.errors import EXIT_USAGE, KitError, UsageError
from grader.core.harmless import one_line
from grader.core.results import Score, SubmissionResult, Timing, exit_code
from grader.judge.bench import Options
from grader.judge.evaluate import evaluate, import_numpy
from grader.judge.events import Built, Event, RoundTimed, Timed
from grader.report.terminal import VERDICT_WORDS, Terminal, graded_ids, is_untimed, points_text
from grader.report.words import plural
from grader.sandbox import of_file
from grader.source.cpptext import blanked, definitions, without_layout
from grader.study.watching import files
from grader.study.watching.files import Content

KEPT = 32
"""Maximum number of verdicts that a session keeps, each with its source text."""
SHOWN = 6
MOST_LINES = 20_000
"""Maximum number of lines of a source in which changed lines are searched."""
MOST_COMPARED = 400
"""Maximum number of lines that are compared one by one."""
WIDTH = 78


@dataclass(frozen=True)
class Judged:
    """A source's `text` with the result of judging it, which ended at the local time `at`.

    `others` are the contents of the files that are compiled with the source. `object_sha256` is a digest of the
    compiled object and of `others`, or "" if nothing was compiled. `graded` are the ids of parts whose points depend on
    their time. `number` counts the session's verdicts from 1; `History.add` sets it and `change`.
    """

    at: datetime
    text: str
    object_sha256: str
    result: SubmissionResult
    score: Score
    others: tuple[bytes | None, ...] = ()
    graded: frozenset[str] = frozenset()
    number: int = 0
    change: str = ""
    """Text on the difference between this source and the previous one."""

    @property
    def clock(self) -> str:
        return f"{self.at:%H:%M:%S}"

    @property
    def name(self) -> str:
        return f"#{self.number} of {self.clock}, {self.change}"


@dataclass
class History:
    """Verdicts of one session: `judged` has the last KEPT verdicts, `lines` has one line for each of the last SHOWN."""

    judged: deque[Judged] = field(default_factory=lambda: deque(maxlen=KEPT))
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=SHOWN))
    good: dict[str, tuple[Timing, str]] = field(default_factory=dict)
    """By part id: time in the last verdict with right results and a steady machine, and the time of day."""
    verdicts: int = 0

    @property
    def last(self) -> Judged | None:
        return self.judged[-1] if self.judged else None

    def of_object(self, sha256: str) -> Judged | None:
        """Return the latest verdict with this `object_sha256`, or None."""
        return next((one for one in reversed(self.judged) if one.object_sha256 == sha256), None)

    def alike(self, text: str, others: tuple[bytes | None, ...] = ()) -> Judged | None:
        """Return the last verdict if its source differs from `text` in comments and layout only, else None.

        Also return None if its other files differ from `others`.
        """
        last = self.last
        if last is None or last.others != others or without_layout(last.text) != without_layout(text):
            return None
        return last

    def change(self, text: str, others: tuple[bytes | None, ...] = ()) -> str:
        """Describe how `text` differs from the source of the last verdict, and if `others` differ from its files."""
        if self.last is None:
            return "first look"
        beside = "; a file beside it changed" if self.last.others != others else ""
        return changed(self.last.text, text) + beside

    def add(self, one: Judged, saved_at: datetime | None = None) -> None:
        """Add a verdict, and a line of text on it.

        If `one` is an earlier verdict, added again because the compiled object is equal, `saved_at` is the time of the
        new save; else None.
        """
        self.verdicts += 1
        change = self.change(one.text, one.others)
        if saved_at is None:
            one = replace(one, number=self.verdicts, change=change)
            words = [*self._ratios(one), change]
        else:
            words = [f"{self.relation(one)} {one.name}: same program", change]
        self.lines.append("  ".join([f"{saved_at or one.at:%H:%M:%S}  #{one.number}", summary(one), *words]))
        self.judged.append(one)
        if saved_at is None:
            for part in one.result.parts:
                if part.time is not None and part.time.fit and part.verdict in ("pass", "slow"):
                    self.good[part.id] = part.time, one.clock

    def relation(self, known: Judged) -> str:
        """Return "still" if `known` is the last verdict, or "back to" if it is an older one."""
        return "still" if self.last is not None and self.last.number == known.number else "back to"

    def _ratios(self, one: Judged) -> list[str]:
        if len(one.result.parts) != 1 or (time := one.result.parts[0].time) is None:
            return []
        known = self.good.get(one.result.parts[0].id)
        before = f", {time.ratio / known[0].ratio:.2f} x the last good time" if known is not None else ""
        return [f"{time.ratio:.2f} x the reference{before}"]


def summary(one: Judged) -> str:
    """Summarise a verdict in one phrase: for a single part the verdict and the points.

    For several parts: the number of parts that passed, the points, and the ids of the other parts.
    """
    parts, points = one.result.parts, {line.id: line.points for line in one.score.lines}
    is_open = {part.id: is_untimed(part, one.graded) for part in parts}
    if len(parts) == 1:
        worth = points_text(parts[0], points.get(parts[0].id, 0.0), is_untimed=is_open[parts[0].id])
        of_all = f"{worth} / {parts[0].max_points:g}" if parts[0].max_points else ""
        return f"{VERDICT_WORDS[parts[0].verdict]} {of_all}".rstrip()
    passed = sum(part.verdict == "pass" for part in parts)
    wrong = ", ".join(part.id for part in parts if part.verdict != "pass")
    total = sum(points.get(part.id, 0.0) for part in parts if not is_open[part.id])
    passes = f"{passed} of {len(parts)} pass, {total:g} / {one.result.max_points:g}"
    return f"{passes} (not {wrong})" if wrong else passes


def beside_last_good(known: tuple[Timing, str] | None, time: Timing) -> str:
    """Return a text that compares `time` with `known`: the part's last good time and the time of day; "" for None."""
    if known is None:
        return ""
    before, clock = known
    (low, high), (known_low, known_high) = time.ratio_interval, before.ratio_interval
    change = f"{time.ratio / before.ratio:.2f} x the last good time ({clock})"
    if low <= known_high and known_low <= high:
        return f"{change}: the difference may be chance"
    return change + (": faster" if time.ratio < before.ratio else ": slower")


def changed(before: str, after: str) -> str:
    """Describe the lines that differ between two sources, such as "lines 3 to 5 of dot (+2 -1)"."""
    old, new = before.splitlines(), after.splitlines()
    if old == new:
        return "nothing changed"
    if max(len(old), len(new)) > MOST_LINES:
        return "changed"
    begin = 0
    while begin < min(len(old), len(new)) and old[begin] == new[begin]:
        begin += 1
    end = 0
    while end < min(len(old), len(new)) - begin and old[-1 - end] == new[-1 - end]:
        end += 1
    spans = _spans(old[begin : len(old) - end], new[begin : len(new) - end])
    added, removed = (sum(span[k] for span in spans) for k in (1, 2))
    first, last = begin + spans[0][0] + 1, begin + spans[-1][0] + max(1, spans[-1][1])
    where = f"line {first}" if first == last else f"lines {first} to {last}"
    within = _functions(after, [min(begin + span[0], len(new) - 1) for span in spans] if new else [])
    named = f" of {', '.join(within[:2])}{' ...' if len(within) > 2 else ''}" if within else ""
    return f"{where}{named} (+{added} -{removed})"


def _spans(old: list[str], new: list[str]) -> list[tuple[int, int, int]]:
    """Return (index of the first line in `new`, number of lines added, number removed) for each changed span.

    Texts of more than MOST_COMPARED lines give one span, because the comparison takes quadratic time.
    """
    if not old or not new or max(len(old), len(new)) > MOST_COMPARED:
        return [(0, len(new), len(old))]
    matched = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [(j, m - j, k - i) for tag, i, k, j, m in matched if tag != "equal"]


def _functions(text: str, lines: Sequence[int]) -> list[str]:
    """Return the names of the outermost functions that contain these `lines`, which are counted from 0."""
    code, found = blanked(text), list[str]()
    spans = [(one.start, one.end, one.name) for one in definitions(code)]
    ends = list(itertools.accumulate(map(len, code.splitlines(keepends=True)), initial=0))
    for line in lines:
        inside = (name for start, end, name in spans if start < ends[line + 1] and ends[line] <= end)
        found += [one_line(name, 40) for name in itertools.islice(inside, 1)]
    return list(dict.fromkeys(found))


class Screen(Terminal):
    """Terminal output as in a single run, with a line below each time that compares it with the last good time."""

    def __init__(self, history: History, ladder: Ladder | None, graded: frozenset[str]) -> None:
        super().__init__(ladder=ladder, graded=graded)
        self.history = history

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if isinstance(event, RoundTimed) and event.rounds == 1:
            self.say(f"Time so far: {event.ratio:.2f} times the reference's, in the first round")
        elif isinstance(event, Timed):
            beside = beside_last_good(self.history.good.get(event.part.id), event.time)
            self.say(f"      {beside}" if beside else "")

    def begin(self, clock: str, what: str) -> None:
        """Print a line that separates this judging from the previous one: the time of day and the reason (`what`)."""
        self.build_fault_shown = ""
        self.say(f"\n-- {clock}  {what} ".ljust(WIDTH, "-"))

    def again(self, known: Judged) -> None:
        """Print the results of the earlier verdict `known` again."""
        points = {line.id: line.points for line in known.score.lines}
        for part in known.result.parts:
            self.verdict(part, points.get(part.id, 0.0))

    def lines(self) -> None:
        """Print the history: one line for each of the last verdicts, the newest at the end."""
        self.say("\n" + "\n".join(f"  {line}" for line in self.history.lines))


#: Signal that the watching thread sends to the main thread at a save.
SAVED = signal.SIGUSR1


class Superseded(BaseException):
    """Raised in the main thread if the file is saved during judging. The judge's `except Exception` lets it pass."""


class SameObject(Exception):
    """Raised if the compiled object equals, byte for byte, that of an earlier verdict of this session (`known`)."""

    def __init__(self, known: Judged) -> None:
        super().__init__()
        self.known = known


@dataclass(frozen=True)
class WatchTask:
    """The source and parts to judge at each save. `deliver` gets each verdict, `observe` (if given) each event."""

    assignment: Assignment
    source: Path
    parts: tuple[Part, ...]
    options: Options
    deliver: Callable[[SubmissionResult, Score], None]
    observe: Callable[[Event], None] | None = None


def watch(task: WatchTask) -> int:
    """Judge the source now and at each save, until Ctrl-C. Return the exit code of the last verdict.

    Without a verdict, return EXIT_INTERRUPTED, or EXIT_USAGE if the file never existed. Raises UsageError if the
    package watchfiles or the source's folder is missing, the source is not a file, or another --watch follows it.
    """
    if missing := files.missing_library():
        raise UsageError(missing)
    if task.source.is_dir():
        raise UsageError(f"--watch follows one file, and {task.source} is a folder")
    if task.source.exists() and not task.source.is_file():
        raise UsageError(f"--watch follows one file, and {task.source} is a pipe or a device")
    if not task.source.absolute().parent.is_dir():
        raise UsageError(f"no such folder: {task.source.absolute().parent}")
    with files.only_one(task.source):
        return Loop(task).run()


class Loop:
    """One session of --watch. `_saved` and `_read_keys` run in other threads, all other methods in the main thread."""

    def __init__(self, task: WatchTask) -> None:
        self.task = task
        self.history = History()
        self.graded = graded_ids(task.assignment)
        self.screen = Screen(self.history, task.assignment.lab.ladder(), self.graded)
        self._events: queue.SimpleQueue[Content | None] = queue.SimpleQueue()
        """Each saved content; None if the user presses Enter, to have the file judged again."""
        self._judging: Content | None = None
        self._has_begun = False
        """True once a source existed."""
        self._armed = False
        """True while a signal may interrupt the judging."""
        self._zygote: Zygote | None = None
        self._object_sha256 = ""

    def run(self) -> int:
        source = self.task.source
        further = self.task.assignment.beside(source.name)
        paths = (source, *(source.parent / name for name in (*further, ispc.SOURCE)))
        with contextlib.ExitStack() as stack:
            stack.enter_context(_signals(self._on_signal))
            stack.callback(self._close)
            watcher = files.Watcher(paths, self._saved)
            try:
                stack.enter_context(watcher)
                names = ", ".join(part.id for part in self.task.parts)
                self.screen.say(f"Watching {source} ({names}): save it to have it judged. Ctrl-C ends this.")
                if watcher.polls:
                    self.screen.say(
                        "The system has no file watches left (inotify): the file is read ten times a second instead."
                    )
                threading.Thread(target=self._read_keys, daemon=True, name="keys").start()
                import_numpy(self.task.assignment)
                self._follow(watcher.content())
            except KeyboardInterrupt:
                last = f"; the last: {summary(self.history.last)}" if self.history.last else ""
                self.screen.say(f"\n{plural(self.history.verdicts, 'verdict')}{last}")
        if self.history.last:
            return exit_code(self.history.last.result.parts)
        return EXIT_INTERRUPTED if self._has_begun else EXIT_USAGE

    def _follow(self, content: Content) -> None:
        """Judge the newest saved content, again and again, until Ctrl-C raises KeyboardInterrupt."""
        fresh = False
        while True:
            if content.source is None:
                self.screen.say(
                    f"{self.task.source} does not exist yet: it is judged as soon as it is saved."
                )
            else:
                self._judge(content, fresh)
            event = self._events.get()
            while not self._events.empty():
                later = self._events.get()
                event = event if later is None else later
            fresh = event is None
            content = content if event is None else event

    # ---- other threads

    def _saved(self, content: Content) -> None:
        """Queue a new content, and interrupt the judging of an older one. Called in the watcher's thread."""
        self._events.put(content)
        # If the file is missing, an editor may be about to write it: do not stop the judging of the last save.
        if self._armed and content.source is not None and content != self._judging:
            signal.pthread_kill(threading.main_thread().ident or 0, SAVED)

    def _read_keys(self) -> None:
        """Queue a request to judge the file again for each line that the user enters."""
        if sys.stdin is None or not sys.stdin.isatty():
            return
        with contextlib.suppress(OSError, ValueError):
            for _ in sys.stdin:
                self._events.put(None)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if number != SAVED:
            raise KeyboardInterrupt
        if self._armed:
            self._armed = False
            # Kill compilers and runners before raising: handlers that wait for them then end at once.
            for pid in procfs.children():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            raise Superseded

    # ---- one verdict

    def _judge(self, content: Content, fresh: bool) -> None:
        """Judge a content of the files and print the verdict.

        `fresh`: the user asked for it, so judge the file even if an equal object was judged before.
        """
        self._has_begun = True
        clock = f"{datetime.now():%H:%M:%S}"
        self.screen.begin(
            clock, "judged again" if fresh else self.history.change(content.text, content.files[1:])
        )
        if not fresh and (alike := self.history.alike(content.text, content.files[1:])):
            verdict = summary(alike)
            self.screen.say(
                f"Only comments or layout changed since #{alike.number} of {alike.clock} ({verdict}). "
                "The verdict stays if the compiled object is the same."
            )
        self._judging, self._object_sha256 = content, ""
        try:
            self._armed = True
            try:
                result = self._evaluated(fresh)
            finally:
                self._armed = False
        except Superseded:
            # The zygote may have been interrupted in the middle of a reply: the next judging starts a new zygote.
            self._close()
            self.screen.say("\nSaved again: this run was stopped.")
        except SameObject as same:
            self._same(content, same.known)
        except UsageError as error:
            self.screen.say(f"\n{error}")
        except KitError as error:
            self.screen.say(f"\n{error}")
            self._close()
        else:
            self._judged(content, result)
        self._judging = None

    def _evaluated(self, fresh: bool) -> SubmissionResult:
        """Judge the source. Unless `fresh`, raise SameObject if an equal compiled object has a verdict already."""
        task = self.task

        def listen(event: Event) -> None:
            self.screen(event)
            if isinstance(event, Built) and event.build.object_path is not None:
                self._object_sha256 = self._digest(event.build.object_path)
                known = None if fresh else self.history.of_object(self._object_sha256)
                # With --html, `observe` collects the pictures for the page, but keeps only those of the last verdict.
                # So an object with an older verdict is judged again.
                if known is not None and (task.observe is None or known is self.history.last):
                    raise SameObject(known)
                if known is not None:
                    self.screen.say(f"Same object as {known.name}: judged again to draw the page's pictures.")
            if task.observe is not None:
                task.observe(event)

        if self._zygote is None and not task.options.sanitize:
            # The zygote is the process from which runners with torch are forked. Later verdicts use the same zygote.
            self._zygote = Zygote(sandbox=of_file(task.source), at_once=False)
        return evaluate(task.assignment, task.source, task.parts, task.options, listen, self._zygote)

    def _digest(self, object_path: Path) -> str:
        """Return a digest of the compiled object and of the other files that belong to the source."""
        found = hashlib.sha256(object_path.read_bytes())
        for other in self._judging.files[1:] if self._judging is not None else ():
            found.update(b"-" if other is None else b"+" + hashlib.sha256(other).digest())
        return found.hexdigest()

    def _judged(self, content: Content, result: SubmissionResult) -> None:
        """Print and record a result, unless the judge has read a newer version of the file than `content`."""
        if result.sha256 != hashlib.sha256(content.source or b"").hexdigest():
            return  # The file was saved again before the judge read it: the new content is judged next.
        scored = score.score(self.task.assignment, result)
        if len(result.parts) > 1:
            self.screen.scoreboard(result, scored)
        self._record(
            Judged(
                datetime.now(),
                content.text,
                self._object_sha256,
                result,
                scored,
                content.files[1:],
                self.graded,
            )
        )

    def _same(self, content: Content, known: Judged) -> None:
        """Print and record the verdict `known` again, because the new compiled object is equal to its object."""
        self.screen.say(
            f"{self.history.relation(known).capitalize()} {known.name}: the compiled object is equal byte for byte, "
            "so the results are the same. The time is that of the earlier run."
        )
        self.screen.again(known)
        sha256 = hashlib.sha256(content.source or b"").hexdigest()
        result = replace(known.result, sha256=sha256)
        self._record(replace(known, text=content.text, result=result), datetime.now())

    def _record(self, one: Judged, saved_at: datetime | None = None) -> None:
        self.history.add(one, saved_at)
        try:
            self.task.deliver(one.result, one.score)
        except OSError as error:
            self.screen.say(f"\nnot written: {error}")
        self.screen.lines()

    # ---- processes

    def _close(self) -> None:
        """End the zygote and all other child processes, which an interrupted run may have left."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
        procfs.sweep(())


@contextlib.contextmanager
def _signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Install `handler` for SAVED, SIGTERM and SIGHUP (the terminal was closed) inside the `with` block."""
    before = {number: signal.signal(number, handler) for number in (SAVED, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)
