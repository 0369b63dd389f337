"""The lab that docs/labs.md describes: made of its blocks alone, it is judged as they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from grader.staff import newlab
from grader.staff.newlab import ends

ROOT = Path(__file__).resolve().parent.parent
GUIDES = {name: (ROOT / "docs" / name).read_text() for name in ("ta-guide.md", "labs.md")}


def blocks() -> dict[str, str]:
    """The files of the guide by name."""
    return dict(re.findall(r"^```\w+ ([\w./]+)\n(.*?)^```$", GUIDES["labs.md"], re.DOTALL | re.MULTILINE))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`grader new softmax`, then each file as the guide says; nothing of the engine is touched."""
    made = newlab.write("softmax", tmp_path_factory.mktemp("labs"))
    found = blocks()
    line = found.pop("__init__.py").strip()
    package = (made / "__init__.py").read_text()
    (made / "__init__.py").write_text(re.sub(r"oracles: ClassVar = .*", line, package))
    for name, text in found.items():
        assert (made / name).is_file(), name
        (made / name).write_text(text)
    (made / "reference.cpp").write_text(re.sub(r" *// (BEGIN|END) .*\n", "", found["softmax.cpp"]))
    return made


def test_the_guides_lab_passes_and_names_its_mistakes(folder: Path, tmp_path: Path) -> None:
    endings = ends.all_of(folder)
    assert len(endings) == 7
    for number, ending in enumerate(endings):
        (tmp_path / str(number)).mkdir()
        assert ending.faults(tmp_path / str(number)) == [], ending


@pytest.mark.parametrize("name", GUIDES)
def test_every_file_and_command_that_a_guide_names_is_there(name: str) -> None:
    from grader.__main__ import parser

    guide, known = GUIDES[name], parser().format_help()
    for command in set(re.findall(r"python -m grader (\w+)", guide)):
        assert f"    {command}" in known, command
    for path in set(
        re.findall(r"\b(?:configs|docs|grader|tests|module_ref_stub|labs/attention)/[\w/.-]+\w", guide)
    ):
        assert (ROOT / path).exists(), path
    for anchor in re.findall(r"\]\(#([\w-]+)\)", guide):
        headings = [
            re.sub(r"[^\w -]", "", line[3:].lower()) for line in guide.splitlines() if line.startswith("## ")
        ]
        assert anchor in [heading.replace(" ", "-") for heading in headings], anchor
