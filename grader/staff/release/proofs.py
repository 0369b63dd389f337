"""Tests of a release before any file is written: its archives, unpacked into empty folders, must work as intended.

Each test runs the command that a student or a platform will run, in a new process, and compares the outcome with the
expected one. The process has its own cache, which starts with the caller's precompiled headers. The first failure ends
the release with one line. Parts and times for which this machine lacks a program or a GPU are not judged: one line
lists them as not proved. If no part can be judged, the release ends.
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
#: Words in the diagnosis of a part that has not been begun.
NOT_WRITTEN = "not written yet"


class Unproved(UsageError):
    """Error for a release that does not work as intended; the text is the failed test in one line."""


@dataclass(frozen=True)
class ProofSetup:
    """Settings and findings of the tests. `folder` is empty at first; `say` prints a line for each test that passes."""

    assignment: Assignment
    starters: Mapping[str, str]
    """The files that are handed in, by name."""
    solutions: Mapping[str, str]
    folder: Path
    say: Callable[[str], None] = lambda line: None
    lacking: dict[str, str] = field(default_factory=dict)
    """Parts that this machine cannot judge, with the programs that they wait for."""
    untimed: dict[str, str] = field(default_factory=dict)
    """Parts whose results are right but whose times this machine cannot judge, or not with the release's objects."""

    unseen: list[str] = field(default_factory=list)
    """Tests of a platform's files that could not be run because this machine lacks a program or a GPU."""

    def put(self, files: Mapping[str, str], folder: Path) -> None:
        """Write these files into the folder, as handed in."""
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")

    def say_what_is_open(self) -> None:
        """Print one line of all that was not proved, if anything."""
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
        """Cache folder of all builds in the tests. It starts without the caller's objects."""
        return self.folder / "cache"

    def share_what_every_build_needs(self) -> None:
        """Copy the precompiled headers and the runner from the caller's cache. They depend only on the compiler and
        on sources that the release must have."""
        objectcache.share(cache_root(), self.cache, ("", ".plain", ".kit"))

    def environment(self) -> dict[str, str]:
        """Return an environment with the caller's PATH, LANG, TMPDIR and CXX only, and a home and a cache of
        its own."""
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
        """Run Python with these arguments in a folder, with further `variables` in its environment. Raises Unproved for
        another exit code."""
        code, text = self.ended(arguments, folder, variables)
        if code not in accept:
            raise Unproved(f"`{_command(arguments)}` ended with code {code} in {folder.name}: {_last(text)}")
        return text

    def ended(
        self, arguments: list[str], folder: Path, variables: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Return the exit code, and the printed text. Raises Unproved for a command that does not end."""
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
    """Prove that the handout's imports resolve, that its starter compiles and earns nothing, and that the solution
    earns all.
    """
    folder = unpacked(bench, archive, "handout")
    imports_resolve(folder)
    bench.say("every import of the handout's command lines resolves inside it")
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
    bench.say(f"the solution in its place is right on {where}")
    _times(bench, folder)


def _times(bench: ProofSetup, folder: Path) -> None:
    """Prove that the solution there is in time, as far as the handout and this machine can measure it."""
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
            # If one part lacks something, its neighbours probably do as well: none of their times count as proved.
            what = next(iter(waits.values()))
            bench.untimed.update({part.id: waits.get(part.id, what) for part in timed})
            return
    if commands:
        what = " ".join(
            ["and fast enough beside the compiled reference", *(["with", *sizes] if sizes else [])]
        )
        bench.say(f"{what}: {', '.join(commands)}")


def refuse_unjudgeable(bench: ProofSetup) -> None:
    """Raise KitError if this machine cannot judge any part: the release would be unproved."""
    parts = [part.id for part in bench.assignment.parts if part.points > 0]
    if parts and set(parts) <= set(bench.lacking):
        what = ", ".join(dict.fromkeys(bench.lacking.values()))
        raise KitError(
            f"nothing was written: this machine has no {what}, so that it can judge no part of {bench.assignment.id} "
            f"and prove no release; install {what}, or make the release on a machine that has it"
        )


def refuse_undecided(bench: ProofSetup, judged: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise Unproved for a part of the solution that could not be judged, though the starter's was."""
    for name, part in judged.items():
        if part["verdict"] == "unjudged" and name not in bench.lacking:
            raise Unproved(f"the solution in the handout is unjudged on {name}: {_why(part)}")


def _parts(bench: ProofSetup, all_of_them: str) -> str:
    """Return the parts that this machine judges."""
    if not bench.lacking:
        return all_of_them
    return ", ".join(
        part.id for part in bench.assignment.parts if part.points > 0 and part.id not in bench.lacking
    )


def imports_resolve(folder: Path) -> None:
    """Raise Unproved if a module in the folder imports a missing one, other than the staff's rooms."""
    known = imports.modules(folder)
    for found in imports.missing(folder, known):
        if not (found.late and within(found.imported, STAFF_ROOMS)):
            path = known[found.importer].relative_to(folder)
            raise Unproved(f"{path}:{found.line} of the handout imports {found.imported}, which is not in it")


def git_takes_all(bench: ProofSetup, archive: bytes) -> None:
    """Raise Unproved for a file that the archive's own .gitignore keeps out of a repository: no student would
    get it."""
    git = shutil.which("git")
    if git is None:
        bench.say("NOT CHECKED, as there is no git here: that .gitignore leaves no file of the handout out")
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
        raise Unproved(f".gitignore of the handout leaves {ignored[0]}{more} out of a repository")
    bench.say("a repository takes every file of the handout")


def earns_nothing(parts: Mapping[str, Mapping[str, Any]], whose: str) -> dict[str, str]:
    """Return the parts that were not judged, with the programs they wait for. Raises Unproved for a part that earns
    points, or whose diagnosis is not that it is not written yet."""
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
    """Return the parts that were not judged, with the programs they wait for. Raises Unproved for a part that is
    wrong or too slow."""
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
    """Return parts as the student's own command line judges them: by default every one, without times."""
    asked = asked or ("all", "--no-time")
    found = bench.folder / "result.json"
    found.unlink(missing_ok=True)
    arguments = ["gpt149.py", *asked, "--json", str(found)]
    code, said = bench.ended(arguments, folder)
    # A run in which the machine lacked something for a part ends with 3, and has a result.
    if code not in (EXIT_PASS, EXIT_SUBMISSION) and not (code == EXIT_KIT and found.is_file()):
        raise Unproved(f"`{_command(arguments)}` ended with code {code} in {folder.name}: {_last(said)}")
    if not found.is_file():
        raise Unproved(f"`python gpt149.py {asked[0]}` left no result in {folder.name}: {_last(said)}")
    return {part["id"]: part for part in json.loads(found.read_text(encoding="utf-8"))["parts"]}


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no word"])[-1]


def _why(part: Mapping[str, Any]) -> str:
    reason = (part.get("diagnosis") or {}).get("message") or part.get("output") or "no word why"
    return str(reason).strip().splitlines()[0]


# ---- the autograder


def autograder(bench: ProofSetup, archive: bytes) -> None:
    """Prove, in Gradescope's layout, that the starter gets 0 points and the solution all, times included. Parts or
    times that this machine cannot judge must be left without a grade, and all others must be right."""
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
                f"the autograder gives the {whose} {scored['score']:g} points, and not {wanted:g}: {_lost(scored)}"
            )
        if earns:
            # A handout may lack the references for its times; this machine has them.
            for part in [part for part in bench.untimed if part not in opened]:
                del bench.untimed[part]
        bench.say(
            f"the autograder gives the {whose} {wanted:g} of {bench.points:g} points{_left_open(bench, opened)}"
        )


def _open_in(bench: ProofSetup, scored: Mapping[str, Any], may_be: set[str], whose: str) -> set[str]:
    """Return the parts reported as without a grade. Raises Unproved if a part is missing, or open although this
    machine can judge it. A part that lacks only its time must have passed its hidden cases."""
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
    """Return a note on the parts of a total that are left without a grade."""
    unjudged = [part for part in bench.lacking if part in opened]
    right = [part for part in bench.untimed if part in opened]
    remarks = [f"right, and open until times are judged: {', '.join(right)}"] if right else []
    remarks += [f"not judged: {', '.join(unjudged)}"] if unjudged else []
    return f" ({'; '.join(remarks)})" if remarks else ""


def hand_in(root: Path, bench: ProofSetup, files: Mapping[str, str]) -> None:
    (root / "submission").mkdir(exist_ok=True)
    (root / "results").mkdir(exist_ok=True)
    bench.put(files, root / "submission")


def _lost(scored: Mapping[str, Any]) -> str:
    """Return the first test that did not get all of its points, in its own words."""
    for test in scored.get("tests", []):
        if test["score"] < test["max_score"]:
            return f"{test['name']}: {(test['output'].strip().splitlines() or ['no word'])[0]}"
    return str(scored.get("output", "")).strip().splitlines()[0] if scored.get("output") else "no word why"


def unpacked(bench: ProofSetup, archive: bytes, name: str) -> Path:
    folder = bench.folder / name
    folder.mkdir(parents=True)
    unpack(archive, folder)
    return folder
