"""`similar` reads every handed-in file, and never takes a file that hides its text for the starter."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT
from handing_in import put

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

STARTER = strip_solution((ROOT / "module.cpp").read_text())
HIDDEN = {
    "all": SPLICED + STARTER + CODE,
    "what is added": STARTER + SPLICED + CODE,
    "no starter": SPLICED + CODE,
    "in a literal": STARTER + RAW + CODE,
    "as comments": "\n".join(f"// {line}" for line in CODE.split("\n")) + STARTER,
}
HONEST = {
    "starter": STARTER,
    "starter with a name": "// Ada Lovelace, 12345, worked alone\n" + STARTER,
    "starter indented": STARTER.replace("\n", "\n  "),
    "commented well": STARTER + CODE.replace("{ float", "{ /* " + 40 * "why " + "*/ float"),
    "empty": "",
    **{name: (ROOT / name).read_text() for name in KITS},
}


@pytest.mark.parametrize("kind", HIDDEN)
def test_hidden_text_cannot_be_compared(kind: str) -> None:
    found = likeness.compare({"ada": HIDDEN[kind], "bob": STARTER, "cyd": STARTER + CODE}, STARTER)
    assert (found.unreadable, found.starters, found.bare) == (("ada",), ("bob",), ())
    assert any(note.startswith(CANNOT) and note.endswith(": ada") for note in likeness.notes(found))


@pytest.mark.parametrize("kind", HONEST)
def test_honest_text_can_be_compared(kind: str) -> None:
    assert likeness.compare({"ada": HONEST[kind], "bob": STARTER + CODE}, STARTER).unreadable == ()


def test_every_file_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two who share kernels.cu alone are a pair, also in the folder of a class run."""
    python = {"ada": b"import torch\n", "bob": b"import triton\n", "cyd": b"import torch\n"}
    files = {f"{name}/kernels.py": text for name, text in python.items()}
    files |= {f"{name}/kernels.cu": CODE.encode() for name in ("ada", "bob")}
    for is_class_run in (False, True):
        results = {f"{name}/result.json": b"{}" for name in python if is_class_run}
        folder = put(tmp_path / f"class {is_class_run}", {**files, **results})
        sources = likeness.read_sources(folder, "kernels.py", is_class_run)
        assert sources["ada"] == f"import torch\n\n{CODE}" and sources["cyd"] == "import torch\n"
        options = ("--config", ROOT / "labs" / "gpu" / "assignment.yaml", "--html", tmp_path / "page.html")
        assert likeness.main([str(folder), *map(str, options)]) == 0
        told = capsys.readouterr().out
        assert all(words in told for words in ("100.0%  ada  bob", "kernels.py", "kernels.cu"))


def test_a_link_beside_a_source_is_not_read(tmp_path: Path) -> None:
    put(tmp_path, {"ada/kernels.py": b"import torch\n", "ada/result.json": b"{}", "secret": b"secret"})
    (tmp_path / "ada" / "kernels.cu").symlink_to(tmp_path / "secret")
    assert likeness.read_sources(tmp_path, "kernels.py", True) == {"ada": "import torch\n"}
