"""A worker with a fake evaluator, which obeys comments ("directives") in the submission and takes almost no time.

Directives, one per line:
    // wrong, slow       the verdict; "slow" only of parts that have a time
    // sleep S           sleep for S seconds
    // bulk N            N cases in each part
    // turn              wait for `Class.allow_turns`
    // freeze            never end
    // ponder            never end the inspection of the file
    // hopeless          raise KitError
    // nest N            make N nested folders in the worker's scratch folder
    // die, unfit N      end the process, or report an unfit machine, the first N times
    // fell N            kill this process's parent, the dask worker, the first N times
The folder $ACTING_STATE has a log of the finished evaluations.
"""

import hashlib
import os
import re
import signal
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from grader.core.errors import KitError
from grader.core.results import CaseResult, PartResult, SubmissionResult, Timing
from grader.judge.events import BuildStarted, PartStarted, StepStarted
from grader.staff.classroom import worker

STATE = Path(os.environ.get("ACTING_STATE", ""))


def nest(top: Path, depth: int, name: str = "d") -> None:
    """Make nested folders, each with a file. Enters each folder, so the path may be longer than Linux allows."""
    here = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def happened_before(what: str, source: Path) -> int:
    """Count this call. Return how often workers have called this function before with the same arguments."""
    tally = STATE / f"{what}-{source.parent.name}-{hashlib.sha256(source.read_bytes()).hexdigest()[:8]}"
    with tally.open("ab") as file:
        file.write(b".")
    return tally.stat().st_size - 1


def take_turn() -> None:
    while True:
        for ticket in STATE.glob("turn-*"):
            with suppress(FileNotFoundError):
                ticket.unlink()
                return
        time.sleep(0.002)


def act(of: Any, source: Path, parts: Any, how: Any, hear: Any, *_: Any, exclusive: Any, **__: Any) -> Any:
    text = source.read_text()
    settings = {name: float(value or 0) for name, value in re.findall(r"// (\w+) ?([\d.]*)", text)}
    hear(BuildStarted(source))
    if "ponder" in settings:
        hear(StepStarted("inspection"))
        time.sleep(600)
    called = " ".join(f"{part.id}:{','.join(case.name for case in part.cases)}" for part in parts)
    with (STATE / "called").open("a") as log:
        log.write(f"{source.parent.name} {called}\n")
    hear(PartStarted(parts[0], {}))
    time.sleep(settings.get("sleep", 0.0))
    if "turn" in settings:
        take_turn()
    if "nest" in settings:
        again = happened_before("nest", source) or "freeze" in settings
        nest(Path(os.environ["TMPDIR"]), int(settings["nest"]))
        (STATE / ("nested-again" if again else "nested")).touch()
    if happened_before("die", source) < settings.get("die", 0):
        os.kill(os.getpid(), signal.SIGKILL)
    if happened_before("fell", source) < settings.get("fell", 0):
        node = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
        os.kill(int(node[1]), signal.SIGKILL)
        time.sleep(600)
    if "hopeless" in settings:
        raise KitError("there is no compiler")
    while "freeze" in settings:
        time.sleep(1)
    unfit = happened_before("unfit", source) < settings.get("unfit", 0)
    alone: AbstractContextManager[Any] = exclusive(parts[-1])
    with alone, (STATE / "log").open("a") as log:
        log.write(f"{source.parent.name}\n")
    timing = Timing(1.0, 1.0, 1.0, (0.9, 1.1), 0.98, 8, "cpu", 1.1, "pass", 1.0, fit=not unfit)
    cases = tuple(CaseResult(f"case {k}", {}, True, 0.0) for k in range(int(settings.get("bulk", 0))))
    results = []
    for part in parts:
        verdict = "wrong" if "wrong" in settings else "slow" if "slow" in settings and part.time else "pass"
        results.append(PartResult(part.id, part.title, verdict, part.points, cases, timing, output=text))
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    return SubmissionResult("module", digest, of.id, {}, {}, {}, tuple(results), max_points=30.0)


if __name__ == "__main__":
    worker.evaluate, worker.import_numpy = act, lambda assignment: None
    worker.Zygote = lambda sandbox, at_once: SimpleNamespace(close=lambda: None)  # type: ignore[assignment, misc]
    worker.main()
