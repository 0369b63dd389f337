"""`similar` reads every handed-in file, and never takes a file that hides its text for the starter."""

from __future__ import annotations

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
def test_hidden_text_cannot_be_compared(hidden: object, starter: str) -> None:
    text = hidden(starter)  # type: ignore[operator]
    found = likeness.compare({"ada": text, "bob": starter, "cyd": starter + CODE}, starter)
    assert found.unreadable == ("ada",)
    assert found.starters == ("bob",) and found.bare == ()
    assert any(note.startswith(CANNOT) and note.endswith(": ada") for note in likeness.notes(found))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("starter", lambda starter: starter),
        ("starter with a name", lambda starter: "// Ada Lovelace, 12345, worked alone\n" + starter),
        ("starter indented", lambda starter: starter.replace("\n", "\n  ")),
        (
            "commented well",
            lambda starter: starter + CODE.replace("{ float", "{ /* " + 40 * "why " + "*/ float"),
        ),
        ("empty", lambda starter: ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_honest_text_can_be_compared(name: str, text: object, starter: str) -> None:
    sources = {name: text(starter), "other": starter + CODE}  # type: ignore[operator]
    assert likeness.compare(sources, starter).unreadable == ()


@pytest.mark.parametrize("source", ["module.cpp", "labs/gpu/kernels.py", "labs/gpu/kernels.cu"])
def test_the_kits_own_files_can_be_compared(source: str, starter: str) -> None:
    found = likeness.compare({"ada": (ROOT / source).read_text(), "bob": starter + CODE}, starter)
    assert found.unreadable == ()


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
        page = str(tmp_path / "page.html")
        config = str(ROOT / "labs" / "gpu" / "assignment.yaml")
        assert likeness.main([str(folder), "--config", config, "--html", page]) == 0
        told = capsys.readouterr().out
        assert "100.0%  ada  bob" in told
        assert "kernels.py" in told and "kernels.cu" in told


def test_a_link_beside_a_source_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / "kernels.py").write_text("import torch\n")
    (tmp_path / "ada" / "result.json").write_text("{}")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "ada" / "kernels.cu").symlink_to(tmp_path / "secret")
    assert likeness.read_sources(tmp_path, "kernels.py", True) == {"ada": "import torch\n"}
