"""A release as its readers have it: a handout without the reference's sources, an autograder in tiers A and B."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from grader import sandbox
from grader.base import objectcache, prebuilt
from grader.base.errors import UsageError
from grader.build.toolchain import cache_root
from grader.staff.release import contents, proofs
from grader.staff.release.archive import File, packed, unpack
from module_ref_stub import library

ROOT = Path(__file__).resolve().parent.parent
CONFIG = f"configs/{contents.CONFIG}"
POINTS = 93.0


def smaller(files: dict[str, File]) -> dict[str, File]:
    """The same files with small sizes by default: what is shown here does not depend on them."""
    before, after = (
        b"N: 1024, d: 32, Br: 256, Bc: 256, threads: 8}",
        b"N: 160, d: 32, Br: 64, Bc: 64, threads: 2}",
    )
    config = files[CONFIG]
    assert config.content.count(before) == 1
    return {**files, CONFIG: replace(config, content=config.content.replace(before, after))}


@pytest.fixture(scope="module")
def kit() -> contents.Kit:
    return contents.kit(ROOT, ROOT / "configs" / "hidden" / "gpt149.yaml")


def test_a_handout_judges_with_the_object_that_it_holds(kit: contents.Kit, tmp_path: Path) -> None:
    """The starter is not written yet, the solution right on every part and fast enough: `proofs.handout` says so."""
    name = prebuilt.name(library.STEM, platform.system(), platform.machine())
    files = smaller(
        contents.handout(kit, {f"module_ref_stub/prebuilt/{name}": library.object_path().read_bytes()})
    )
    assert not [
        path for path in files if path.startswith("module_ref_stub/") and path.endswith((".cpp", ".h"))
    ]
    said: list[str] = []
    bench = proofs.ProofSetup(kit.assignment, kit.starters, kit.solutions, tmp_path / "bench", said.append)
    bench.folder.mkdir()
    proofs.handout(bench, packed(files))
    assert said[-1].endswith("with -N 256: part1, part2, part3")
    # It was linked there, and not found elsewhere: for the library a process with torch, for the program a native one.
    assert list((bench.folder / "cache" / "reference").glob("libgpt149_ref-*.so"))
    assert not list((bench.folder / "cache" / "reference").glob("*.o"))


@pytest.fixture(scope="module")
def autograder(kit: contents.Kit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Gradescope's folders with the autograder in source/, and this Python for its environment."""
    root = tmp_path_factory.mktemp("autograder")
    for folder in (root, *root.parents[:2]):
        folder.chmod(0o755)  # pytest closes them to the user ids that runners have
    unpack(packed(smaller(contents.autograder(kit))), root / "source")
    python = root / "source" / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    # As setup.sh does where the image is built.
    objectcache.share(cache_root(), root / "source" / "cache", (".plain", ".kit"))
    yield root
    shutil.rmtree(root, ignore_errors=True)


def programs(folder: Path, *, without: str) -> str:
    """A PATH with all programs of this one but for one."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            if program.name != without and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return str(folder)


def works(tier: str) -> bool:
    try:
        return sandbox.choose(tier).tier == tier
    except UsageError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these sandboxes")
@pytest.mark.parametrize("tier", ["A", "B"])
def test_an_autograder_gives_the_starter_nothing_and_the_solution_all(
    kit: contents.Kit, autograder: Path, tmp_path: Path, tier: str
) -> None:
    if not works(tier):
        pytest.skip(f"tier {tier} does not work on this machine")
    path = os.environ["PATH"] if tier == "A" else programs(tmp_path / "bin", without="bwrap")
    environment = {"PATH": path, "LANG": "C.UTF-8"}
    chosen = subprocess.run(
        [sys.executable, "-c", "from grader import sandbox; print(sandbox.choose().tier)"],
        cwd=autograder / "source",
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    assert chosen.stdout.decode().strip() == tier
    bench = proofs.ProofSetup(kit.assignment, kit.starters, kit.solutions, tmp_path)
    for files, points in ((kit.starters, 0.0), (kit.solutions, POINTS)):
        proofs.hand_in(autograder, bench, files)
        subprocess.run(
            [autograder / "source" / "run_autograder", autograder],
            env=environment,
            check=True,
            timeout=300,
        )
        found = json.loads((autograder / "results" / "results.json").read_text())
        assert found["score"] == points, found
