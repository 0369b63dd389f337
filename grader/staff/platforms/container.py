"""Program that grades the one submission in a platform's container, and always writes a results file.

Theory of operation. The platform starts this process, usually as root, with a folder that contains the hand-in. This
process first writes a results file which says that grading did not end: the file remains if the container is stopped.
Then it starts a child process, which grades within a time limit. At the end this process overwrites the results file
with the child's results, or with the reason why they are missing.

- The child writes its results into a private folder that only its own user can enter. This process reads results only
  from that folder. A results file that the student hands in, or that a student's kernel writes, is overwritten.
- Each time, the results file is written in one step, and never through a link. Until this process ends, other users
  cannot enter the file's folder.
- Students never see a traceback. It goes to standard error, which platforms show to the staff.
- If the kit fails, or the container lacks a program, the results say why a grade is missing. The exit code is then 3.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from grader.assignment.records import Assignment
from grader.backends.kinds import all_on_card
from grader.core import commandline, plainfile, removal
from grader.core.commandline import Parser
from grader.core.errors import EXIT_KIT, EXIT_PASS, KitError, UsageError
from grader.core.places import GRADER_COMMAND, ROOT
from grader.core.results import Score, SubmissionResult

Results = dict[str, Any]


class Renderer(Protocol):
    """Interface of modules such as `grader.report.gradescope`.

    Each method returns the content of a results file as JSON values. `seconds` is the time that grading took.
    """

    def results(
        self, assignment: Assignment, result: SubmissionResult, score: Score, *, seconds: float
    ) -> Results:
        """Render a graded submission."""

    def refused(self, assignment: Assignment, why: str, *, seconds: float) -> Results:
        """Render a submission that cannot be judged by its own fault, such as a missing source file. `why` says so."""

    def kit_fault(self, details: str, *, seconds: float, max_points: float = 0.0) -> Results:
        """Render a failure of the grader: the submission gets no grade. `details` are for the staff only."""


@dataclass(frozen=True)
class Container:
    """Settings of a platform that starts a container to grade one submission.

    `submission` is the folder with the hand-in, and `results` the results file. `kits` are folders that may contain an
    assignment (`configs/`). All these paths are relative to the folder `root`. The first assignment found is used, else
    the one in the kit. `late_s` returns the lateness in seconds, or None if unknown. `limit_s` is the time limit of
    grading in seconds, shorter than the platform's; the environment variable `limit_variable` overrides it. `module` is
    run as the child process. `image` names the file in which the staff can add a program that the container lacks.
    """

    title: str
    module: str
    root: Path
    submission: str
    results: str
    kits: tuple[str, ...]
    renderer: Renderer
    late_s: Callable[[Path, Assignment], float | None]
    limit_s: float
    limit_variable: str
    image: str


CONFIG = Path("configs") / "gpt149.yaml"
HIDDEN_CONFIG = Path("configs") / "hidden" / "gpt149.yaml"
CHILD = "--grade"
"""First argument of the child process. The container's folder and the private folder for results follow."""
_FOUND = "found.json"
_LARGEST_FOUND_BYTES = 4 << 20


def main(container: Container, where: Path | Sequence[str], limit_s: float | None = None) -> int:
    """Grade the submission in a folder that is laid out like the platform's `root`, and write the results file.

    `where` is the folder's path, or the command-line arguments that name the folder. Returns exit code 0 if the grader
    worked. If it failed, prints a message to standard error and returns 3. Raises UsageError if the folder does not
    exist.
    """
    if not isinstance(where, Path):
        if list(where[:1]) == [CHILD]:
            return _grade_to_file(container, Path(where[1]), Path(where[2]))
        where = _folder(container, where)
    if not where.is_dir():
        raise UsageError(
            f"there is no folder {where}: name a folder laid out like {container.root} of {container.title}"
        )
    started = time.monotonic()
    limit_s = _limit_s(container) if limit_s is None else limit_s
    with _closed_to_others((where / container.results).parent) as folder:
        place = folder / Path(container.results).name
        did_not_end = "Grading did not end: was the container stopped?"
        _write(place, container.renderer.kit_fault(did_not_end, seconds=0.0))
        found, code = _found_by_child(container, where, limit_s, started)
        _write(place, found)
    return code


def _folder(container: Container, arguments: Sequence[str]) -> Path:
    command = container.module.rpartition(".")[2]
    parse = Parser(
        prog=f"{GRADER_COMMAND} {command}",
        description=f"Grade the submission in {container.title}'s container.",
    )
    parse.path(
        "root", f"folder to use in place of {container.root}", "DIR", nargs="?", default=container.root
    )
    return parse.parse_args(arguments).root


# ---- this process: starts the child and writes the results


def _found_by_child(
    container: Container, root: Path, limit_s: float, started: float
) -> tuple[dict[str, Any], int]:
    """Run the child process. Return (its results, exit code). If it fails, the results describe the failure."""
    private = Path(tempfile.mkdtemp(prefix="gpt149-container-"))
    try:
        why = run([sys.executable, "-m", container.module, CHILD, str(root), str(private)], limit_s)
        found = None if why else _read_found(private / _FOUND)
        if found is not None:
            return found, EXIT_KIT if found.pop("kit_fault", False) else EXIT_PASS
        why = why or "the grading process left no results"
    except Exception:
        why = traceback.format_exc()
    finally:
        removal.remove(private)
    print(f"grader: {why}", file=sys.stderr)
    return container.renderer.kit_fault(why, seconds=time.monotonic() - started), EXIT_KIT


def run(command: Sequence[str], limit_s: float) -> str:
    """Run a command in a new process group for at most `limit_s` seconds, and then kill the group.

    Return "" for exit code 0, else a text that says how the command ended.
    """
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = child.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return f"grading did not end within {limit_s:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return "" if code == 0 else f"the grading process ended with exit code {code}"


def _read_found(path: Path) -> dict[str, Any] | None:
    """Return the results that the child process wrote; None if the file is missing, too large or not a JSON object."""
    if not path.is_file() or path.stat().st_size > _LARGEST_FOUND_BYTES:
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else None


def _limit_s(container: Container) -> float:
    try:
        return max(1.0, float(os.environ.get(container.limit_variable, container.limit_s)))
    except ValueError:
        return container.limit_s


@contextlib.contextmanager
def _closed_to_others(results: Path) -> Iterator[Path]:
    """Yield the folder `results`, created if missing. Inside the `with` block, other users cannot enter the folder."""
    if results.is_symlink() or (results.exists() and not results.is_dir()):
        results.unlink()
    results.mkdir(parents=True, exist_ok=True)
    mode = stat.S_IMODE(results.stat().st_mode)
    results.chmod(0o700)
    try:
        yield results
    finally:
        results.chmod(mode)


def _write(place: Path, found: Mapping[str, Any]) -> None:
    """Write the results file in one step. A link or a folder of this name is replaced, not followed."""
    text = json.dumps(found, indent=1, allow_nan=False) + "\n"
    if place.is_dir() and not place.is_symlink():
        removal.remove(place)
    plainfile.write_bytes(place, [text.encode()], mode=0o644)


# ---- the child process: grades


def _grade_to_file(container: Container, root: Path, private: Path) -> int:
    """Grade, and write the results or the error into the private folder. Return exit code 0."""
    started = time.monotonic()
    max_points = 0.0
    try:
        # In each folder, an assignment file with hidden cases comes first. The kit's folder is searched last.
        assignment = _first_assignment([*(root / name for name in container.kits), ROOT])
        max_points = sum(part.points for part in assignment.parts)
        found = grade(container, assignment, root, private / "scratch")
    except (KitError, UsageError) as error:
        print(f"grader: {error}", file=sys.stderr)
        found = _fault(container, str(error), started, max_points)
    except Exception:
        traceback.print_exc()
        found = _fault(container, traceback.format_exc(), started, max_points)
    (private / _FOUND).write_text(json.dumps(found, allow_nan=False), encoding="utf-8")
    return 0


def _fault(container: Container, why: str, started: float, max_points: float) -> dict[str, Any]:
    found = container.renderer.kit_fault(why, seconds=time.monotonic() - started, max_points=max_points)
    return {**found, "kit_fault": True}


def grade(container: Container, assignment: Assignment, root: Path, scratch: Path) -> dict[str, Any]:
    """Grade the submission below `root`. Return the results in the platform's format.

    Raises KitError for a failure of the kit, UsageError for a mistake in the assignment.
    """
    from grader import score, submission

    started = time.monotonic()
    handed_in = root / container.submission
    if not handed_in.is_dir():
        raise KitError(f"there is no folder {handed_in}: {container.title} should put the submission there")
    taken = submission.find_one(handed_in, assignment.source, scratch)
    if taken.source is None:
        why = taken.error or f"the submission has no {assignment.source}"
        return container.renderer.refused(assignment, why, seconds=time.monotonic() - started)
    result = _evaluate(container, root, assignment, taken.source)
    scored = score.score(assignment, result, late_s=container.late_s(root, assignment))
    found = container.renderer.results(assignment, result, scored, seconds=time.monotonic() - started)
    if not scored.waiting:
        return found
    lacked = ", ".join(sorted({part.waits_for for part in result.parts} - {""}))
    message = f"not judged: this container has no {lacked}; add it in {container.image} or in the platform's settings"
    print(f"grader: {message}", file=sys.stderr)
    return {**found, "kit_fault": True}


def _evaluate(container: Container, root: Path, assignment: Assignment, source: Path) -> SubmissionResult:
    from grader import sandbox
    from grader.judge.evaluate import evaluate
    from grader.staff import options

    box = sandbox.choose()
    box.protect(*(root / name / HIDDEN_CONFIG.parent for name in container.kits))
    return evaluate(
        assignment, source, assignment.select("all"), options(assignment, timing=True), sandbox=box
    )


def _first_assignment(kits: Sequence[Path]) -> Assignment:
    from grader.assignment.loading import load

    for kit in kits:
        for config in (kit / HIDDEN_CONFIG, kit / CONFIG):
            if config.is_file():
                return load(config)
    raise KitError(f"there is no {CONFIG} in {' or '.join(map(str, kits))}")


def prepare(arguments: list[str]) -> int:
    """Compile everything that all submissions share, when setup.sh builds an image. Return exit code 0."""
    from grader.backends.native import nativebuild
    from grader.backends.torch import torchbuild

    parse = Parser(
        prog="python -m grader.staff.platforms.container",
        description="Compile the reference, the runner and the headers once for all submissions.",
    )
    parse.add_argument("--torch", action="store_true", help="also compile for processes with torch")
    torch = parse.parse_args(arguments).torch
    assignment = _first_assignment([ROOT])
    if all_on_card(assignment.parts):
        # GPU kernels are compiled at their first call, for the GPU of the machine that judges them. So nothing can be
        # compiled now.
        return EXIT_PASS
    reference = assignment.lab.reference()
    reference.program()
    nativebuild.precompile()
    if torch:
        reference.for_torch()
        torchbuild.precompile()
    return EXIT_PASS


if __name__ == "__main__":
    commandline.main("prepare", prepare)
