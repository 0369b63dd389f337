"""Releases for tests: a handout, an autograder, a question for PrairieLearn, and the search for leaked secrets."""

import ast
import platform
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path

from conftest import ROOT

from grader.core import imports, objectcache
from grader.staff.release import contents, making, products, proofs
from module_ref_stub import library

#: Path of the compiled reference in the main lab's handout.
OBJECT = f"module_ref_stub/prebuilt/{objectcache.prebuilt_name(library.STEM, platform.system(), platform.machine())}"


class Release:
    """The release of one staff file. Its parts are made on first use and never changed."""

    def __init__(self, config: Path, compiled: dict[str, bytes] | None = None) -> None:
        self.config, self.compiled = config, compiled or {}

    @cached_property
    def kit(self) -> contents.Kit:
        return contents.kit(ROOT, self.config)

    @cached_property
    def handout(self) -> contents.Files:
        return contents.handout(self.kit, self.compiled)

    @cached_property
    def autograder(self) -> contents.Files:
        return contents.autograder(self.kit)

    @cached_property
    def question(self) -> contents.Files:
        return products.PRODUCTS["prairielearn"].rest(self.kit, b"").folders["prairielearn"]

    @cached_property
    def secrets(self) -> list[making.Secret]:
        return making.secrets(self.kit)

    def found_in(self, path: str, planted: str | bytes) -> str:
        """Add a line to the end of a file of the handout. Return what the search for secrets reports about the file."""
        data = planted if isinstance(planted, bytes) else planted.encode()
        leaky = replace(self.handout[path], content=self.handout[path].content + b"\n" + data + b"\n")
        (found,) = making.leaks({path: leaky}, self.secrets)
        return found


@cache
def release_of(lab: str) -> Release:
    if lab == "attention":
        return Release(ROOT / "configs" / "hidden" / "gpt149.yaml", {OBJECT: b"\x7fELF an object"})
    return Release(ROOT / "labs" / lab / "hidden" / "assignment.yaml")


def proof_setup(kit: contents.Kit, folder: Path) -> tuple[proofs.ProofSetup, list[str]]:
    """Return the set-up for testing a release in `folder`, and a list that collects the lines that it prints."""
    said: list[str] = []
    return proofs.ProofSetup(kit.assignment, kit.starters, kit.solutions, folder, said.append), said


def third_party(root: Path, within: Iterable[str]) -> set[str]:
    """Return the top-level names of the third-party packages that these modules import."""
    known = imports.modules(root)
    names: set[str] = set()
    for name in within:
        for node in ast.walk(ast.parse(known[name].read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return names - {*imports.PACKAGES, imports.SCRIPT} - set(sys.stdlib_module_names)
