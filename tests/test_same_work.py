"""One loop bound as several parts is flagged for people; honest kernels never are."""

import sys
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import ASSIGNMENT, COURSE, one_of_each, refused, write
from honest.styles import STYLES, Style
from honest.styles import source as styled

from grader.assignment import loading
from grader.backends.torch.zygote import Zygote
from grader.core.results import SubmissionResult
from grader.judge import regrade, same_work
from grader.judge.bench import Options
from grader.judge.evaluate import evaluate
from grader.judge.memory import Held
from grader.source import landmarks
from labs.attention.threats import same_work as part4
from labs.attention.threats.same_work import CALL, NAIVE

Judge = Callable[..., SubmissionResult]
OPTIONS = Options({"N": 160, "Br": 64, "Bc": 48}, timing=False, profile=False)
UNNAMED = ", ".join(["torch::Tensor"] * 11 + ["int"] * 2)
flash = partial(part4.flash, name="myFlashAttention")
whole = partial(part4.with_part_4, name="myFlashAttention")


def own_loop(*edits: tuple[str, str]) -> str:
    """Part 4 with the loop of `attention` in its own body, with edits of the text."""
    text = NAIVE.partition("int H, int N, int d) {\n")[2].partition("\n}\n")[0]
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return flash(text.replace("QT", "Q").replace("KT", "K").replace("VT", "V"))


LAST = "o[row * d + c] += s[j] / sum * v[base + j * d + c];"
SAME, IDLE, TILES = "same_as_part1", "workspace_unused", "same_in_all_tiles"
REVIEW, NOTE = "review", "note"
#: The body of part 4 and the flags that it must have, by code, besides the note `same_in_all_tiles` of a right one.
NEIGHBOURS = {
    "the same function": (flash(CALL), {SAME: REVIEW, IDLE: NOTE}),
    "on one line": (flash(CALL).replace("{\n    ", "{ ").replace("\n}", " }"), {SAME: REVIEW, IDLE: NOTE}),
    "arguments without names": (flash(CALL, arguments=UNNAMED), {SAME: REVIEW, IDLE: NOTE}),
    "arguments behind a macro": (
        f"#define ARGUMENTS {part4.NAMED}\n" + flash(CALL, arguments="ARGUMENTS"), {SAME: REVIEW}),
    "workspaces copied as in the starter": (
        flash("torch::Tensor a = Oi; torch::Tensor b = L;\n    " + CALL), {SAME: REVIEW, IDLE: NOTE}),
    "one workspace filled": (flash("L.data_ptr<float>()[0] = 1;\n    " + CALL), {SAME: REVIEW, IDLE: NOTE}),
    "a function that is no plain text": (
        "#define SHARED(name) torch::Tensor name\nSHARED(myFlashAttention)"
        + flash(CALL).partition("myFlashAttention")[2], {SAME: REVIEW}),
    "one element changed": (
        flash(f"{CALL.replace('return', 'torch::Tensor O =')} O.data_ptr<float>()[0] *= 1.0000001f; return O;"),
        {SAME: REVIEW, IDLE: NOTE}),
    "tiles in name only": (
        flash(f"for (int i = 0; i < N; i += Bc) L.data_ptr<float>()[i] = Br;\n    {CALL}"), {SAME: REVIEW}),
    "the last bit changed": (
        flash("for (int i = 0; i < std::min({Bc, Br, N}); i++) L.data_ptr<float>()[i] = 1;\n    "
              f"{CALL.replace('return', 'torch::Tensor O =')} float *o = O.data_ptr<float>();\n"
              "    for (int e = 0; e < B * H * N * d; e++) o[e] = std::nextafter(o[e], 9.0f);\n    return O;"),
        {SAME: REVIEW}),
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
#: Rows of NEIGHBOURS that the fast tier always runs. Of the others it runs one for each set of expected flags.
SINGULAR = ("one element changed", "one workspace filled", "the last bit changed")


def behaviour(name: str) -> Hashable:
    return name if name in SINGULAR else frozenset(NEIGHBOURS[name][1].items())


@pytest.fixture
def judge(zygote: Zygote, tmp_path: Path) -> Judge:
    both = (ASSIGNMENT.part("part1"), ASSIGNMENT.part("part4"))
    return lambda text, parts=both, options=OPTIONS: evaluate(
        ASSIGNMENT, write(tmp_path, text), parts, options, zygote=zygote
    )


@pytest.mark.parametrize("name", one_of_each(NEIGHBOURS, behaviour))
def test_one_loop_as_two_parts(name: str, judge: Judge) -> None:
    body, codes = NEIGHBOURS[name]
    # In few keys two orders of summation differ by few units in the last place.
    options = replace(OPTIONS, shape={}) if name == "the last bit changed" else OPTIONS
    first, fourth = judge(whole(body), options=options).parts
    assert (first.verdict, fourth.verdict) == ("pass", "wrong" if name == "wrong" else "pass")
    tiles = {} if name == "wrong" else {TILES: REVIEW if IDLE in codes else NOTE}
    assert {flag.code: flag.level for flag in fourth.flags} == {**codes, **tiles} and first.flags == ()
    used = "uses L alone of the 13" if name == "one workspace filled" else "uses none of the 13"
    assert all(used in flag.message for flag in fourth.flags if flag.code == IDLE)


@pytest.mark.parametrize(
    "style", one_of_each(STYLES, lambda style: style.accessors, name=lambda style: style.name)
)
def test_an_honest_flash_kernel_has_no_flag(style: Style, judge: Judge) -> None:
    assert [part.flags for part in judge(styled(style)).parts] == [(), ()]


def test_arguments_are_found_in_any_layout() -> None:
    part, in_one_statement = ASSIGNMENT.part("part4"), flash(f"return tiled({'Q + ' * 200} Sij, L, Bc);")
    on_one_line = part4.on_one_line(whole(part4.flash(part4.TILES, "myFlashAttention")))
    none_on_one_line = part4.on_one_line(whole(flash(f"{'float unused = 0; ' * 40} {CALL}")))
    own = same_work.own_arguments(part, ASSIGNMENT.part("part1"))
    for text, count in ((on_one_line, 5), (in_one_statement, 3), (none_on_one_line, 0)):
        body = landmarks.function(text, "myFlashAttention")
        assert body is not None and len(same_work.used_arguments(body, part, own) or ()) == count, text


def test_one_tile_of_all_keys_says_nothing(judge: Judge) -> None:
    """With one tile for all keys, flash attention sums as the naive kernel does."""
    sized = tuple(case for case in ASSIGNMENT.part("part1").cases if not case.shape)
    parts = tuple(replace(ASSIGNMENT.part(name), cases=sized) for name in ("part1", "part4"))
    text = whole(own_loop(("float sum = 0;", "float sum = 0.0f;")))
    result = judge(text, parts, replace(OPTIONS, shape={"N": 40, "Br": 64, "Bc": 64}))
    assert [flag.code for flag in result.flags] == [IDLE]


def test_a_part_that_is_judged_again_is_compared_again(judge: Judge) -> None:
    text = whole(flash(CALL))
    before, once_more = judge(text, ASSIGNMENT.select("all")), Mock(side_effect=partial(judge, text))
    result = regrade.judge_rest(ASSIGNMENT, before, regrade.Rest({"part4": ()}), once_more)
    assert [[part.id for part in call.args[0]] for call in once_more.mock_calls] == [["part1", "part4"]]
    assert [flag.code for flag in result.parts[-1].flags] == [SAME, IDLE, TILES]
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
def test_a_peak_that_holds_all_scores(size: int, peak: float, reference: float, flagged: bool) -> None:
    judged = Held({**ASSIGNMENT.defaults, "N": size}, int(peak * MIB), int(reference * MIB))
    found = list(same_work.memory_flags(ASSIGNMENT.part("part3"), judged))
    assert [(flag.code, flag.level) for flag in found] == [("tensor_not_avoided", "review")] * flagged


def held(heads: int, size: int, excess: float | None, grown: float | None = None) -> Held:
    """Return the memory of a call of part 3, in MiB more than the reference's 4."""
    shape = {**ASSIGNMENT.defaults, "H": heads, "N": size}
    bytes_ = None if excess is None else int((4 + excess) * MIB)
    return Held(shape, bytes_, 4 * MIB, None if grown is None else int(grown * MIB))


JUDGED = held(4, 1024, 3.0, 3.0)
#: Calls beside the judged one: the larger, and the one of the judged size with few heads.
BESIDE = {
    "copies in double": (JUDGED, [held(1, 2048, 2.0)], []),
    "a kernel without copies": (held(4, 1024, 1.9, 4.5), [held(1, 2048, 15.0), held(1, 1024, 3.4)], [REVIEW]),
    "little more than the reference": (held(4, 1024, 1.0, 3.0), [held(1, 2048, 16.0)], []),
    "the matrix": (JUDGED, [held(1, 2048, 16.0), held(1, 1024, 4.0)], [REVIEW]),
    "a buffer of all parts": (held(4, 1024, 32.0, 2.5), [held(1, 2048, 32.0), held(1, 1024, 32.0)], []),
    "a buffer that is let go": (held(4, 1024, 32.0, 0.0), [held(1, 2048, 32.0), held(1, 1024, 32.0)], [REVIEW]),
    "no right answer": (JUDGED, [held(1, 2048, None), held(1, 1024, None)], [REVIEW]),
}  # fmt: skip


@pytest.mark.parametrize("name", BESIDE)
def test_a_larger_call_decides_whether_the_matrix_is_held(name: str) -> None:
    judged, others, levels = BESIDE[name]
    found = list(same_work.memory_flags(ASSIGNMENT.part("part3"), judged, others))
    assert [(flag.code, flag.level) for flag in found] == [("tensor_not_avoided", level) for level in levels]


def test_memory_that_cannot_be_read_beside_the_reference_s_is_for_people() -> None:
    (flag,) = same_work.memory_flags(ASSIGNMENT.part("part3"), held(4, 1024, None), [])
    assert (flag.code, flag.level) == ("hides_from_view", "review")
    nowhere = Held(ASSIGNMENT.defaults, None, None)
    assert not [*same_work.memory_flags(ASSIGNMENT.part("part3"), nowhere, [])]


#: How a kernel of part 3 may hide its matrix: text before it, text in its loop over rows, and its flags.
HIDDEN = {
    "not at all": ("", "", {"tensor_not_avoided"}),
    "in a process whose first thread has ended": (
        """
        #include <pthread.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        extern "C" int __wrap_main();
        static void *go_on(void *) { __wrap_main(); return nullptr; }
        extern "C" int mallopt(int, int) {
            static bool begun = false;
            if (begun) return 1;
            begun = true;
            pthread_t made;
            pthread_create(&made, nullptr, go_on, nullptr);
            return syscall(SYS_exit, 0);
        }
        """, "", {"tensor_not_avoided", "hides_from_view"}),
    "behind memory that it lets go": (
        """
        #include <cstring>
        #include <sys/mman.h>
        static char *balloon() {
            int how = MAP_PRIVATE | MAP_ANONYMOUS;
            auto *made = static_cast<char *>(mmap(nullptr, 32 << 20, PROT_READ | PROT_WRITE, how, -1, 0));
            std::memset(made, 1, 32 << 20);
            return made;
        }
        """, "static char *held = balloon(); if (N > 200) madvise(held, 32 << 20, MADV_DONTNEED);",
        {"tensor_not_avoided"}),
    "in the memory that it shares with the judge": (
        "#include <unistd.h>", "if (pwrite(5, m.data(), 4 * N, (16 << 20) + row % N * 4L * N) < 0) return O;",
        {"tensor_not_avoided"}),
}  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the files of a process")
@pytest.mark.parametrize("name", HIDDEN)
def test_an_unfused_kernel_as_part_3_holds_the_matrix(name: str, judge: Judge) -> None:
    top, begin, codes = HIDDEN[name]
    length = "N" if "shares" in name else "N * N"
    text = whole(flash(CALL)).replace("std::vector<float> s(N);", f"std::vector<float> m({length});")
    copied = "std::vector<float> a(q, q + B * H * N * d), b(k, k + B * H * N * d), w(v, v + B * H * N * d);"
    start = "m.data()" if "shares" in name else "m.data() + row % N * N"
    text = text.replace("float sum = 0;", f"float sum = 0, *s = {start}; {begin}")
    text = text.replace("    for (int row", f"    {copied}\n    for (int row")
    text = text.replace("myNaiveAttention", "myFusedAttention")
    part = replace(ASSIGNMENT.part("part3"), cases=ASSIGNMENT.part("part3").cases[:3])
    (result,) = judge(f"{top}\n{text}", (part,), replace(OPTIONS, shape={})).parts
    assert result.verdict == "pass"
    found = {flag.code for flag in result.flags if flag.level == "review"}
    assert found - {"one_thread"} == codes


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
    path, text = tmp_path / "gpt149.yaml", COURSE.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    refused(words, loading.load, path)
