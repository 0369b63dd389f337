"""`similar` finds copies in all handed-in files, groups equal wrong outputs, and shows both on a harmless page."""

import json
import os
import random
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from authors import EFFORTS, bodies, copied, reordered, submission
from conftest import ROOT, put, refused
from fuzz.mutating import Reader, growth

from grader.assignment.regions import strip_solution
from grader.report import html
from grader.staff.similarity import agreement, likeness, passages
from grader.staff.similarity.tokens import Source, functions, tokens

Command, Patch = Callable[..., str], pytest.MonkeyPatch
TEXT = """
#include <vector>
// adds up
static float total(const std::vector<float> &values) {
    float sum = 0.0f;
    for (int i = 0; i < (int)values.size(); i++) { sum += std::exp(values[i]); }
    return sum;
}
"""
BROKEN = ['"open', "/* open", 'R"x(open', "'", "#pragma omp", "a\\\nb", "\0\ud800 é", "1'000e+"]
OTHER = """
inline double all(std::vector<double>& v) /* all
of it */ { double s = 0; for (size_t k = 0; k < (size_t)v.size(); ++k) s += exp(v[k]); return s; }
"""
STARTER = strip_solution((ROOT / "module.cpp").read_text())


def compare(sources: dict[str, str], starter: str = STARTER) -> passages.Similarity:
    """Compare C++ sources, given by name, and return the result. Text of the starter is left out."""
    return likeness.compare({name: Source(text) for name, text in sources.items()}, Source(starter))


#: IDLE: edits (old, new) of TEXT that do not change its result. TELLING: edits that change it.
IDLE = [
    (";", ";;"), (";", "; (void)0;"), ("{", "{ (void)sum; 0;"), ("sum;", "(sum);"), ("sum;", "((+sum));"),
    ("sum +=", "(sum) += 0.0f +"), ("0.0f;", "(0 + 0.0f) * 1;"), ("std::exp(", "(std::exp)("), ("{", "<%"),
    ("[i]", "<:i:>"), ("values[i]", "1 * values[(i)] - 0"), ("exp(values[i])", "exp((values[i]))"),
]  # fmt: skip
TELLING = [("exp", "sqrt"), ("+=", "-="), ("sum;", "-sum;")]
TELLING += [("[i]", f"[{k}]") for k in ("i + 1", "2 * i", "i / 2 + 0 * i")]


def test_tokens_depend_on_meaning_only_not_on_names_layout_or_idle_text() -> None:
    assert tokens(Source(TEXT)).codes == tokens(Source(OTHER)).codes
    for edits, is_same in ((IDLE, True), (TELLING, False)):
        for old, new in edits:
            changed = tokens(Source(TEXT.replace(old, new))).codes
            assert old in TEXT and (changed == tokens(Source(TEXT)).codes) is is_same, (old, new)


def test_a_copy_with_added_idle_tokens_is_found(master: str) -> None:
    parts = [bodies(3000 + k) for k in range(3)]
    texts = [submission(master, own) for own in parts]
    idle = submission(master, [body.replace(";", ";;").replace("= ", "= 0 + ") for body in parts[0]])
    found = compare({"copy": idle, **dict(zip("abc", texts, strict=True))})
    known = {(pair.left, pair.right): pair.likeness for pair in found.pairs}
    assert known["a", "copy"] == pytest.approx(1.0, abs=1e-9) == max(known.values())
    assert (known["b", "copy"], known["c", "copy"]) == (known["a", "b"], known["a", "c"])


def test_tokens_point_into_the_text() -> None:
    found = tokens(Source(TEXT))
    words = [TEXT[start:end] for start, end in zip(found.starts, found.ends, strict=True)]
    assert "sum" in words and "+=" in words and "adds" not in words
    assert found.codes[words.index("exp")] == "exp" and found.codes[words.index("sum")] == "name"
    for text in BROKEN:
        assert len(tokens(Source("int x;\n" + text + "\nint y;")).codes) >= 3, text
    names = functions(Source(STARTER))
    assert {"fourDimRead", "myFlashAttention", "formatTensor"} <= names.keys() and "exp" not in names


def test_copies_rank_above_independent_pairs(master: str) -> None:
    """Compare thirty independent authors, and three copies for each amount of effort to hide the copying."""
    originals = [bodies(3000 + k) for k in range(30)]
    sources = {f"s{k:03}": submission(master, parts) for k, parts in enumerate(originals)}
    rng = random.Random(3)
    efforts = {(f"c{k:03}", f"s{k:03}"): effort for k, effort in enumerate([*EFFORTS] * 3)}
    for k, ((copy, _), effort) in enumerate(efforts.items()):
        text = submission(master, [copied(body, effort, 97 * k + at) for at, body in enumerate(originals[k])])
        sources[copy] = text if effort == "careless" else reordered(text, rng)
    found = {(p.left, p.right): p.likeness for p in compare(sources).pairs}
    lowest = {effort: min(found[pair] for pair in efforts if efforts[pair] == effort) for effort in EFFORTS}
    independent = sorted((value for pair, value in found.items() if pair not in efforts), reverse=True)
    assert lowest["careless"] > 0.99 and lowest["renamed"] > independent[0]
    # Even copies with rewritten loops rank above 98 % of the independent pairs.
    count = len(sources) * (len(sources) - 1) // 2 - len(efforts)
    assert min(lowest["reworked"], lowest["patient"]) > independent[count // 50]
    assert len(independent) <= count // 2 or independent[count // 2] < 0.3


def test_one_function_of_many_is_found_beside_honest_others(master: str) -> None:
    """If two thirds of a class share a function's body, they form a group, and the function is named."""
    shared = bodies(5)[5]
    sources = {f"s{k:02}": submission(master, [*bodies(200 + k)[:5], shared]) for k in range(8)}
    sources |= {f"t{k:02}": submission(master, bodies(300 + k)) for k in range(4)}
    found = compare(sources)
    assert found.groups == (tuple(f"s{k:02}" for k in range(8)),)
    assert {pair.function for pair in found.pairs if pair.right < "t"} == {"myFlashAttention"}


def test_almost_empty_files_do_not_disturb_other_pairs(master: str) -> None:
    hardly = {"empty": "", "short": "int x;", "fifteen": ";" * 15, "sixteen": ";" * 16}
    found = compare({**dict.fromkeys("ab", submission(master, bodies(1))), **hardly})
    assert [(pair.left, pair.right) for pair in found.pairs] == [("a", "b")]
    assert {*hardly} == {*found.starters, *found.bare}
    assert passages.winnow([]) == {} and passages.winnow(passages.grams(["a"] * 15)) == {}


@pytest.mark.full
def test_the_longest_text_is_cut_and_noted() -> None:
    found = compare({"a": ";" * (1 << 20), "b": ";" * (1 << 20), "c": "/**/" * (1 << 19)}, "")
    assert found.cut == ("a", "b", "c"), "by tokens, and by characters"
    assert any("only the first 50000 tokens" in note and "a, b, c" in note for note in likeness.notes(found))
    found.regions(passages.Pair("a", "b", 1.0, 1.0))


def test_regions_are_equal_runs_that_do_not_overlap(master: str) -> None:
    left, right = bodies(11), bodies(12)
    right[5] = copied(left[5], "reworked", 1)
    found = compare({"l": submission(master, left), "r": submission(master, right)})
    regions = found.regions(found.pairs[0])
    assert sum(region.tokens for region in regions) > 150
    for side in ("left", "right"):
        assert all(a[1] <= b[0] for a, b in pairwise(sorted(getattr(region, side) for region in regions)))
    one, other = (found.sources[name].text for name in "lr")
    texts = [(one[slice(*each.left)], other[slice(*each.right)]) for each in regions]
    assert not any("PYBIND11_MODULE" in left for left, _ in texts), "the starter's"
    loops = [tokens(Source(text)).codes.count("for") for text in max(texts, key=lambda pair: len(pair[0]))]
    assert loops[0] == loops[1]


def result(code: str = "k_transposed", **digests: str | None) -> dict[str, object]:
    """Return a result. `digests`: the wrong output's digest by case (None: right). Cases with an "h" are hidden."""
    cases = [
        {"name": name, "ok": out is None, "hidden": "h" in name, "output_sha256": out, "diagnosis": None}
        for name, out in digests.items()
    ]
    return {"parts": [{"id": "part2", "diagnosis": {"code": code, "message": f"<{code}>"}, "cases": cases}]}


def groups(**results: dict[str, object]) -> tuple[agreement.Group, ...]:
    return agreement.groups({name: agreement.wrong_outputs(found) for name, found in results.items()})


def test_equal_wrong_outputs_on_two_hidden_inputs_make_a_group() -> None:
    same, once = result(h1="aa", h2="bb", p="cc"), result(h1="aa", h2="zz", p="cc")
    (group,) = groups(anna=same, bert=same, carl=once)
    assert group.members == ("anna", "bert") and group.cases == ("h1", "h2") and group.hidden
    assert group.words == "<k_transposed>"
    # Right outputs, equal outputs on only one input, or outputs that were not written do not make a group.
    for same in (result(h1=None), result(h1="aa"), result("not_written", h1="00", h2="01")):
        assert not groups(a=same, b=same), same
    public_alone, other = (result(h1=digest, x="aa", y="bb") for digest in ("p1", "q1"))
    assert not groups(a=public_alone, b=other), "equal outputs on public inputs alone make no group"
    # a and b form a group, although another student shares each of their two outputs.
    outputs = {"a": "12", "b": "12", "c": "1x", "d": "y2"}
    found = groups(**{name: result(h1=one, h2=two) for name, (one, two) in outputs.items()})
    assert [group.members for group in found] == [("a", "b")]


def test_the_page_escapes_everything(master: str) -> None:
    evil = "<script>alert(1)</script>"
    text = submission(master, bodies(1)).replace("int b = 0", f"/* {evil} \x1b[31m \u202e */ int b = 0")
    found = compare({evil: text, "other": text})
    group = agreement.Group(evil, (evil, "other"), (evil,), True, evil)
    page = "".join(agreement.page(found, found.pairs, [group]))
    assert "&lt;script&gt;" in page
    assert not [text for text in ("<script", "\x1b", "\u202e", "http://", "https://") if text in page]
    assert page.count("<mark") == page.count("</mark>") >= 2


@pytest.fixture
def similar(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        assert likeness.main([*arguments]) == 0
        return capsys.readouterr().out

    return run


def test_similar_compares_a_graded_class_and_bare_submissions(
    tmp_path: Path, master: str, similar: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = json.dumps(result(h1="aa", h2="bb")).encode()
    for name, seed, text in (("anna", 1, wrong), ("bert", 1, wrong), ("carl", 2, b"{broken")):
        source = {"module.cpp": submission(master, bodies(seed)).encode()}
        put(tmp_path / "handed in" / name, source)
        put(tmp_path / "out" / name, {**source, "result.json": text})
    printed = similar("out")
    assert "same wrong outputs on 2 hidden inputs of part2: anna, bert" in printed
    assert "100.0%  anna  bert" in printed
    printed = similar("handed in", "--top", "1")
    assert "100.0%  anna  bert" in printed and "carl" not in printed
    places = (".", "out", "handed in")
    assert [(tmp_path / place / "similar.html").is_file() for place in places] == [True, True, False]
    (tmp_path / "out" / "similar.html").unlink()
    monkeypatch.setattr(html, "missing_library", lambda: "jinja2")
    printed = similar("out")
    assert "100.0%  anna  bert" in printed and "no page was written: `pip install jinja2`" in printed
    assert not (tmp_path / "out" / "similar.html").exists()


@pytest.fixture
def other_starter(master: str, tmp_path: Path) -> Path:
    """Write a starter that extends the kit's, and six submissions made from it, three without a student's code."""
    given = submission(master, bodies(77))
    spaced = "// mine\n" + given.replace("float ", "float  ")
    texts = {"ann": given, "bob": spaced, "cyd": given + "\nint x;\n"}
    for name, seed in (("dan", 5), ("eve", 6), ("fay", 6)):
        texts[name] = given + "\n" + "\n".join(f"void extra() {{ {body} }}" for body in bodies(seed)[2:])
    put(tmp_path / "handed in", {f"{name}/module.cpp": text.encode() for name, text in texts.items()})
    return put(tmp_path, {"starter.cpp": given.encode()})


def test_starters_are_listed_also_by_results_and_make_no_pair(other_starter: Path, similar: Command) -> None:
    alike = "6 submissions are alike (1 pair shown): ann, bob, cyd, dan, eve, fay\n"
    assert "--starter FILE" in similar("handed in").split(alike)[1]
    printed = similar("handed in", "--starter", "starter.cpp")
    unchanged = "the starter, unchanged or nearly unchanged: ann, bob, cyd"
    assert f"{unchanged}\n" in printed and "text of the starter is left out: starter.cpp\n" in printed
    pairs = [line.split()[1:] for line in printed.splitlines() if "%" in line]
    assert pairs[0] == ["eve", "fay"] and not [pair for pair in pairs if {*pair} & {"ann", "bob", "cyd"}]
    assert unchanged in (other_starter / "similar.html").read_text()
    printed = similar("handed in", "--starter", "starter.cpp", "--starter", "handed in/eve/module.cpp")
    assert "unchanged or nearly unchanged: ann, bob, cyd, eve, fay\n" in printed
    # Without --starter, starters are known by their results.
    for folder in (other_starter / "handed in").iterdir():
        code = "not_written" if folder.name in ("ann", "bob", "cyd") else "k_transposed"
        (folder / "result.json").write_text(json.dumps(result(code, h="aa")))
    printed = similar("handed in")
    assert "no part is written, so these are not compared with one another: ann, bob, cyd" in printed
    assert "%  ann  bob" not in printed and "%  eve  fay" in printed


@pytest.mark.full
def test_a_large_group_is_listed_first_and_once(tmp_path: Path, master: str, similar: Command) -> None:
    texts = {f"s{k}": submission(master, bodies(8)) for k in range(8)}
    texts |= {f"t{k}": submission(master, bodies(300 + k)) for k in range(4)}
    put(tmp_path, {f"class/{name}/module.cpp": text.encode() for name, text in texts.items()})
    printed = similar("class").splitlines()
    assert printed[0] == "8 submissions are alike (1 pair shown): s0, s1, s2, s3, s4, s5, s6, s7"
    assert [line.split()[1:3] for line in printed if "100.0%" in line] == [["s0", "s1"]]


def test_earlier_years_are_stored(tmp_path: Path, master: str, similar: Command, monkeypatch: Patch) -> None:
    for year, class_ in {"2025": {"old": 1, "other": 2}, "2026": {"ada": 1, "bob": 3}}.items():
        for name, seed in class_.items():
            put(tmp_path / year / name, {"module.cpp": submission(master, bodies(seed)).encode()})
    printed = similar("2026", "--old", "2025")
    assert "100.0%  2025/old  ada" in printed and "2025/old  2025/other" not in printed
    similar("2026", "--old", "2025", "--html", "page.html")
    assert "4 submissions, 5 pairs" in (tmp_path / "page.html").read_text()
    monkeypatch.setattr(likeness, "plainfile", None)  # now reading sources again would fail
    assert similar("2026", "--old", "2025") == printed
    (tmp_path / "2025" / likeness.INDEX).write_text('{"a": 1}')
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert similar("2026", "--old", "2025") == printed


KERNEL = """import triton.language as tl

@triton.jit
def rows(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n) // 2
    tl.store(y + at, value * 2, mask=at < n)
"""
SAME_KERNEL = re.sub(r"\bat\b", "k", KERNEL).replace("value", "v")
SAME_KERNEL = SAME_KERNEL.replace("):\n", '):\n    """Halve # it."""  # so\n', 1)


def test_python_has_neither_comments_nor_docstrings() -> None:
    texts = (KERNEL, SAME_KERNEL, KERNEL.replace("// 2", "// n"))
    python = [tokens(Source(text, len(text))) for text in texts]
    assert python[0].codes == python[1].codes != python[2].codes and "//" in python[0].codes
    assert [*functions(Source(KERNEL + CODE, len(KERNEL)))][:2] == ["rows", "row0"]


def test_malformed_results_are_ignored(tmp_path: Path, master: str) -> None:
    good = json.dumps(result(h1="aa", h2="bb"))
    types, digest = good.replace('"h1"', '["h1"]'), good.replace('"aa"', '{"a": 1}')
    texts = {"ann": good, "bob": good, "types": types, "digest": digest, "deep": "[" * 200_000, "list": "[]"}
    texts |= {"number": '{"parts": 7}', "case": '{"parts": [{"cases": {"a": 1}}]}'}
    texts |= {"huge": '{"parts": [' + " " * (9 << 20), "long": good + "9" * 100_000}
    source = submission(master, bodies(1)).encode()
    for name, text in texts.items():
        put(tmp_path / name, {"result.json": text.encode(), "module.cpp": source})
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "result.json")
    assert {name for name, found in agreement.read(tmp_path).items() if found} == {"ann", "bob"}
    assert agreement.not_written(tmp_path) == frozenset() and likeness.main([str(tmp_path)]) == 0


def test_groups_are_found_among_many_that_share_single_cases() -> None:
    """The time for a large class with many cases grows linearly: a group is compared only with overlapping groups."""
    shared = {k: {f"h{n}": f"{n} {k // (2 + n % 5)}" for n in range(30)} for k in range(240)}
    results = {f"s{k:03}": result(**digests) for k, digests in shared.items()}
    assert ("s000", "s001") in [group.members for group in groups(**results)]
    by_people = {60: dict(list(results.items())[:60]), 240: results}
    pattern = {"patterns": {"people": bytes}, "pattern_bytes": 60}
    growth(Reader("groups", lambda data: groups(**by_people[len(data)]), (), **pattern), "people")


def test_wrong_arguments_are_reported_in_one_line(tmp_path: Path) -> None:
    put(tmp_path, {"out/anna/result.json": b"{}"})
    mistakes = {"--submissions": ("out",), "nowhere": ("nowhere",), "--top": (".", "--top", "0")}
    for why, (folder, *more) in mistakes.items():
        refused(why, likeness.main, [str(tmp_path / folder), *more])


#: A compiler joins these two lines to a line comment. The kit's lexer does not, so `/*` opens a comment there.
SPLICED = "/\\\n/ /*\n"
#: The kit's lexer sees a raw string without an end. A compiler skips the string between `#if 0` and `#endif`.
RAW = '#if 0\nR"nothing(\n#endif\n'
CODE = "".join(
    f"static float row{k}(const float *x, int n) {{ float s = {k}; for (int i = {k}; i < n; i += {k + 1}) "
    f"s = s * x[i] + x[n - i - 1] / (s + {k}); return s; }}\n"
    for k in range(20)
)
KITS = ("module.cpp", "labs/gpu/kernels.py", "labs/gpu/kernels.cu")
CANNOT = "cannot be compared, because a comment or literal may hide code"

HIDDEN = {
    "all": SPLICED + STARTER + CODE, "what is added": STARTER + SPLICED + CODE, "no starter": SPLICED + CODE,
    "in a literal": STARTER + RAW + CODE,
    "as comments": "\n".join(f"// {line}" for line in CODE.split("\n")) + STARTER,
}  # fmt: skip
HONEST = {
    "starter": STARTER, "starter with a name": "// Ada Lovelace, 12345, worked alone\n" + STARTER,
    "starter indented": STARTER.replace("\n", "\n  "),
    "commented well": STARTER + CODE.replace("{ float", "{ /* " + 40 * "why " + "*/ float"), "empty": "",
    **{name: (ROOT / name).read_text() for name in KITS},
}  # fmt: skip


@pytest.mark.parametrize("kind", HIDDEN)
def test_hidden_text_cannot_be_compared(kind: str) -> None:
    found = compare({"ada": HIDDEN[kind], "bob": STARTER, "cyd": STARTER + CODE})
    assert (found.unreadable, found.starters, found.bare) == (("ada",), ("bob",), ())
    assert any(note.startswith(CANNOT) and note.endswith(": ada") for note in likeness.notes(found))


@pytest.mark.parametrize("kind", HONEST)
def test_honest_text_can_be_compared(kind: str) -> None:
    assert compare({"ada": HONEST[kind], "bob": STARTER + CODE}).unreadable == ()


def test_every_file_is_read(tmp_path: Path, similar: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two students who share only the second file, kernels.cu, form a pair, before and after the class is graded."""
    python = {"ada": b"import torch\n", "bob": b"import triton\n", "cyd": b"import torch\n"}
    files = {f"{name}/kernels.py": text for name, text in python.items()}
    files |= {f"{name}/kernels.cu": CODE.encode() for name in ("ada", "bob")}
    for is_class_run in (False, True):
        results = {f"{name}/result.json": b"{}" for name in python if is_class_run}
        folder = put(tmp_path / f"class {is_class_run}", {**files, **results})
        sources = likeness.read_sources(folder, "kernels.py", is_class_run)
        assert sources["ada"] == Source(f"import torch\n\n{CODE}", 14) and sources["cyd"].python == 14
        config = ROOT / "labs/gpu/assignment.yaml"
        own = config if is_class_run else None
        monkeypatch.setattr(likeness.gradebook, "config_in", lambda _, own=own: own)
        named = () if is_class_run else ("--config", str(config))
        printed = similar(str(folder), *named, "--html", "page.html")
        assert all(words in printed for words in ("100.0%  ada  bob", "kernels.py", "kernels.cu"))


def test_a_link_beside_a_source_is_not_read(tmp_path: Path) -> None:
    put(tmp_path, {"ada/kernels.py": b"import torch\n", "ada/result.json": b"{}", "secret": b"secret"})
    (tmp_path / "ada" / "kernels.cu").symlink_to(tmp_path / "secret")
    assert likeness.read_sources(tmp_path, "kernels.py", True) == {"ada": Source("import torch\n\n", 14)}
