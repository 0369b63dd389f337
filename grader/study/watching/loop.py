"""The loop of `--watch`: judge, wait for a save, judge again; a save in between ends what is being judged."""

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

#: Sent by the looking thread to the process itself.
SAVED = signal.SIGUSR1


class Superseded(BaseException):
    """The file has been saved while it was being judged. Like KeyboardInterrupt no fault that anybody should catch."""


class SameObject(Exception):
    """What was compiled is, byte for byte, an object that has been judged in this session."""

    def __init__(self, known: Judged) -> None:
        super().__init__()
        self.known = known


@dataclass(frozen=True)
class WatchTask:
    """What is to be judged at each save. `deliver` hears of each verdict, for files that were asked for; `observe` of
    each event, where what it keeps of them is to be delivered."""

    assignment: Assignment
    source: Path
    parts: tuple[Part, ...]
    options: Options
    deliver: Callable[[SubmissionResult, Score], None]
    observe: Callable[[Event], None] | None = None


def watch(task: WatchTask) -> int:
    """Judge the source now and at each save, until Ctrl-C; the exit code is that of the last verdict.

    Without any verdict it is that of an interrupted run, or of wrong usage where the file was never there. Raises
    UsageError where the library is missing, the folder is not there, what is named is no file, or another watcher has
    the file.
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
        """Contents as they are saved; None where somebody asks for a fresh verdict."""
        self._judging: Content | None = None
        self._has_begun = False
        """True if anything was there to be judged."""
        self._armed = False
        """True if a signal may end what the main thread does."""
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
        """Without end: KeyboardInterrupt is the caller's."""
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
        """Hears of each new content, in the watcher's thread."""
        self._events.put(content)
        # What is gone may come back: the verdict on what was saved last goes on.
        if self._armed and content.source is not None and content != self._judging:
            signal.pthread_kill(threading.main_thread().ident or 0, SAVED)

    def _read_keys(self) -> None:
        """Each line that is entered asks for a fresh verdict."""
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
            # Compilers and runners first, so that whoever waits for one does not wait any longer.
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
                # What was observed is about the last verdict.
                if known is not None and (task.observe is None or known is self.history.last):
                    raise SameObject(known)
            if task.observe is not None:
                task.observe(event)

        if self._zygote is None and not task.options.sanitize:
            # It imports torch once it is needed, and then has it.
            self._zygote = Zygote(sandbox=of_file(task.source), at_once=False)
        return evaluate(task.assignment, task.source, task.parts, task.options, listen, self._zygote)

    def _digest(self, object_path: Path) -> str:
        """Of the object, and of what is compiled and linked besides."""
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
        """The verdict on an object is the verdict on whatever gave it; its time is of then."""
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
        """End what is kept between runs, and all that a run may have left."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
        orphans.sweep(())


@contextlib.contextmanager
def _signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle a save, and end as by Ctrl-C when the terminal is closed or somebody ends the process."""
    before = {number: signal.signal(number, handler) for number in (SAVED, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)
