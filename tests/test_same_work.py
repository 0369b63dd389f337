"""One loop bound as several parts is flagged for people; honest kernels never are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from building import write
from conftest import ROOT
from honest.styles import STYLES, Style
from honest.styles import source as styled

from grader.assignment import loading
from grader.assignment.records import Assignment
from grader.base.errors import UsageError
from grader.base.results import Memory, PartResult
from grader.build import landmarks
from grader.judge import again, same_work
from grader.judge.bench import Bench, Options
from grader.judge.evaluate import evaluate
from grader.judge.marking import Marker
from grader.run.zygote import Zygote
from labs.attention.threats import same_work as part4
from labs.attention.threats.same_work import CALL, NAIVE, NAMED

COURSE = ROOT / "configs" / "gpt149.yaml"
#: Several tiles of keys.
OPTIONS = Options({"N": 160, "Br": 64, "Bc": 48}, timing=False, profile=False)

UNNAMED = ", ".join(["torch::Tensor"] * 11 + ["int"] * 2)


def flash(body: str, arguments: str = NAMED) -> str:
    return part4.flash(body, "myFlashAttention", arguments)


def whole(text: str) -> str:
    return part4.with_part_4(text, "myFlashAttention")


def own_loop(*edits: tuple[str, str]) -> str:
    """Part 4 with the loop of `attention` as its own body, with edits of its text."""
    text = NAIVE.partition("int H, int N, int d) {\n")[2].partition("\n}\n")[0]
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return flash(text.replace("QT", "Q").replace("KT", "K").replace("VT", "V"))


LAST = "o[row * d + c] += s[j] / sum * v[base + j * d + c];"
SAME, IDLE = "same_as_part1", "workspace_unused"
REVIEW, NOTE = "review", "note"
#: The body of part 4 and the flags that it must have, by code. Those without `same_as_part1` are not covered.
NEIGHBOURS = {
    "the same function": (flash(CALL), {SAME: REVIEW, IDLE: NOTE}),
    "arguments without names": (flash(CALL, UNNAMED), {SAME: REVIEW, IDLE: NOTE}),
    "workspaces copied as in the starter": (
        flash("torch::Tensor a = Oi; torch::Tensor b = L;\n    " + CALL), {SAME: REVIEW, IDLE: NOTE}),
    "one workspace filled": (flash("L.data_ptr<float>()[0] = 1;\n    " + CALL), {SAME: REVIEW, IDLE: NOTE}),
    "a function that is no plain text": (
        "#define SHARED(name) torch::Tensor name\nSHARED(myFlashAttention)"
        + flash(CALL).partition("myFlashAttention")[2].replace(") {", ") FLASH_OPEN", 1),
        {SAME: REVIEW},
    ),
    "one element changed": (
        flash(f"{CALL.replace('return', 'torch::Tensor O =')} O.data_ptr<float>()[0] *= 1.0000001f; return O;"),
        {SAME: REVIEW, IDLE: NOTE}),
    "tiles in name only": (
        flash(f"for (int i = 0; i < N; i += Bc) L.data_ptr<float>()[i] = Br;\n    {CALL}"), {SAME: NOTE}),
    "every element changed": (own_loop((LAST, LAST.replace("s[j]", "1.0000003f * s[j]"))), {IDLE: NOTE}),
    "keys backwards": (
        own_loop(("for (int j = 0; j < N; j++) {", "for (int j = N - 1; j >= 0; j--) {"),
                 ("for (int j = 0; j < N; j++)\n", "for (int j = N - 1; j >= 0; j--)\n")), {IDLE: NOTE}),
    "sums in double": (own_loop(("float dot", "double dot"), ("float sum", "double sum")), {IDLE: NOTE}),
    "divided last": (
        own_loop((LAST, LAST.replace(" / sum", "")),
                 ("    }\n    return O;", "for (int c = 0; c < d; c++) o[row * d + c] /= sum; }\n    return O;")),
        {IDLE: NOTE}),
    "wrong": (flash(CALL.replace("V,", "K,")), {}),
}  # fmt: skip


@pytest.fixture(scope="module")
def course() -> Assignment:
    return loading.load(COURSE)


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote(at_once=False) as one:
        yield one


def judged(text: str, course: Assignment, zygote: Zygote, folder: Path) -> list[PartResult]:
    parts = tuple(course.part(name) for name in ("part1", "part4"))
    return list(evaluate(course, write(folder, text), parts, OPTIONS, zygote=zygote).parts)


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_one_loop_as_two_parts(name: str, course: Assignment, zygote: Zygote, tmp_path: Path) -> None:
    body, codes = NEIGHBOURS[name]
    text = whole(body.replace("FLASH_OPEN", "{"))
    first, fourth = judged(text, course, zygote, tmp_path)
    assert (first.verdict, fourth.verdict) == ("pass", "wrong" if name == "wrong" else "pass")
    assert {flag.code: flag.level for flag in fourth.flags} == codes
    assert first.flags == ()


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_an_honest_flash_kernel_has_no_flag(
    style: Style, course: Assignment, zygote: Zygote, tmp_path: Path
) -> None:
    assert [part.flags for part in judged(styled(style), course, zygote, tmp_path)] == [(), ()]


def test_one_tile_of_all_keys_says_nothing(course: Assignment, zygote: Zygote, tmp_path: Path) -> None:
    """Where all keys are one tile, flash attention sums as the naive kernel does."""
    sized = tuple(case for case in course.part("part1").cases if not case.shape)
    parts = tuple(replace(course.part(name), cases=sized) for name in ("part1", "part4"))
    options = replace(OPTIONS, shape={"N": 40, "Br": 64, "Bc": 64})
    result = evaluate(course, write(tmp_path, whole(flash(CALL))), parts, options, zygote=zygote)
    assert [flag.code for flag in result.flags] == [IDLE]


def test_a_part_that_is_judged_again_is_compared_again(
    course: Assignment, zygote: Zygote, tmp_path: Path
) -> None:
    source, asked = write(tmp_path, whole(flash(CALL))), []

    def judge(parts: tuple[object, ...]) -> object:
        asked.append([part.id for part in parts])  # type: ignore[attr-defined]
        return evaluate(course, source, parts, OPTIONS, zygote=zygote)  # type: ignore[arg-type]

    before = evaluate(course, source, course.select("all"), OPTIONS, zygote=zygote)
    result = again.judge_rest(course, before, again.Rest({"part4": ()}), judge)  # type: ignore[arg-type]
    assert asked == [["part1", "part4"]]
    assert [flag.code for flag in result.parts[-1].flags] == [IDLE, SAME]
    assert [part.id for part in result.parts] == [part.id for part in before.parts]


MIB = 1 << 20


@pytest.mark.parametrize(
    ("size", "peak", "reference", "flagged"),
    [
        (1024, 7.0, 2.6, True),
        (1024, 3.6, 2.6, False),
        (1024, 5.0, 3.2, False),  # copies of the inputs
        (512, 2.0, 0.8, False),  # too small to be seen
        (4096, 80.0, 10.0, True),
    ],
)
def test_a_peak_that_holds_the_matrix_of_scores(
    size: int, peak: float, reference: float, flagged: bool, course: Assignment
) -> None:
    part = course.part("part3")
    bench = Bench(course, COURSE, Options({"N": size}), *(None,) * 4)  # type: ignore[arg-type]
    memory = Memory(None, None, int(peak * MIB), int(reference * MIB))
    found = list(same_work.memory_flags(Marker(bench, part), memory))
    assert [(flag.code, flag.level) for flag in found] == [("tensor_not_avoided", "review")] * flagged


def test_an_unfused_kernel_as_part_3_holds_the_matrix(
    course: Assignment, zygote: Zygote, tmp_path: Path
) -> None:
    text = whole(flash(CALL)).replace("std::vector<float> s(N);", "std::vector<float> m(N * N);")
    copied = "std::vector<float> a(q, q + B * H * N * d), b(k, k + B * H * N * d), w(v, v + B * H * N * d);"
    text = text.replace("float sum = 0;", "float sum = 0, *s = m.data() + row % N * N;")
    text = text.replace("    for (int row", f"    {copied}\n    for (int row")
    source = write(tmp_path, text.replace("myNaiveAttention", "myFusedAttention"))
    part = replace(course.part("part3"), cases=course.part("part3").cases[:2])
    (result,) = evaluate(course, source, (part,), replace(OPTIONS, shape={}), zygote=zygote).parts
    assert result.verdict == "pass"
    assert [flag.code for flag in result.flags] == ["tensor_not_avoided"]


def test_which_arguments_are_used(course: Assignment) -> None:
    part, other = course.part("part4"), course.part("part1")
    own = same_work.own_arguments(part, other)
    assert len(own) == 13

    def used(text: str) -> list[str] | None:
        body = landmarks.function(text, "myFlashAttention")
        assert body is not None
        return same_work.used_arguments(body, part, own)

    assert used((ROOT / "module.cpp").read_text()) is not None
    assert used(flash(CALL)) == used(flash(CALL, UNNAMED)) == []
    assert used(flash("L[0] = Bc;\n" + CALL)) == ["L", "Bc"]
    assert used("void myFlashAttention(int a) {\n}") is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("differs_from: part1", "differs_from: part9", "differs_from names no earlier part"),
        ("differs_from: part1", "differs_from: part4", "differs_from names no earlier part"),
        ("differs_from: part1", "differs_from: 4Dread", "differs_from needs a reference"),
        ("avoids_tensor: [N, N]\n    # As published: the", "avoids_tensor: []\n    #", "at least one dimension"),
    ],
)  # fmt: skip
def test_mistakes_in_the_assignment(old: str, new: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "gpt149.yaml"
    text = COURSE.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    with pytest.raises(UsageError, match=words):
        loading.load(path)
