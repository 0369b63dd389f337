"""Loop of `--watch`: judge, wait for a save, judge again. A save in between ends the run in progress."""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import FrameType

from grader import score
from grader.assignment.records import Assignment, Part
from grader.backends.native import ispc
from grader.backends.torch.zygote import Zygote
from grader.core import orphans
from grader.core.commandline import EXIT_INTERRUPTED
from grader.core.errors import EXIT_USAGE, KitError, UsageError
from grader.core.results import Score, SubmissionResult, exit_code
from grader.judge.bench import Options
from grader.judge.evaluate import evaluate, import_numpy
from grader.judge.events import Built, Event
from grader.report.words import plural
from grader.sandbox import of_file
from grader.study.watching import files
from grader.study.watching.files import Content
from grader.study.watching.history import History, Judged, Screen, summary

#: Sent by the watching thread to its own process.
SAVED = signal.SIGUSR1


class Superseded(BaseException):
    """Raised if the file is saved while it is being judged.

    Like KeyboardInterrupt it must not be caught as an error.
    """


class SameObject(Exception):
    """Raised if the compiled object equals, byte for byte, one that was judged in this session."""

    def __init__(self, known: Judged) -> None:
        super().__init__()
        self.known = known


@dataclass(frozen=True)
class WatchTask:
    """Files to judge at each save.

    `deliver` is called with each verdict, for output files; `observe` with each event, if events are to be delivered
    too.
    """

    assignment: Assignment
    source: Path
    parts: tuple[Part, ...]
    options: Options
    deliver: Callable[[SubmissionResult, Score], None]
    observe: Callable[[Event], None] | None = None


def watch(task: WatchTask) -> int:
    """Judge the source now and at each save, until Ctrl-C. Return the exit code of the last verdict.

    Without any verdict it is that of an interrupted run, or of wrong usage if the file never existed. Raises UsageError
    if the library is missing, the folder does not exist, the source is not a file, or another watcher has the file.
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
    """One session. Everything but `_saved` and `_read_keys` runs in the main thread."""

    def __init__(self, task: WatchTask) -> None:
        self.task = task
        self.history = History()
        self.screen = Screen(self.history, ladder=task.assignment.lab.ladder())
        self._events: queue.SimpleQueue[Content | None] = queue.SimpleQueue()
        """Contents as they are saved; None if the user asks for a fresh verdict."""
        self._judging: Content | None = None
        self._has_begun = False
        """True if there was a source to judge."""
        self._armed = False
        """True while a signal may end the main thread's work."""
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
                        "The system has no file watches left (inotify): looking ten times a second."
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
        """Judge each content. Never returns; the caller handles KeyboardInterrupt."""
        fresh = False
        while True:
            if content.source is None:
                self.screen.say(f"{self.task.source} is not there: it is judged as soon as it is saved.")
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
        """Queue a new content. Called in the watcher's thread."""
        self._events.put(content)
        # A missing file may come back, so the run on the last save goes on.
        if self._armed and content.source is not None and content != self._judging:
            signal.pthread_kill(threading.main_thread().ident or 0, SAVED)

    def _read_keys(self) -> None:
        """Queue a request for a fresh verdict for each line that is entered."""
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
            # Compilers and runners are killed first: code that waits for one of them then returns at once.
            for pid in orphans.children():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            raise Superseded

    # ---- one verdict

    def _judge(self, content: Content, fresh: bool) -> None:
        self._has_begun = True
        clock = f"{datetime.now():%H:%M:%S}"
        self.screen.begin(
            clock, "judged again" if fresh else self.history.change(content.text, content.files[1:])
        )
        if not fresh and (alike := self.history.alike(content.text, content.files[1:])):
            verdict = summary(alike)
            self.screen.say(
                f"Only comments or layout changed since {alike.clock}: {verdict}, if the object is the same:"
            )
        self._judging, self._object_sha256 = content, ""
        try:
            self._armed = True
            try:
                result = self._evaluated(fresh)
            finally:
                self._armed = False
        except Superseded:
            # A process with torch may have been in the middle of an answer: the next run starts another.
            self._close()
            self.screen.say("\nSaved again: this run is ended.")
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
        task = self.task

        def listen(event: Event) -> None:
            self.screen(event)
            if isinstance(event, Built) and event.build.object_path is not None:
                self._object_sha256 = self._digest(event.build.object_path)
                known = None if fresh else self.history.of_object(self._object_sha256)
                # Events passed to `observe` belong to the last verdict.
                if known is not None and (task.observe is None or known is self.history.last):
                    raise SameObject(known)
            if task.observe is not None:
                task.observe(event)

        if self._zygote is None and not task.options.sanitize:
            # It imports torch on first need, and then keeps it.
            self._zygote = Zygote(sandbox=of_file(task.source), at_once=False)
        return evaluate(task.assignment, task.source, task.parts, task.options, listen, self._zygote)

    def _digest(self, object_path: Path) -> str:
        """Return a digest of the object and of the other files that are compiled and linked."""
        found = hashlib.sha256(object_path.read_bytes())
        for other in self._judging.files[1:] if self._judging is not None else ():
            found.update(b"-" if other is None else b"+" + hashlib.sha256(other).digest())
        return found.hexdigest()

    def _judged(self, content: Content, result: SubmissionResult) -> None:
        if result.sha256 != hashlib.sha256(content.source or b"").hexdigest():
            return  # it was saved before it was read: the save's own turn comes next
        scored = score.score(self.task.assignment, result)
        if len(result.parts) > 1:
            self.screen.scoreboard(result, scored)
        self._record(
            Judged(datetime.now(), content.text, self._object_sha256, result, scored, content.files[1:])
        )

    def _same(self, content: Content, known: Judged) -> None:
        """Show the known verdict on an equal object again, with its old time."""
        self.screen.say(
            f"The object is that of {known.clock}, byte for byte: so are its results. Its time is of then."
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
        """End the processes kept between runs, and all that a run may have left."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
        orphans.sweep(())


@contextlib.contextmanager
def _signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle a save. A closed terminal or a request to end raises as Ctrl-C does."""
    before = {number: signal.signal(number, handler) for number in (SAVED, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)
