"""Copies are told from independent work, wrong outputs are grouped, and the page shows both without harm."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from authors import bodies, submission
from copies import copied
from labelled import likenesses, make

from grader import agreement, similar
from grader.errors import UsageError
from grader.regions import strip_solution
from grader.report import similar_html
from grader.tokens import functions, tokens

TEXT = """
#include <vector>
// adds up
static float total(const std::vector<float> &values) {
    float sum = 0.0f;
    for (int i = 0; i < (int)values.size(); i++) { sum += std::exp(values[i]); }
    return sum;
}
"""


def test_tokens_do_not_change_with_names_comments_layout_types_and_steps() -> None:
    other = (
        "inline double all(std::vector<double>& v) /* all\nof it */ { double s = 0; for (size_t k = 0; k < "
        "(size_t)v.size(); ++k) s += exp(v[k]); return s; }"
    )
    assert tokens(TEXT).codes == tokens(other).codes
    assert tokens(TEXT.replace("exp", "sqrt")).codes != tokens(TEXT).codes


def test_tokens_point_into_the_text() -> None:
    found = tokens(TEXT)
    words = [TEXT[start:end] for start, end in zip(found.starts, found.ends, strict=True)]
    assert "sum" in words and "+=" in words and "adds" not in words
    assert found.codes[words.index("exp")] == "exp" and found.codes[words.index("sum")] == "name"


@pytest.mark.parametrize(
    "text", ['"open', "/* open", 'R"x(open', "'", "#pragma omp", "a\\\nb", "\0\ud800 é", "1'000e+"]
)
def test_broken_text_has_tokens_too(text: str) -> None:
    assert len(tokens("int x;\n" + text + "\nint y;").codes) >= 3


def test_functions_of_the_starter(master: str) -> None:
    names = functions(strip_solution(master))
    assert {"fourDimRead", "myFlashAttention", "formatTensor"} <= names and "exp" not in names


def test_winnowing_finds_every_run_that_is_long_enough() -> None:
    run = [f"w{k}" for k in range(similar.GRAM + similar.WINDOW - 1)]
    one = [f"a{k}" for k in range(50)] + run + ["b"] * 30
    other = ["c"] * 7 + run + [f"d{k}" for k in range(90)]
    shared = set(similar.winnow(similar.grams(one))) & set(similar.winnow(similar.grams(other)))
    assert shared
    assert not set(similar.grams(one[:50])) & set(similar.grams(other[-90:]))


def test_whole_copies_stand_above_independent_work() -> None:
    labelled = make(authors=30, copies=3, seed=3, amounts=("all",))
    pairs, independent = likenesses(labelled)
    careless, renamed, reworked, patient = (
        [value for pair, value in pairs.items() if labelled.copies[pair][0] == effort]
        for effort in ("careless", "renamed", "reworked", "patient")
    )
    assert min(careless) > 0.99 and min(renamed) > independent[0]
    # Whoever has rewritten every loop is among the very first all the same.
    first = independent[len(independent) // 50]
    assert min(reworked) > first and min(patient) > first
    assert independent[len(independent) // 2] < 0.3


def test_the_starter_counts_nothing(master: str) -> None:
    starter = strip_solution(master)
    found = similar.compare({"a": starter, "b": starter, "c": submission(master, bodies(1))}, starter)
    assert found.pairs == ()


def test_what_half_of_the_class_has_counts_nothing(master: str) -> None:
    starter = strip_solution(master)
    given_away = bodies(5)[5]
    own = [bodies(200 + k) for k in range(24)]
    shared = {f"s{k:02}": submission(master, [*parts[:5], given_away]) for k, parts in enumerate(own)}
    alone = dict(list(shared.items())[:2])
    in_class = {(p.left, p.right): p for p in similar.compare(shared, starter).pairs}["s00", "s01"]
    (by_themselves,) = similar.compare(alone, starter).pairs
    assert in_class.shared < by_themselves.shared / 2


def test_regions_are_equal_runs_that_do_not_overlap(master: str) -> None:
    starter = strip_solution(master)
    left, right = bodies(11), bodies(12)
    right[5] = copied(left[5], "reworked", 1)
    found = similar.compare({"l": submission(master, left), "r": submission(master, right)}, starter)
    regions = found.regions(found.pairs[0])
    assert sum(region.tokens for region in regions) > 150
    for side in ("left", "right"):
        spans = sorted(getattr(region, side) for region in regions)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert not any("PYBIND11_MODULE" in found.texts["l"][slice(*region.left)] for region in regions), (
        "starter"
    )
    region = max(regions, key=lambda region: region.tokens)
    assert tokens(found.texts["l"][slice(*region.left)]).codes.count("for") == tokens(
        found.texts["r"][slice(*region.right)]
    ).codes.count("for")


# ---- wrong outputs


def result(
    *cases: tuple[str, str | None, bool], code: str = "k_transposed", part: str = "part2"
) -> dict[str, object]:
    return {
        "parts": [
            {
                "id": part,
                "diagnosis": {"code": code, "message": f"<{code}>"},
                "cases": [
                    {
                        "name": name,
                        "ok": digest is None,
                        "hidden": hidden,
                        "output_sha256": digest,
                        "diagnosis": None,
                    }
                    for name, digest, hidden in cases
                ],
            }
        ]
    }


def groups(**results: dict[str, object]) -> tuple[agreement.Group, ...]:
    return agreement.groups({name: agreement.wrong_outputs(found) for name, found in results.items()})


def test_equal_wrong_outputs_on_two_hidden_inputs_make_a_group() -> None:
    same = result(("h1", "aa", True), ("h2", "bb", True), ("public", "cc", False))
    once = result(("h1", "aa", True), ("h2", "zz", True), ("public", "cc", False))
    (group,) = groups(anna=same, bert=same, carl=once)
    assert group.members == ("anna", "bert") and group.cases == ("h1", "h2") and group.hidden
    assert group.told == "<k_transposed>"


def test_right_outputs_one_input_and_empty_outputs_make_no_group() -> None:
    assert not groups(a=result(("h1", None, True)), b=result(("h1", None, True)))
    assert not groups(a=result(("h1", "aa", True)), b=result(("h1", "aa", True)))
    empty = result(("h1", "00", True), ("h2", "01", True), code="not_written")
    assert not groups(a=empty, b=empty)
    public_alone = result(("h1", "p1", True), ("x", "aa", False), ("y", "bb", False))
    other = result(("h1", "q1", True), ("x", "aa", False), ("y", "bb", False))
    assert not groups(a=public_alone, b=other), "hidden inputs decide where there are any"


def test_two_who_share_each_input_with_others_are_found() -> None:
    found = groups(
        a=result(("h1", "1", True), ("h2", "2", True)),
        b=result(("h1", "1", True), ("h2", "2", True)),
        c=result(("h1", "1", True), ("h2", "x", True)),
        d=result(("h1", "y", True), ("h2", "2", True)),
    )
    assert [group.members for group in found] == [("a", "b")]


# ---- the page and the command


def test_the_page_escapes_everything(master: str) -> None:
    evil = "<script>alert(1)</script>"
    text = submission(master, bodies(1)).replace("int b = 0", f"/* {evil} \x1b[31m \u202e */ int b = 0")
    found = similar.compare({evil: text, "other": text}, strip_solution(master))
    group = agreement.Group(evil, (evil, "other"), (evil,), True, evil)
    page = "".join(similar_html.page(found, found.pairs, [group]))
    assert "<script" not in page and "&lt;script&gt;" in page
    assert "\x1b" not in page and "\u202e" not in page and "http://" not in page and "https://" not in page
    assert page.count("<mark") == page.count("</mark>") >= 2


def test_the_command_on_a_class_run_and_on_submissions(
    tmp_path: Path, master: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, handed_in = tmp_path / "out", tmp_path / "handed in"
    wrong = result(("h1", "aa", True), ("h2", "bb", True))
    for name, seed in (("anna", 1), ("bert", 1), ("carl", 2)):
        for folder in (out, handed_in):
            (folder / name).mkdir(parents=True)
            (folder / name / "module.cpp").write_text(submission(master, bodies(seed)))
        (out / name / "result.json").write_text(json.dumps(wrong) if name != "carl" else "{broken")
    monkeypatch.chdir(tmp_path)
    assert similar.main([str(out)]) == 0
    told = capsys.readouterr().out
    assert "wrong alike on 2 hidden inputs of part2: anna, bert" in told
    assert "100.0%  anna  bert" in told and (out / "similar.html").is_file()
    assert similar.main([str(handed_in), "--top", "1"]) == 0
    told = capsys.readouterr().out
    assert "100.0%  anna  bert" in told and "carl" not in told
    assert (tmp_path / "similar.html").is_file() and not (handed_in / "similar.html").exists()


def test_mistakes_are_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "out" / "anna").mkdir(parents=True)
    (tmp_path / "out" / "anna" / "result.json").write_text("{}")
    with pytest.raises(UsageError, match="--submissions"):
        similar.main([str(tmp_path / "out")])
    with pytest.raises(UsageError, match="nowhere"):
        similar.main([str(tmp_path / "nowhere")])
    with pytest.raises(UsageError, match="--top"):
        similar.main([str(tmp_path), "--top", "0"])
