"""Tests of a release before any file is written: its archives must work when they are unpacked into empty folders.

Each test runs the command that a student or a platform will run, in a new process, and compares the outcome with the
expected one. The processes share a new build cache, into which the caller's precompiled headers are copied. The first
failure ends the release with a message. If this machine lacks a program or a GPU to judge some parts or times, the
release goes on and lists these as not proved. If no part can be judged, the release ends.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grader.assignment.records import Assignment
from grader.backends.native.toolchain import cache_root
from grader.core import imports, objectcache
from grader.core.commandline import size_options
from grader.core.errors import EXIT_KIT, EXIT_PASS, EXIT_SUBMISSION, KitError, UsageError
from grader.report import gradescope
from grader.staff.release.contents import STAFF_ROOMS, unpack, within

TIMEOUT_S = 900.0
#: Words that the diagnosis contains for a part that the student has not begun.
NOT_WRITTEN = "not written yet"


class Unproved(UsageError):
    """Raised if a release does not work as intended. The error's text names the failed test, in one line."""


@dataclass(frozen=True)
class ProofSetup:
    """Settings and findings of a release's tests. `folder`, empty at first, has their files. `say` prints a line."""

    assignment: Assignment
    starters: Mapping[str, str]
    """Texts of the files to hand in by name, without the solution."""
    solutions: Mapping[str, str]
    """Texts of the same files with the solution."""
    folder: Path
    say: Callable[[str], None] = lambda line: None
    lacking: dict[str, str] = field(default_factory=dict)
    """{part id: missing program or device} for the parts that this machine cannot judge."""
    untimed: dict[str, str] = field(default_factory=dict)
    """{part id: missing program or device} for the correct parts whose times cannot be judged."""
    unseen: list[str] = field(default_factory=list)
    """Tests that could not be run because this machine lacks a program or a GPU."""

    def put(self, files: Mapping[str, str], folder: Path) -> None:
        """Write `files`, which maps file names to texts, into `folder`."""
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")

    def say_what_is_open(self) -> None:
        """Print one line with the parts, times and tests that this machine could not prove, if there are any."""
        unproved = [f"{part} (no {what})" for part, what in self.lacking.items()]
        if self.untimed:
            lacks = ", ".join(f"no {what}" for what in dict.fromkeys(self.untimed.values()))
            unproved.append(f"the times of {', '.join(self.untimed)} ({lacks})")
        unproved += self.unseen
        if unproved:
            self.say(f"NOT PROVED on this machine: {'; '.join(unproved)}")

    @property
    def points(self) -> float:
        return sum(part.points for part in self.assignment.parts)

    @property
    def cache(self) -> Path:
        """Cache folder of all builds in the tests. It contains none of the submissions in the caller's cache."""
        return self.folder / "cache"

    def share_what_every_build_needs(self) -> None:
        """Copy the precompiled headers and the runner from the caller's cache into the tests' cache, to save time."""
        objectcache.share(cache_root(), self.cache, ("", ".plain", ".kit"))

    def environment(self) -> dict[str, str]:
        """Return a test's environment variables: the caller's PATH, LANG, TMPDIR and CXX, but a new home and cache."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR", "CXX") if name in os.environ}
        return {
            **kept,
            "HOME": str(self.folder),
            "GPT149_CACHE": str(self.cache),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(
        self,
        arguments: list[str],
        folder: Path,
        *,
        accept: tuple[int, ...],
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """Run Python with these arguments in a folder, and return its output.

        `variables` are added to the environment. Raises Unproved if the exit code is not in `accept`, or after
        TIMEOUT_S seconds.
        """
        code, text = self.ended(arguments, folder, variables)
        if code not in accept:
            raise Unproved(f"`{_command(arguments)}` exits with code {code} in {folder.name}: {_last(text)}")
        return text

    def ended(
        self, arguments: list[str], folder: Path, variables: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Run Python in `folder`, and return (exit code, output). Raises Unproved after TIMEOUT_S seconds."""
        command = [sys.executable, *arguments]
        try:
            ended = subprocess.run(
                command,
                cwd=folder,
                env={**self.environment(), **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise Unproved(
                f"`{_command(arguments)}` did not end within {TIMEOUT_S:.0f} s in {folder.name}"
            ) from error
        return ended.returncode, ended.stdout.decode(errors="replace")


def _command(arguments: list[str]) -> str:
    return " ".join(["python", *arguments])


# ---- the handout


def handout(bench: ProofSetup, archive: bytes) -> None:
    """Test the handout: all imports resolve, the starter compiles and earns no points, the solution earns all."""
    folder = unpacked(bench, archive, "handout")
    imports_resolve(folder)
    bench.say("the handout contains all modules that its command lines import")
    bench.share_what_every_build_needs()
    bench.put(bench.starters, folder)
    bench.lacking.update(earns_nothing(_judged(bench, folder), "the starter in the handout"))
    refuse_unjudgeable(bench)
    where = _parts(bench, "every part")
    bench.say(f"the starter compiles, earns 0 on {where} and gets 'not written yet'")
    bench.put(bench.solutions, folder)
    judged = _judged(bench, folder)
    refuse_undecided(bench, judged)
    earns_all(judged, "the solution in the handout")
    bench.say(f"the solution in the handout gives right results on {where}")
    _times(bench, folder)


def _times(bench: ProofSetup, folder: Path) -> None:
    """Test that the solution is fast enough, as far as this machine and the handout's references can time it."""
    timed = [
        part
        for part in bench.assignment.parts
        if part.time and part.time.graded and part.points > 0 and part.id not in bench.lacking
    ]
    commands = list(dict.fromkeys(part.command for part in timed))
    chosen = {
        name: min(size, bench.assignment.defaults[name])
        for name, size in bench.assignment.lab.proof_sizes.items()
    }
    sizes = size_options(chosen, bench.assignment.size_options)
    for command in commands:
        judged = _judged(bench, folder, command, *sizes)
        if waits := earns_all(judged, "the solution in the handout, timed,"):
            # If one part cannot be timed, the others probably cannot either. So count the times of all parts as not
            # proved.
            what = next(iter(waits.values()))
            bench.untimed.update({part.id: waits.get(part.id, what) for part in timed})
            return
    if commands:
        what = " ".join(
            ["and is fast enough compared with the compiled reference", *(["with", *sizes] if sizes else [])]
        )
        bench.say(f"{what}: {', '.join(commands)}")


def refuse_unjudgeable(bench: ProofSetup) -> None:
    """Raise KitError if this machine cannot judge any part with points: then nothing about the release is proved."""
    parts = [part.id for part in bench.assignment.parts if part.points > 0]
    if parts and set(parts) <= set(bench.lacking):
        what = ", ".join(dict.fromkeys(bench.lacking.values()))
        raise KitError(
            f"nothing was written: without {what} this machine cannot judge any part of {bench.assignment.id}; "
            f"install {what}, or make the release on a machine that has it"
        )


def refuse_undecided(bench: ProofSetup, judged: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise Unproved if a part of the solution (`judged`) is unjudged, but the same part of the starter was judged."""
    for name, part in judged.items():
        if part["verdict"] == "unjudged" and name not in bench.lacking:
            raise Unproved(f"the solution in the handout is unjudged on {name}: {_why(part)}")


def _parts(bench: ProofSetup, all_of_them: str) -> str:
    """Return the ids of the parts that this machine can judge, joined by commas; `all_of_them` if it can judge all."""
    if not bench.lacking:
        return all_of_them
    return ", ".join(
        part.id for part in bench.assignment.parts if part.points > 0 and part.id not in bench.lacking
    )


def imports_resolve(folder: Path) -> None:
    """Raise Unproved if a module in `folder` imports a missing kit module, unless from STAFF_ROOMS in a function."""
    known = imports.modules(folder)
    for found in imports.missing(folder, known):
        if not (found.late and within(found.imported, STAFF_ROOMS)):
            path = known[found.importer].relative_to(folder)
            raise Unproved(f"{path}:{found.line} imports {found.imported}, which the handout lacks")


def git_takes_all(bench: ProofSetup, archive: bytes) -> None:
    """Raise Unproved if .gitignore excludes a file of the handout: students' repositories would lack the file."""
    git = shutil.which("git")
    if git is None:
        bench.say("NOT CHECKED, because git is missing: .gitignore could exclude files of the handout")
        return
    folder = unpacked(bench, archive, "template")
    asked = ["ls-files", "--others", "--ignored", "--exclude-standard", "-z"]
    for arguments in (["init", "--quiet", "--template="], asked):
        ended = subprocess.run(
            [git, *arguments],
            cwd=folder,
            env={**bench.environment(), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
        )
        if ended.returncode != 0:
            raise Unproved(f"`git {arguments[0]}` failed: {_last(ended.stderr.decode(errors='replace'))}")
    ignored = [name for name in ended.stdout.decode(errors="replace").split("\0") if name]
    if ignored:
        more = f" and {len(ignored) - 1} more" if len(ignored) > 1 else ""
        raise Unproved(f".gitignore of the handout excludes {ignored[0]}{more} from a repository")
    bench.say("the handout's .gitignore excludes none of its files")


def earns_nothing(parts: Mapping[str, Mapping[str, Any]], whose: str) -> dict[str, str]:
    """Check the results of a starter. Return {unjudged part: missing program or device}.

    Raises Unproved unless all other parts earn 0 points and are reported as "not written yet". `parts` are parts of
    result.json by id; `whose` names the judged files at the start of the error.
    """
    waits: dict[str, str] = {}
    for name, part in parts.items():
        if part["points"] > 0:
            raise Unproved(f"{whose} earns {part['points']:g} points on {name}: it must earn nothing")
        if part["verdict"] == "unjudged" and part.get("waits_for"):
            waits[name] = part["waits_for"]
            continue
        if part["max_points"] > 0 and part["verdict"] != "wrong":
            raise Unproved(
                f"{whose} is {part['verdict']} on {name}: it must compile, and be wrong: {_why(part)}"
            )
        if part["max_points"] > 0 and NOT_WRITTEN not in _why(part):
            raise Unproved(f"{whose} is not reported as `{NOT_WRITTEN}` on {name}, but: {_why(part)}")
    return waits


def earns_all(parts: Mapping[str, Mapping[str, Any]], whose: str) -> dict[str, str]:
    """Check the results of a solution. Return {unjudged part: missing program or device}.

    Raises Unproved if a part is wrong or too slow. `parts` are parts of result.json by id; `whose` names the judged
    files at the start of the error.
    """
    waits: dict[str, str] = {}
    for name, part in parts.items():
        if part["verdict"] == "unjudged" and part.get("waits_for"):
            waits[name] = part["waits_for"]
        elif part["verdict"] != "pass" or part["points"] < part["max_points"]:
            raise Unproved(
                f"{whose} is {part['verdict']} on {name}, with {part['points']:g} of {part['max_points']:g} "
                f"points: {_why(part)}"
            )
    return waits


def _judged(bench: ProofSetup, folder: Path, *asked: str) -> dict[str, dict[str, Any]]:
    """Run `python gpt149.py` in `folder` with `asked`, else `all --no-time`. Return parts of result.json by id."""
    asked = asked or ("all", "--no-time")
    found = bench.folder / "result.json"
    found.unlink(missing_ok=True)
    arguments = ["gpt149.py", *asked, "--json", str(found)]
    code, said = bench.ended(arguments, folder)
    # Exit code 3 with a result is not a failure: this machine lacks a program or device for a part.
    if code not in (EXIT_PASS, EXIT_SUBMISSION) and not (code == EXIT_KIT and found.is_file()):
        raise Unproved(f"`{_command(arguments)}` exits with code {code} in {folder.name}: {_last(said)}")
    if not found.is_file():
        raise Unproved(f"`python gpt149.py {asked[0]}` wrote no result in {folder.name}: {_last(said)}")
    return {part["id"]: part for part in json.loads(found.read_text(encoding="utf-8"))["parts"]}


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no output"])[-1]


def _why(part: Mapping[str, Any]) -> str:
    reason = (part.get("diagnosis") or {}).get("message") or part.get("output") or "no reason"
    return str(reason).strip().splitlines()[0]


# ---- the autograder


def autograder(bench: ProofSetup, archive: bytes) -> None:
    """Test the autograder in folders like those of Gradescope's container.

    The starter must get 0 points and the solution all points, including those for times. Parts may lack a grade only if
    this machine cannot judge them or their times.
    """
    root = bench.folder / "autograder"
    unpacked(bench, archive, "autograder/source")
    bench.share_what_every_build_needs()
    for files, earns, whose in ((bench.starters, False, "starter"), (bench.solutions, True, "solution")):
        hand_in(root, bench, files)
        accept = (EXIT_PASS, EXIT_KIT) if bench.lacking or bench.untimed else (EXIT_PASS,)
        bench.run(["-m", "grader", "gradescope", str(root)], root / "source", accept=accept)
        scored = json.loads((root / "results" / "results.json").read_text(encoding="utf-8"))
        opened = _open_in(bench, scored, {*bench.lacking, *(bench.untimed if earns else ())}, whose)
        wanted = sum(part.points for part in bench.assignment.parts if earns and part.id not in opened)
        if abs(scored["score"] - wanted) > 1e-6:
            raise Unproved(
                f"the autograder gives the {whose} {scored['score']:g} points instead of {wanted:g}: {_lost(scored)}"
            )
        if earns:
            # The autograder has all references, so it can judge times that the handout cannot judge. These are proved.
            for part in [part for part in bench.untimed if part not in opened]:
                del bench.untimed[part]
        bench.say(
            f"the autograder gives the {whose} {wanted:g} of {bench.points:g} points{_left_open(bench, opened)}"
        )


def _open_in(bench: ProofSetup, scored: Mapping[str, Any], may_be: set[str], whose: str) -> set[str]:
    """Return the ids of the parts without a grade in `scored`, the content of Gradescope's results.json.

    Raises Unproved if a part is missing, or if a part without a grade is not in `may_be`. If only a part's time could
    not be judged, the part's hidden cases must have passed. `whose` names the submission in errors.
    """
    tests = {test["name"]: test for test in scored.get("tests", [])}
    opened = set()
    for part in (part for part in bench.assignment.parts if part.points > 0):
        begins = f"{part.id}: "
        found = next(
            (test for name, test in tests.items() if name.startswith(begins) and test["max_score"] > 0), None
        )
        if found is None:
            raise Unproved(f"the autograder does not judge {part.id} of the {whose}: {_lost(scored)}")
        if not found["name"].endswith(gradescope.NO_GRADE):
            continue
        hidden = tests.get(f"{part.id}: {gradescope.HIDDEN_TESTS}")
        is_timeless = part.id not in bench.lacking and any(case.hidden for case in part.cases)
        if part.id not in may_be or (is_timeless and (hidden is None or hidden["status"] != "passed")):
            raise Unproved(
                f"the autograder does not judge {part.id} of the {whose}: {found['output'].strip()}"
            )
        opened.add(part.id)
    return opened


def _left_open(bench: ProofSetup, opened: set[str]) -> str:
    """Return a remark in parentheses that lists the parts without a grade, or ""."""
    unjudged = [part for part in bench.lacking if part in opened]
    right = [part for part in bench.untimed if part in opened]
    remarks = [f"right, but no grade until times are judged: {', '.join(right)}"] if right else []
    remarks += [f"not judged: {', '.join(unjudged)}"] if unjudged else []
    return f" ({'; '.join(remarks)})" if remarks else ""


def hand_in(root: Path, bench: ProofSetup, files: Mapping[str, str]) -> None:
    (root / "submission").mkdir(exist_ok=True)
    (root / "results").mkdir(exist_ok=True)
    bench.put(files, root / "submission")


def _lost(scored: Mapping[str, Any]) -> str:
    """Return the name and message of the first test that lost points in Gradescope's results.json."""
    for test in scored.get("tests", []):
        if test["score"] < test["max_score"]:
            return f"{test['name']}: {(test['output'].strip().splitlines() or ['no output'])[0]}"
    return str(scored.get("output", "")).strip().splitlines()[0] if scored.get("output") else "no reason"


def unpacked(bench: ProofSetup, archive: bytes, name: str) -> Path:
    folder = bench.folder / name
    folder.mkdir(parents=True)
    unpack(archive, folder)
    return folder
