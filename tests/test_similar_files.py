"""`similar` reads every handed-in file, and never takes a file that hides its text for the starter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT

from grader.assignment.regions import strip_solution
from grader.staff.similarity import likeness

#: Two lines for this lexer, of which the second opens a comment; one comment line for a compiler.
SPLICED = "/\\\n/ /*\n"
#: A raw string without an end for this lexer; a compiler skips it between `#if 0` and `#endif`.
RAW = '#if 0\nR"nothing(\n#endif\n'
CODE = "".join(
    f"static float row{k}(const float *x, int n) {{ float s = {k}; for (int i = {k}; i < n; i += {k + 1}) "
    f"s = s * x[i] + x[n - i - 1] / (s + {k}); return s; }}\n"
    for k in range(20)
)
KITS = ("module.cpp", "labs/gpu/kernels.py", "labs/gpu/kernels.cu")
CANNOT = "cannot be compared, as few tokens stand in many bytes"


@pytest.fixture(scope="module")
def starter() -> str:
    return strip_solution((ROOT / "module.cpp").read_text())


@pytest.mark.parametrize(
    "hidden",
    [
        lambda starter: SPLICED + starter + CODE,
        lambda starter: starter + SPLICED + CODE,
        lambda starter: SPLICED + CODE,
        lambda starter: starter + RAW + CODE,
        lambda starter: "\n".join(f"// {line}" for line in CODE.split("\n")) + starter,
    ],
    ids=["all", "what is added", "no starter", "in a literal", "as comments"],
)
def test_hidden_text_cannot_be_compared(hidden: Callable[[str], str], starter: str) -> None:
    found = likeness.compare({"ada": hidden(starter), "bob": starter, "cyd": starter + CODE}, starter)
    assert found.unreadable == ("ada",)
    assert found.starters == ("bob",) and found.bare == ()
    assert any(note.startswith(CANNOT) and note.endswith(": ada") for note in likeness.notes(found))


@pytest.mark.parametrize(
    "text",
    [
        lambda starter: starter,
        lambda starter: "// Ada Lovelace, 12345, worked alone\n" + starter,
        lambda starter: starter.replace("\n", "\n  "),
        lambda starter: starter + CODE.replace("{ float", "{ /* " + 40 * "why " + "*/ float"),
        lambda starter: "",
        *(lambda _, name=name: (ROOT / name).read_text() for name in KITS),
    ],
    ids=["starter", "starter with a name", "starter indented", "commented well", "empty", *KITS],
)
def test_honest_text_can_be_compared(text: Callable[[str], str], starter: str) -> None:
    assert likeness.compare({"ada": text(starter), "bob": starter + CODE}, starter).unreadable == ()


def test_every_file_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two who share kernels.cu alone are a pair, also in the folder of a class run."""
    python = {"ada": "import torch\n", "bob": "import triton\n", "cyd": "import torch\n"}
    for is_class_run in (False, True):
        folder = tmp_path / f"class {is_class_run}"
        for name, text in python.items():
            (folder / name).mkdir(parents=True)
            (folder / name / "kernels.py").write_text(text)
            if is_class_run:
                (folder / name / "result.json").write_text("{}")
            if name != "cyd":
                (folder / name / "kernels.cu").write_text(CODE)
        sources = likeness.read_sources(folder, "kernels.py", is_class_run)
        assert sources["ada"] == f"import torch\n\n{CODE}" and sources["cyd"] == "import torch\n"
        options = ("--config", ROOT / "labs" / "gpu" / "assignment.yaml", "--html", tmp_path / "page.html")
        assert likeness.main([str(folder), *map(str, options)]) == 0
        told = capsys.readouterr().out
        assert all(words in told for words in ("100.0%  ada  bob", "kernels.py", "kernels.cu"))


def test_a_link_beside_a_source_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / "kernels.py").write_text("import torch\n")
    (tmp_path / "ada" / "result.json").write_text("{}")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "ada" / "kernels.cu").symlink_to(tmp_path / "secret")
    assert likeness.read_sources(tmp_path, "kernels.py", True) == {"ada": "import torch\n"}
