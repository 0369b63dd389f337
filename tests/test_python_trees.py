"""Hand-ins of several Python files (packages, helpers, adapters), judged in Triton's interpreter."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, put, refused, results_alone
from handing_in import zipped
from without_card import by_interpreter, interpreted, words

from grader import submission
from grader.assignment.loading import load
from grader.assignment.mutations import Mutation, edited
from grader.assignment.records import Part
from grader.backends.gpu import devicebuild
from grader.core import filebundle, pythontree, results
from grader.staff.similarity import likeness
from grader.study.watching.files import Content, Watcher

ASSIGNMENT = load(ROOT / "labs" / "cs336" / "assignment.yaml")
SOURCE = ASSIGNMENT.source
SOLUTION = edited((ROOT / "labs" / "cs336" / SOURCE).read_text(encoding="utf-8"), Mutation("", "", ()))
HEAD, _, _REST = SOLUTION.partition("ROWS, KEYS = 64, 64\n")
_TILES, _, _CLASSES = _REST.partition("class FlashAttentionPyTorch")
TILES, CLASSES = f"{HEAD}ROWS, KEYS = 64, 64\n{_TILES}", f"class FlashAttentionPyTorch{_CLASSES}"
NAMES = "KEYS, NEVER, ROWS, _backward, _forward"
FORWARD, BACKWARD = ASSIGNMENT.part("forward_triton"), ASSIGNMENT.part("backward_triton")


def adapters(module: str, suffix: str = "") -> str:
    """Return the course's adapters file as a student completes it, with classes of this module."""
    return "from __future__ import annotations\nfrom typing import Type\nimport torch\n\n" + "\n".join(
        f"def get_flashattention_autograd_function_{language}() -> Type:\n"
        f"    from {module} import FlashAttention{name}{suffix} as Chosen\n    return Chosen\n"
        for language, name in (("pytorch", "PyTorch"), ("triton", "Triton"))
    )


def judged(source: Path, part: Part = FORWARD) -> results.PartResult:
    case = replace(part.cases[0], shape={**part.cases[0].shape, "B": 1, "N": 64, "M": 64, "d": 16})
    return results_alone(ASSIGNMENT, source, (replace(part, cases=(case,)),)).parts[0]


HELPER = {SOURCE: f"{HEAD}from tiles import {NAMES}\n\n\n{CLASSES}", "tiles.py": TILES}
MATH = "import math\n"
PACKAGE = {
    "cs336_systems/__init__.py": "",
    "cs336_systems/flash.py": f"{HEAD}from .ops.tiles import *\nfrom .ops import tiles as own\n"
    f"{CLASSES.replace('*_backward(', '*own._backward(')}",
    "cs336_systems/ops/__init__.py": "from cs336_basics.numbers import NEVER\n",
    "cs336_systems/ops/tiles.py": f"{TILES}\n__all__ = ['KEYS', 'NEVER', 'ROWS', '_forward']\n",
    "cs336-basics/cs336_basics/numbers.py": "NEVER = float('-inf')\n",
    "tests/adapters.py": adapters("cs336_systems.flash"),
}
CHOICE = "    from cs336_systems.flash import FlashAttentionPyTorch as Chosen\n    return Chosen"
#: A hand-in whose class in Triton is in the file SOURCE. Its adapters return a class in PyTorch from another file.
CHOSEN = {
    **{name: text for name, text in PACKAGE.items() if name != "tests/adapters.py"},
    f"cs336_systems/{SOURCE}": f"{HEAD}class FlashAttentionTriton(torch.autograd.Function):\n    pass\n",
    "tests/adapters.py": adapters("cs336_systems.flash").replace(CHOICE, "    raise NotImplementedError"),
    # This file has the name of the adapters but belongs to another assignment.
    "adapters.py": "import nothing_of_this\n",
}


@by_interpreter
class TestVerdicts:
    @pytest.mark.parametrize(("files", "main", "file"), [
        (HELPER, SOURCE, SOURCE),
        (PACKAGE, "tests/adapters.py", "cs336_systems/flash.py"),
        (CHOSEN, f"cs336_systems/{SOURCE}", "cs336_systems/flash.py"),
    ], ids=["helper", "package", "chosen"])  # fmt: skip
    def test_right_imports_pass(self, files: Mapping[str, str], main: str, file: str, tmp_path: Path) -> None:
        put(tmp_path, files)
        for part in (FORWARD, BACKWARD):
            found = judged(tmp_path / main, part)
            assert (found.verdict, [flag.code for flag in found.flags]) == ("pass", ["judged_class"]), found
            assert found.flags[0].message == f"FlashAttentionTriton in {file} was judged"

    def test_trees_of_a_class_are_packed_into_one_file_and_judged(self, tmp_path: Path) -> None:
        put(tmp_path / "class" / "ada", PACKAGE)
        packed = zipped({f"repo-main/{name}": text.encode() for name, text in CHOSEN.items()})
        put(tmp_path, {"class/bob.zip": packed})
        found = submission.find(tmp_path / "class", SOURCE, tmp_path / "scratch")
        origins = {"ada": "tests/adapters.py", "bob": f"bob.zip: repo-main/cs336_systems/{SOURCE}"}
        assert [(each.id, each.origin) for each in found] == [*origins.items()]
        for each in found:
            assert [path.name for path in each.source.parent.iterdir()] == [SOURCE]
            assert judged(each.source).verdict == "pass", each

    @pytest.mark.parametrize(("file", "old", "new", "verdict", "says"), [
        # The adapters import a file when they are called. A package missing then is a compile error, not a crash.
        ("flash.py", MATH, "import gone.by\n", "compile_error", "Hand gone in with"),
        ("flash.py", MATH, "from . import gone\n", "compile_error", "flash.py:8 raised ImportError"),
        ("ops/tiles.py", MATH, "def f(:\n", "compile_error", "ops/tiles.py:8:7: error: "),
        ("ops/tiles.py", MATH, "\n1 / 0\n", "crash", "ops/tiles.py:9 raised ZeroDivision"),
        ("flash.py", "d = q.shape\n", "d = q.shape[:2]\n", "crash", "flash.py:58 raised ValueError: "),
        ("ops/tiles.py", "None] * k_column)", "None] * k_column + 99)", "wrong", ""),
        ("ops/tiles.py", "(q, k) * scale", "(q, k)", "wrong", "ops/tiles.py:%: s = tl.dot(q, k)"),
    ])  # fmt: skip
    def test_messages_name_the_file_and_the_line(
        self, file: str, old: str, new: str, verdict: str, says: str, tmp_path: Path
    ) -> None:
        name = f"cs336_systems/{file}"
        assert old in PACKAGE[name]
        put(tmp_path, {**PACKAGE, name: PACKAGE[name].replace(old, new, 1)})
        found = judged(tmp_path / "tests" / "adapters.py")
        line = str(PACKAGE[name].partition(old)[0].count("\n") + 1)
        says = says.replace("%", line) or f"Line {name}:{line} loaded from outside of every tensor"
        assert found.verdict == verdict and says in words(found), words(found)


def reads(folder: Path, files: Mapping[str, str], *entries: str) -> devicebuild.PythonBuild:
    made = devicebuild.python(put(folder, files) / next(iter(files)), entries, cache=folder / "cache")
    assert isinstance(made, devicebuild.PythonBuild), made.diagnostics
    return made


MM = "import torch\ndef g(x):\n    torch.mm(x, x)\n"
KERNEL = "import triton\nimport triton.language as tl\n@triton.jit\ndef kernel(x, N: tl.constexpr):\n    "
CALLED = "def f(x):\n    kernel[(1,)](x, 1)\n"
PLAIN = "def plain(x):\n    pass\n"
OTHER = f"ONE = 4\n{KERNEL.replace('kernel', 'other')}pass\nact = other\n"


@interpreted
@pytest.mark.parametrize(("main", "other", "named"), [
    # The file own.py calls torch. It is imported in each possible way.
    ("from own import g as f\n", MM, "calls torch.mm (own.py:3)"),
    ("import own as o\ndef f(x):\n    o.g(x)\n", MM, "calls torch.mm (own.py:3)"),
    ("import own\ndef f(x):\n    getattr(own, 'g')(x)\n", MM, "calls torch.mm (own.py:3)"),
    ("from own import *\ndef f(x):\n    mm(x)\n", "import torch\nmm = torch.mm\n", "calls torch.mm (kernels.py:3)"),
    ("import own\ndef f(x):\n    own.torch.mm(x, x)\n", "import torch\n", "calls torch.mm (kernels.py:3)"),
    ("import own\ndef f(x):\n    pass\n", MM, ""),
    # An import runs the whole file, and gives access to that file's imports.
    ("import own\ndef f(x):\n    pass\n", "import gc\nK = gc.get_objects()\n", "reaches gc.get_objects (own.py:2)"),
    ("import own\ndef f(x):\n    own.c.CDLL\n", "import ctypes as c\n", "reaches ctypes.CDLL (kernels.py:3)"),
    # Kernels and constants of another file are allowed; other values of that file are not.
    (f"import own\nfrom own import act\n{KERNEL}own.other(x, 1); act(x, own.ONE)\n{CALLED}", OTHER, ""),
    (f"from own import kernel\n{CALLED}", f"{KERNEL}plain(x)\n{PLAIN}", "reaches plain in a kernel (own.py:5)"),
    (f"import own\n{KERNEL}own.plain(x)\n{CALLED}", PLAIN, "reaches own.plain in a kernel (kernels.py:6)"),
    (f"import own\n{KERNEL}own.ONE\n{CALLED}    own.ONE = x", OTHER, "reaches own.ONE in a kernel (kernels.py:6)"),
    # A module of the submission must not be used as a value.
    ("import own\ndef f(x):\n    print(own)\n", PLAIN, "reaches own as a value (kernels.py:3)"),
    ("import own\ndef f(x):\n    own.__dict__['plain']\n", PLAIN, "reaches own.__dict__ (kernels.py:3)"),
])  # fmt: skip
def test_the_reader_follows_names_between_files(main: str, other: str, named: str, tmp_path: Path) -> None:
    made = reads(tmp_path, {"kernels.py": main, "own.py": other}, "f")
    found = [*(f"calls {name}" for _, name in made.calls), *(f"reaches {name}" for _, name in made.reaches)]
    assert (made.files, found) == (("kernels.py", "own.py"), [named] * bool(named))


@interpreted
@pytest.mark.parametrize(("named", "counts"), [("F.TILE", False), ("F.backward(ctx, x)", True)])
def test_a_backward_pass_counts_for_the_forward_if_named(named: str, counts: bool, tmp_path: Path) -> None:
    text = "import torch\nclass F(torch.autograd.Function):\n    TILE = 16\n"
    text += f"    def forward(ctx, x):\n        {named}\n    def backward(ctx, x):\n        torch.mm(x, x)\n"
    made = reads(tmp_path, {"kernels.py": text}, "f=pytorch=forward")
    assert [name for _, name in made.calls] == ["torch.mm (line 7)"] * counts


def test_files_are_found_by_imports_alone(tmp_path: Path) -> None:
    """Other files in a folder are not read, and a student's file never replaces a module of Python or torch."""
    main = (
        "import torch, math, helpers, missing; from . import beside\nfrom pkg.sub import (\n    deep,  # and so on\n"
        "    value)\nimport sys, \\\n    later\nif True: import inline\nimport ext, ..up, a-b, \u00e9t\u00e9\n"
        "from ..outside import x\nimport linked, folder.linked, sitecustomize\n"
    )
    kept = ("helpers.py", "beside.py", "pkg/__init__.py", "pkg/sub/deep.py", "later.py", "inline.py")
    files = {"hand/kernels.py": main, **{f"hand/{name}": "import helpers\n" for name in kept}}
    others = ("torch/__init__.py", "pkg/sub/other.py", "ext.so")
    others += tuple(f"{name}.py" for name in ("math", "conftest", "outside", "\u00e9t\u00e9"))
    files |= {**dict.fromkeys((f"hand/{name}" for name in others), ""), "outside.py": "", "far/linked.py": ""}
    hand = put(tmp_path, files) / "hand"
    (hand / "linked.py").symlink_to(tmp_path / "outside.py")
    (hand / "folder").symlink_to(tmp_path / "far")
    assert sorted(pythontree.members(hand / "kernels.py")) == sorted(["kernels.py", *kept])
    found = submission.find_one(hand, "kernels.py", tmp_path / "scratch")
    of_file = submission.find_one(hand / "kernels.py", "kernels.py", tmp_path / "scratch of file")
    data = found.source.read_bytes()
    assert of_file.source.read_bytes() == data, "a file includes the files it imports"
    assert data == pythontree.whole(hand / "kernels.py")
    assert sorted(filebundle.split(data)) == sorted(["kernels.py", *kept])
    assert pythontree.whole(found.source) == data, "a bundle has all files already"


@pytest.mark.parametrize(("files", "says"), [
    ({f"m{k}.py": f"import m{k + 1}" for k in range(filebundle.MOST_FILES + 1)}, "imports more than 100 files"),
    ({"m0.py": f"#{'x' * (1 << 20)}"}, "too large|is larger than"),
    ({"m0.py": "\n".join(f"from n{k} import a, b, c, d, e, f" for k in range(2000))}, "imports too many names"),
], ids=["files", "bytes", "names"])  # fmt: skip
def test_a_hand_in_over_a_limit_is_refused(files: Mapping[str, str], says: str, tmp_path: Path) -> None:
    put(tmp_path / "hand", {"kernels.py": "import m0\n", **files})
    refused(says, pythontree.whole, tmp_path / "hand" / "kernels.py")
    found = submission.find_one(tmp_path / "hand", "kernels.py", tmp_path / "scratch")
    assert found.source is None and re.search(says, found.error or ""), found.error


@pytest.mark.parametrize("name", ["../up.py", "/etc/up.py", "a//b.py", "a b.py", "x.so", "\u00e9.py", ""])
def test_a_bundle_with_an_impossible_file_name_is_read_as_one_plain_file(name: str) -> None:
    assert filebundle.split(filebundle.pack({"kernels.py": b"x = 1", name: b"y = 2"})) == {}
    shadows = filebundle.Bundle({"kernels.py": b"", "torch/__init__.py": b"", "gc.py": b"", "own/a.py": b""})
    places = {module: shadows.place(module) for module in ("torch", "gc", "own.a", "own")}
    assert places == {"torch": "", "gc": "", "own.a": "own/a.py", "own": "own/"}
    plain = {"kernels.py": b"x = 1", "a/b-c/d.py": b"# ---- e.py (9 bytes)\n"}
    assert filebundle.split(filebundle.pack(plain)) != {}


def test_a_class_compares_and_digests_all_files(tmp_path: Path) -> None:
    for name, number in (("ada", 1), ("bob", 2)):
        put(tmp_path / "class" / name, {**HELPER, "tiles.py": f"{TILES}\nMINE = {number}\n"})
    assert len({one.sha256 for one in submission.find(tmp_path / "class", SOURCE, tmp_path / "scratch")}) == 2
    texts = likeness.read_sources(tmp_path / "class", SOURCE, is_class_run=False)
    assert "MINE = 1" in texts["ada"].text and "MINE = 2" in texts["bob"].text


def test_a_watcher_reports_changes_of_imported_files(tmp_path: Path) -> None:
    source = put(tmp_path, {SOURCE: "import tiles\n", "tiles.py": "import more.deep\n"}) / SOURCE
    heard: list[Content] = []
    watcher = Watcher((source,), heard.append)
    for name in ("tiles.py", "more/deep.py", "more/deep.py"):
        put(tmp_path, {name: f"import more.deep\nX = {len(heard)}\n"})
        watcher._settle()
        assert len(heard) == len({each.source for each in heard})
        assert heard[-1].source == pythontree.whole(source)
    assert {path.name for path in watcher._folders()} == {tmp_path.name, "more"}
