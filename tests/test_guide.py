"""The lab that docs/labs.md describes: made of its blocks alone, it is judged as they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import ROOT

from grader.__main__ import parser
from grader.staff import newlab
from grader.staff.newlab import ends

GUIDES = {name: (ROOT / "docs" / name).read_text() for name in ("ta-guide.md", "labs.md", "platforms.md")}


def blocks() -> dict[str, str]:
    return dict(re.findall(r"^```\w+ ([\w./]+)\n(.*?)^```$", GUIDES["labs.md"], re.DOTALL | re.MULTILINE))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`grader new rows`, then each file as the guide says; nothing of the engine is touched."""
    made = newlab.write("rows", tmp_path_factory.mktemp("labs"))
    found = blocks()
    line = found.pop("__init__.py").strip()
    package = (made / "__init__.py").read_text()
    (made / "__init__.py").write_text(re.sub(r"oracles: ClassVar = .*", line, package))
    for name, text in found.items():
        assert (made / name).is_file(), name
        (made / name).write_text(text)
    (made / "reference.cpp").write_text(re.sub(r" *// (BEGIN|END) .*\n", "", found["rows.cpp"]))
    return made


#: The master, the starter, four wrong kernels, a slow one: its time takes ten seconds.
ENDINGS = [*range(6), pytest.param(6, marks=pytest.mark.full)]


@pytest.mark.parametrize("number", ENDINGS)
def test_the_guides_lab_passes_and_names_its_mistakes(number: int, folder: Path, tmp_path: Path) -> None:
    endings = ends.all_of(folder)
    assert len(endings) == len(ENDINGS)
    assert endings[number].faults(tmp_path) == [], endings[number]


@pytest.mark.parametrize("name", GUIDES)
def test_every_file_and_command_that_a_guide_names_is_there(name: str) -> None:
    guide, known = GUIDES[name], parser().format_help()
    for command in re.findall(r"python -m grader (\w+)", guide):
        assert f"    {command}" in known, command
    folders = "configs|docs|grader|tests|module_ref_stub|labs/attention"
    for path in re.findall(rf"\b(?:{folders})/[\w/.-]+\w", guide):
        assert (ROOT / path).exists(), path
    headings = re.findall("^## (.*)", guide, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert {*re.findall(r"\]\(#([\w-]+)\)", guide)} <= anchors
