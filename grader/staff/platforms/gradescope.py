"""The harness in Gradescope's container: grades what is in `submission/` and always leaves a `results/results.json`.

Theory of operation. The container starts us as root in `/autograder`, which holds `source/` (this kit), `submission/`,
`results/` and `submission_metadata.json`. This process stays small and does no judging. It first leaves a
results.json that says that grading did not end, so that there is one even if the whole container is stopped; then it
has a child process do the work within a time limit; then it writes what the child found, or why there is nothing.

- The child hands its findings over in a folder that only this user may enter. Nothing is read back from `results/` or
  from `submission/`, so a results.json that the student hands in, or that the kernel writes, is at best overwritten.
- results.json is written last, in one step, to a name that is no link; `results/` is closed to other users meanwhile.
- A student is never shown a traceback: that goes to standard error, which Gradescope shows to the staff.
- 0 points by a fault of ours, or for want of a program on this machine, are named as such, and the process ends with
  exit code 3.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from grader.assignment.records import Assignment
from grader.base import removal, wholefile
from grader.base.commandline import Parser
from grader.base.errors import KitError, UsageError
from grader.base.places import ROOT
from grader.base.results import EXIT_KIT, EXIT_PASS
from grader.report import gradescope as report

AUTOGRADER = Path("/autograder")
CONFIG = Path("configs") / "gpt149.yaml"
HIDDEN_CONFIG = Path("configs") / "hidden" / "gpt149.yaml"
#: Gradescope stops a container after ten minutes unless the staff allows more; this leaves room to say so.
LIMIT_S = 570.0
LIMIT_VARIABLE = "GPT149_GRADESCOPE_LIMIT_S"
_FOUND = "found.json"
_LARGEST_FOUND_BYTES = 4 << 20
_CHILD = "--grade"


@dataclass(frozen=True)
class Metadata:
    """What submission_metadata.json tells of lateness. `due` is the latest that any of its users was given."""

    submitted_at: datetime | None = None
    due: datetime | None = None

    @property
    def late_s(self) -> float | None:
        if self.submitted_at is None or self.due is None:
            return None
        return max(0.0, (self.submitted_at - self.due).total_seconds())


def main(where: Path | Sequence[str] = AUTOGRADER, limit_s: float | None = None) -> int:
    """Grade what lies in the folder `where` (or, from the command line, in the one that it names).

    Returns 0 when there is a grade and 3 when the kit was at fault, which standard error then says too; results.json is
    there in both cases. Raises UsageError when there is no such folder, and so no place to leave anything.
    """
    if not isinstance(where, Path):
        if list(where[:1]) == [_CHILD]:
            return _grade_to_file(Path(where[1]), Path(where[2]))
        where = _folder(where)
    if not where.is_dir():
        raise UsageError(
            f"there is no folder {where}: name Gradescope's /autograder, or one laid out like it"
        )
    started = time.monotonic()
    limit_s = _limit_s() if limit_s is None else limit_s
    with _closed_to_others(where / "results") as results:
        _write(results, report.kit_fault("Grading did not end: was the container stopped?", seconds=0.0))
        found, code = _found_by_child(where, limit_s, started)
        _write(results, found)
    return code


def _folder(arguments: Sequence[str]) -> Path:
    parse = Parser(prog="python -m grader gradescope", description=(__doc__ or "").splitlines()[0])
    parse.add_argument(
        "root", metavar="DIR", type=Path, nargs="?", default=AUTOGRADER, help=f"in place of {AUTOGRADER}"
    )
    return parse.parse_args(arguments).root


# ---- this side: small, and always with an answer


def _found_by_child(root: Path, limit_s: float, started: float) -> tuple[dict[str, Any], int]:
    """What the child found, or a kit fault that says why it found nothing. Raises nothing."""
    private = Path(tempfile.mkdtemp(prefix="gpt149-gradescope-"))
    try:
        command = [sys.executable, "-m", "grader.staff.platforms.gradescope", _CHILD, str(root), str(private)]
        why = _run(command, limit_s)
        found = None if why else _read_found(private / _FOUND)
        if found is not None:
            return found, EXIT_KIT if found.pop("kit_fault", False) else EXIT_PASS
        why = why or "the grading process left no findings"
    except Exception:
        why = traceback.format_exc()
    finally:
        removal.remove(private)
    print(f"grader: {why}", file=sys.stderr)
    return report.kit_fault(why, seconds=time.monotonic() - started), EXIT_KIT


def _run(command: Sequence[str], limit_s: float) -> str:
    """Run the child in a process group of its own; "" when it ended well, else what happened to it."""
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
    return "" if code == 0 else f"the grading process ended with code {code}"


def _read_found(path: Path) -> dict[str, Any] | None:
    if not path.is_file() or path.stat().st_size > _LARGEST_FOUND_BYTES:
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else None


def _limit_s() -> float:
    try:
        return max(1.0, float(os.environ.get(LIMIT_VARIABLE, LIMIT_S)))
    except ValueError:
        return LIMIT_S


@contextlib.contextmanager
def _closed_to_others(results: Path) -> Iterator[Path]:
    """The results folder, made if need be, which no other user may enter until the last word is written."""
    if results.is_symlink() or (results.exists() and not results.is_dir()):
        results.unlink()
    results.mkdir(parents=True, exist_ok=True)
    mode = stat.S_IMODE(results.stat().st_mode)
    results.chmod(0o700)
    try:
        yield results
    finally:
        results.chmod(mode)


def _write(results: Path, found: Mapping[str, Any]) -> None:
    """results.json in one step. Whatever stood under its name, a link or a folder too, is replaced, not followed."""
    place = results / "results.json"
    text = json.dumps(found, indent=1, allow_nan=False) + "\n"
    if place.is_dir() and not place.is_symlink():
        removal.remove(place)
    wholefile.write_bytes(place, [text.encode()], mode=0o644)


# ---- the child: judges


def _grade_to_file(root: Path, private: Path) -> int:
    """Grade, and leave the findings in the private folder; whatever goes wrong is a finding too."""
    started = time.monotonic()
    max_points = 0.0
    try:
        assignment = _assignment(root)
        max_points = sum(part.points for part in assignment.parts)
        found = grade(assignment, root, private / "scratch")
    except (KitError, UsageError) as error:
        print(f"grader: {error}", file=sys.stderr)
        found = _fault(str(error), started, max_points)
    except Exception:
        traceback.print_exc()
        found = _fault(traceback.format_exc(), started, max_points)
    (private / _FOUND).write_text(json.dumps(found, allow_nan=False), encoding="utf-8")
    return 0


def _fault(why: str, started: float, max_points: float) -> dict[str, Any]:
    found = report.kit_fault(why, seconds=time.monotonic() - started, max_points=max_points)
    return {**found, "kit_fault": True}


def grade(assignment: Assignment, root: Path, scratch: Path) -> dict[str, Any]:
    """results.json of the submission in `root`. Raises KitError or UsageError for what is not the student's fault."""
    from grader import score, submission

    started = time.monotonic()
    handed_in = root / "submission"
    if not handed_in.is_dir():
        raise KitError(f"there is no folder {handed_in}: this is not Gradescope's layout")
    taken = submission.find_one(handed_in, assignment.source, scratch)
    if taken.source is None:
        why = taken.error or f"there is no {assignment.source} in it"
        return report.refused(assignment, why, seconds=time.monotonic() - started)
    metadata = read_metadata(root / "submission_metadata.json")
    result = _evaluate(assignment, taken.source)
    late_s = metadata.late_s
    if late_s is None and metadata.submitted_at is not None:
        late_s = score.lateness_s(assignment, metadata.submitted_at)
    scored = score.score(assignment, result, late_s=late_s)
    found = report.results(assignment, result, scored, seconds=time.monotonic() - started)
    if not scored.waiting:
        return found
    lacked = ", ".join(sorted({part.waits_for for part in result.parts} - {""}))
    print(f"grader: not judged, for this container has no {lacked}: install it in setup.sh", file=sys.stderr)
    return {**found, "kit_fault": True}


def _evaluate(assignment: Assignment, source: Path) -> Any:
    from grader import sandbox
    from grader.judge.evaluate import evaluate
    from grader.staff.classroom.worker import options

    return evaluate(
        assignment,
        source,
        assignment.select("all"),
        options(assignment, timing=True),
        sandbox=sandbox.choose(),
    )


def _assignment(root: Path) -> Assignment:
    """The assignment of the kit in `root/source`, else of this very kit; with the hidden cases where they are."""
    from grader.assignment.loading import load

    for kit in (root / "source", ROOT):
        for config in (kit / HIDDEN_CONFIG, kit / CONFIG):
            if config.is_file():
                return load(config)
    raise KitError(f"there is no {CONFIG} in {root / 'source'} or {ROOT}")


def read_metadata(path: Path) -> Metadata:
    """Times of submission and due date; what is missing or not as expected is None, for grading goes on without it.

    A due date of a user's own (an extension) counts before the assignment's; of a group's, the latest.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return Metadata()
    if not isinstance(values, dict):
        return Metadata()
    users = values.get("users")
    own = [_due(user) for user in users if isinstance(user, dict)] if isinstance(users, list) else []
    given = [due for due in own if due is not None] or [due for due in [_due(values)] if due is not None]
    return Metadata(_moment(values.get("created_at")), max(given, default=None))


def _due(values: Mapping[str, Any]) -> datetime | None:
    assignment = values.get("assignment")
    return _moment(assignment.get("due_date")) if isinstance(assignment, dict) else None


def _moment(text: object) -> datetime | None:
    """An ISO time with its zone; None for anything else, since times without a zone cannot be compared."""
    if not isinstance(text, str):
        return None
    with contextlib.suppress(ValueError):
        # Python 3.10 does not read the "Z" that stands for Greenwich.
        moment = datetime.fromisoformat(text.removesuffix("Z") + ("+00:00" if text.endswith("Z") else ""))
        return moment if moment.tzinfo else None
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
