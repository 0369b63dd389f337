"""What a release proves before it writes anything: its archives, unpacked into empty folders, do what they are for.

Each proof runs the command that its reader will run, in a process of its own, with a cache of its own that begins with
the precompiled headers of the caller's, and holds what came out against what must. The first that fails ends the
release with one line.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.assignment.records import Assignment
from grader.base import imports, objectcache
from grader.base.commandline import size_options
from grader.base.errors import UsageError
from grader.build.toolchain import cache_root
from grader.staff.release.archive import unpack
from grader.staff.release.contents import STAFF_ROOMS, within

TIMEOUT_S = 900.0
#: What a part that nobody has begun is told.
NOT_WRITTEN = "not written yet"


class Unproved(UsageError):
    """What was claimed of a release and is not so."""


@dataclass(frozen=True)
class ProofSetup:
    """Where proofs are made: `folder` is empty at first; `say` hears each proof as it holds."""

    assignment: Assignment
    starter: str
    solution: str
    folder: Path
    say: Callable[[str], None] = lambda line: None

    @property
    def points(self) -> float:
        return sum(part.points for part in self.assignment.parts)

    @property
    def cache(self) -> Path:
        """Of all builds that prove something: what a release holds is found in it, and nothing of the caller's."""
        return self.folder / "cache"

    def share_what_every_build_needs(self) -> None:
        """The precompiled headers and the runner, which depend on nothing but the compiler and on sources that the
        release has to have, are taken from the caller's cache."""
        objectcache.share(cache_root(), self.cache, ("", ".plain", ".kit"))

    def environment(self) -> dict[str, str]:
        """Nothing of the caller's but how to find programs: no path of Python's, no cache, no settings of the kit."""
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
        command = [sys.executable, *arguments]
        told = " ".join(["python", *arguments])
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
            raise Unproved(f"`{told}` did not end within {TIMEOUT_S:.0f} s in {folder.name}") from error
        text = ended.stdout.decode(errors="replace")
        if ended.returncode not in accept:
            raise Unproved(f"`{told}` ended with code {ended.returncode} in {folder.name}: {_last(text)}")
        return text


# ---- the handout


def handout(bench: ProofSetup, archive: bytes, *, run_here: bool = True) -> None:
    """The handout resolves its imports; its starter compiles and earns nothing, and the solution in its place all.

    `run_here` is False when it holds no reference for this machine: then nothing of it can be run.
    """
    folder = unpacked(bench, archive, "handout")
    imports_resolve(folder)
    bench.say("every import of the handout's command lines resolves inside it")
    bench.share_what_every_build_needs()
    if not run_here:
        bench.say("NOT RUN: this machine's reference is not in the handout")
        return
    earns_nothing(_judged(bench, folder), "the starter in the handout")
    bench.say("the starter compiles, earns 0 on every part and is told 'not written yet'")
    (folder / bench.assignment.source).write_text(bench.solution, encoding="utf-8")
    earns_all(_judged(bench, folder), "the solution in the handout")
    bench.say("the solution in its place is right on every part")
    timed = [part for part in bench.assignment.parts if part.time and part.time.graded and part.points > 0]
    commands = list(dict.fromkeys(part.command for part in timed))
    chosen = {
        name: min(size, bench.assignment.defaults[name])
        for name, size in bench.assignment.lab.proof_sizes.items()
    }
    sizes = size_options(chosen, bench.assignment.size_options)
    for command in commands:
        earns_all(_judged(bench, folder, command, *sizes), "the solution in the handout, timed,")
    if commands:
        what = " ".join(
            ["and fast enough beside the compiled reference", *(["with", *sizes] if sizes else [])]
        )
        bench.say(f"{what}: {', '.join(commands)}")


def imports_resolve(folder: Path) -> None:
    """Raises Unproved when a module in the folder imports one that is not there, other than the staff's rooms."""
    known = imports.modules(folder)
    for found in imports.missing(folder, known):
        if not (found.late and within(found.imported, STAFF_ROOMS)):
            path = known[found.importer].relative_to(folder)
            raise Unproved(f"{path}:{found.line} of the handout imports {found.imported}, which is not in it")


def git_takes_all(bench: ProofSetup, archive: bytes) -> None:
    """Raises Unproved for a file that the archive's own .gitignore keeps out of a repository: no student would get
    it."""
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


def earns_nothing(parts: Mapping[str, Mapping[str, Any]], whose: str) -> None:
    for name, part in parts.items():
        if part["points"] > 0:
            raise Unproved(f"{whose} earns {part['points']:g} points on {name}: it must earn nothing")
        if part["max_points"] > 0 and part["verdict"] != "wrong":
            raise Unproved(
                f"{whose} is {part['verdict']} on {name}: it must compile, and be wrong: {_why(part)}"
            )
        if part["max_points"] > 0 and NOT_WRITTEN not in _why(part):
            raise Unproved(f"{whose} is not told on {name} that it is {NOT_WRITTEN}, but: {_why(part)}")


def earns_all(parts: Mapping[str, Mapping[str, Any]], whose: str) -> None:
    for name, part in parts.items():
        if part["verdict"] != "pass" or part["points"] < part["max_points"]:
            raise Unproved(
                f"{whose} is {part['verdict']} on {name}, with {part['points']:g} of {part['max_points']:g} "
                f"points: {_why(part)}"
            )


def _judged(bench: ProofSetup, folder: Path, *asked: str) -> dict[str, dict[str, Any]]:
    """Parts as the student's own command line judges them: by default every one, without times."""
    asked = asked or ("all", "--no-time")
    found = bench.folder / "result.json"
    found.unlink(missing_ok=True)
    said = bench.run(["gpt149.py", *asked, "--json", str(found)], folder, accept=(0, 1))
    if not found.is_file():
        raise Unproved(f"`python gpt149.py {asked[0]}` left no result in {folder.name}: {_last(said)}")
    return {part["id"]: part for part in json.loads(found.read_text(encoding="utf-8"))["parts"]}


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no word"])[-1]


def _why(part: Mapping[str, Any]) -> str:
    told = (part.get("diagnosis") or {}).get("message") or part.get("output") or "no word why"
    return str(told).strip().splitlines()[0]


# ---- the autograder


def autograder(bench: ProofSetup, archive: bytes) -> None:
    """In Gradescope's layout, the starter gets 0 of the autograder and the solution everything, times included."""
    root = bench.folder / "autograder"
    unpacked(bench, archive, "autograder/source")
    bench.share_what_every_build_needs()
    for text, wanted, whose in ((bench.starter, 0.0, "starter"), (bench.solution, bench.points, "solution")):
        _hand_in(root, bench.assignment.source, text)
        bench.run(["-m", "grader", "gradescope", str(root)], root / "source", accept=(0,))
        scored = json.loads((root / "results" / "results.json").read_text(encoding="utf-8"))
        if abs(scored["score"] - wanted) > 1e-6:
            raise Unproved(
                f"the autograder gives the {whose} {scored['score']:g} points, and not {wanted:g}: {_lost(scored)}"
            )
        bench.say(f"the autograder gives the {whose} {wanted:g} of {bench.points:g} points")


def _hand_in(root: Path, name: str, text: str) -> None:
    (root / "submission").mkdir(exist_ok=True)
    (root / "results").mkdir(exist_ok=True)
    (root / "submission" / name).write_text(text, encoding="utf-8")


def _lost(scored: Mapping[str, Any]) -> str:
    """The first test that did not get all of its points, in its own words."""
    for test in scored.get("tests", []):
        if test["score"] < test["max_score"]:
            return f"{test['name']}: {(test['output'].strip().splitlines() or ['no word'])[0]}"
    return str(scored.get("output", "")).strip().splitlines()[0] if scored.get("output") else "no word why"


def unpacked(bench: ProofSetup, archive: bytes, name: str) -> Path:
    folder = bench.folder / name
    folder.mkdir(parents=True)
    unpack(archive, folder)
    return folder
