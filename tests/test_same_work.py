"""Flags of parts that do the work of another part: they call the same loop, or keep a matrix that they should avoid."""

import sys
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest
from building import cpu_growth, includes
from conftest import ASSIGNMENT, COURSE, one_of_each, refused, write
from honest.styles import STYLES, Style, published, source

from grader.assignment import loading
from grader.backends.torch.zygote import Zygote
from grader.core.results import SubmissionResult
from grader.judge import regrade, same_work
from grader.judge.bench import Bench, Options
from grader.judge.evaluate import evaluate
from grader.judge.marker import Marker
from grader.judge.memory import Held
from grader.source import callgraph, delegation, landmarks
from labs.attention.threats import same_work as part4
from labs.attention.threats.same_work import CALL, NAIVE

Judge = Callable[..., SubmissionResult]
OPTIONS = Options({"N": 160, "Br": 64, "Bc": 48}, timing=False, profile=False)
UNNAMED = ", ".join(["torch::Tensor"] * 11 + ["int"] * 2)
flash = partial(part4.flash, name="myFlashAttention")
whole = partial(part4.with_part_4, name="myFlashAttention")
MIB = 1 << 20
LOOP = "for (int i = 0; i < n; i++) work(i);"
PART_1, PART_2 = "void myNaiveAttention()", "void myUnfusedAttentionBlocked()"
HOSTILE = ("((((", "a = [b]", "f(", "struct A {", "int f() { f(); for }\n", "#define A f(g)\n")


def own_loop(*edits: tuple[str, str]) -> str:
    """Return part 4 with an edited copy of the loop of `attention` in its body."""
    text = NAIVE.partition("int H, int N, int d) {\n")[2].partition("\n}\n")[0]
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return flash(text.replace("QT", "Q").replace("KT", "K").replace("VT", "V"))


LAST = "o[row * d + c] += s[j] / sum * v[base + j * d + c];"
SAME, IDLE, TILES = "same_as_part1", "workspace_unused", "same_in_all_tiles"
REVIEW, NOTE = "review", "note"
#: By name: the body of part 4, and its required flags (level by code). A right part also gets `same_in_all_tiles`.
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
#: Rows of NEIGHBOURS that the fast tier always runs. It also runs one other row for each set of expected flags.
SINGULAR = ("one element changed", "one workspace filled", "the last bit changed")


def behaviour(name: str) -> Hashable:
    return name if name in SINGULAR else frozenset(NEIGHBOURS[name][1].items())


@pytest.fixture
def judge(zygote: Zygote, tmp_path: Path) -> Judge:
    both = (ASSIGNMENT.part("part1"), ASSIGNMENT.part("part4"))
    judged = partial(evaluate, ASSIGNMENT, zygote=zygote)
    return lambda text, parts=both, options=OPTIONS: judged(write(tmp_path, text), parts, options)


@pytest.mark.parametrize("name", one_of_each(NEIGHBOURS, behaviour))
def test_one_loop_exported_as_two_parts_is_flagged(name: str, judge: Judge) -> None:
    body, codes = NEIGHBOURS[name]
    # With as few keys as in OPTIONS, even the references of both parts may agree up to the last bits. Then equal
    # outputs of a student's two parts prove nothing. With the assignment's own sizes, the references differ by more.
    options = replace(OPTIONS, shape={}) if name == "the last bit changed" else OPTIONS
    first, fourth = judge(whole(body), options=options).parts
    assert (first.verdict, fourth.verdict) == ("pass", "wrong" if name == "wrong" else "pass")
    tiles = {} if name == "wrong" else {TILES: REVIEW if IDLE in codes else NOTE}
    assert {flag.code: flag.level for flag in fourth.flags} == {**codes, **tiles} and first.flags == ()
    used = "uses only L of the 13" if name == "one workspace filled" else "uses none of the 13"
    assert all(used in flag.message for flag in fourth.flags if flag.code == IDLE)


@pytest.mark.full  # In the fast tier, tests/honest judges part 4 among others.
@pytest.mark.parametrize("style", STYLES, ids=attrgetter("name"))
def test_an_honest_flash_kernel_has_no_flag(style: Style, judge: Judge) -> None:
    assert [part.flags for part in judge(source(style)).parts] == [(), ()]


def test_arguments_are_found_in_any_layout() -> None:
    part, in_one_statement = ASSIGNMENT.part("part4"), flash(f"return tiled({'Q + ' * 200} Sij, L, Bc);")
    on_one_line = part4.on_one_line(whole(part4.flash(part4.TILES, "myFlashAttention")))
    none_on_one_line = part4.on_one_line(whole(flash(f"{'float unused = 0; ' * 40} {CALL}")))
    own = same_work.own_arguments(part, ASSIGNMENT.part("part1"))
    for text, count in ((on_one_line, 5), (in_one_statement, 3), (none_on_one_line, 0)):
        body = landmarks.function(text, "myFlashAttention")
        assert body is not None and len(same_work.used_arguments(body, part, own) or ()) == count, text


def test_equal_outputs_with_one_tile_are_not_flagged(judge: Judge) -> None:
    """With one tile for all keys, flash attention sums in the naive kernel's order, so equal outputs raise no flag."""
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


@pytest.mark.parametrize(("size", "peak", "reference", "flagged"), [
    (1024, 7.0, 2.6, True),
    (1024, 3.6, 2.6, False),
    (1024, 5.0, 3.2, False),  # the difference may be copies of the inputs
    (512, 2.0, 0.8, False),  # at this size, a matrix is too small to be distinguished
    (4096, 80.0, 10.0, True),
])  # fmt: skip
def test_a_peak_with_all_scores_is_flagged(size: int, peak: float, reference: float, flagged: bool) -> None:
    judged = Held({**ASSIGNMENT.defaults, "N": size}, int(peak * MIB), int(reference * MIB))
    found = list(same_work.memory_flags(ASSIGNMENT.part("part3"), judged))
    assert [(flag.code, flag.level) for flag in found] == [("tensor_not_avoided", "review")] * flagged


def held(heads: int, size: int, excess: float | None, grown: float | None = None) -> Held:
    """Return memory figures of a call of part 3. The reference holds 4 MiB, the student `excess` MiB more.

    `excess` None: the student's output was wrong. `grown`: MiB by which the student's process grew in the call.
    """
    shape = {**ASSIGNMENT.defaults, "H": heads, "N": size}
    bytes_ = None if excess is None else int((4 + excess) * MIB)
    return Held(shape, bytes_, 4 * MIB, None if grown is None else int(grown * MIB))


JUDGED = held(4, 1024, 3.0, 3.0)
#: By name: memory figures of the judged call; figures of further calls with one head (one with a larger N and, in most
#: rows, one with the same N); the levels of the expected flags.
BESIDE = {
    "copies in double": (JUDGED, [held(1, 2048, 2.0)], []),
    "a kernel without copies": (held(4, 1024, 1.9, 4.5), [held(1, 2048, 15.0), held(1, 1024, 3.4)], [REVIEW]),
    "little more than the reference": (held(4, 1024, 1.0, 3.0), [held(1, 2048, 16.0)], []),
    "the matrix": (JUDGED, [held(1, 2048, 16.0), held(1, 1024, 4.0)], [REVIEW]),
    "a buffer of all parts": (held(4, 1024, 32.0, 2.5), [held(1, 2048, 32.0), held(1, 1024, 32.0)], []),
    "a buffer that is let go": (held(4, 1024, 32.0, 0.0), [held(1, 2048, 32.0), held(1, 1024, 32.0)], [REVIEW]),
    "no right answer": (JUDGED, [held(1, 2048, None), held(1, 1024, None)], [REVIEW]),
}  # fmt: skip


@pytest.mark.parametrize(("judged", "others", "levels"), BESIDE.values(), ids=BESIDE)
def test_a_larger_call_decides_whether_the_matrix_is_held(judged: Held, others: list, levels: list) -> None:
    found = list(same_work.memory_flags(ASSIGNMENT.part("part3"), judged, others))
    assert [(flag.code, flag.level) for flag in found] == [("tensor_not_avoided", level) for level in levels]


def test_unreadable_peak_memory_is_flagged_for_review() -> None:
    (flag,) = same_work.memory_flags(ASSIGNMENT.part("part3"), held(4, 1024, None), [])
    assert (flag.code, flag.level) == ("hides_from_view", "review")
    assert not [*same_work.memory_flags(ASSIGNMENT.part("part3"), Held(ASSIGNMENT.defaults, None, None), [])]


#: Ways of part 3 to hide its matrix: text before the kernel, text in its loop over rows, and required flags.
HIDDEN = {
    "not at all": ("", "", {"tensor_not_avoided"}),
    "in a process whose first thread has ended": (
        includes("pthread.h sys/syscall.h unistd.h") + """
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
        includes("cstring sys/mman.h") + """
        static char *balloon() {
            int how = MAP_PRIVATE | MAP_ANONYMOUS;
            auto *made = static_cast<char *>(mmap(nullptr, 32 << 20, PROT_READ | PROT_WRITE, how, -1, 0));
            std::memset(made, 1, 32 << 20);
            return made;
        }
        """, "static char *held = balloon(); if (N > 200) madvise(held, 32 << 20, MADV_DONTNEED);",
        {"tensor_not_avoided"}),
    "in the memory that it shares with the judge": (
        includes("unistd.h"), "if (pwrite(5, m.data(), 4 * N, (16 << 20) + row % N * 4L * N) < 0) return O;",
        {"tensor_not_avoided"}),
}  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the files of a process")
@pytest.mark.parametrize("name", one_of_each(HIDDEN, lambda name: frozenset(HIDDEN[name][2])))
def test_an_unfused_kernel_as_part_3_is_flagged(name: str, judge: Judge) -> None:
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
    assert {flag.code for flag in result.flags if flag.level == "review"} - {"one_thread"} == codes


@pytest.mark.parametrize(("old", "new", "words"), [
    ("differs_from: part1", "differs_from: part9", "differs_from: no earlier part is called"),
    ("differs_from: part1", "differs_from: part4", "differs_from: no earlier part is called"),
    ("differs_from: part1", "differs_from: 4Dread", "differs_from needs the key 'reference'"),
    ("avoids_tensor: [N, N]\n    # As in the published kit", "avoids_tensor: []\n    #", "at least one dimension"),
])  # fmt: skip
def test_wrong_keys_for_comparing_parts_are_refused(old: str, new: str, words: str, tmp_path: Path) -> None:
    text = COURSE.read_text()
    assert text.count(old) == 1
    refused(words, loading.load, write(tmp_path, text.replace(old, new), "gpt149.yaml"))


def test_the_call_graph_finds_reached_loops() -> None:
    for reached, text in (
        ("fg", f"void g() {{ {LOOP} }} void f() {{ g(); }}"),
        ("f", f'void g(); // g\nvoid f() {{ const char *s = "g()"; }} void g() {{ {LOOP} }}'),
        ("fG", f"#define G(n) {LOOP}\nvoid f() {{ G(3) }}"),
        ("fG", f"struct G {{ void h() {{ {LOOP} }} }}; void f() {{ G().h(); }}"),
        ("fg", f"static auto g = [](int n) {{ {LOOP} }}; void f() {{ g(3); }}"),
        ("fg", f"auto g(int n) noexcept -> int {{ {LOOP} }} void f() {{ auto h = g; }}"),
        ("f", f"void f() {{ auto row = [&] {{ {LOOP} }}; row(); }} void h() {{ auto row = 1; }}"),
        ("f", f"void g(int) {{ {LOOP} }} void g(float) {{ {LOOP} }} void f() {{ g(1); }}"),
        ("fg", "void g(int) { } void g(float) { } void f() { g(1); }"),
        ("", "void f();"),
    ):
        assert callgraph.CallGraph(text).reached("f").keys() == set(reached), text


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_is_read_in_linear_time(text: str) -> None:
    growth = cpu_growth(lambda times: callgraph.CallGraph(text * 2000 * times).reached("f"), 1, 8, repeat=3)
    assert growth < 32, "for 8 times the text, quadratic time would grow 64-fold"


@pytest.mark.parametrize("text", ["h(g(", "a=[]{}(", "for (g(Q);", "a = b, ", "a = b; "])
def test_a_hostile_body_is_read_in_linear_time(text: str) -> None:
    helper = callgraph.Definition("h", LOOP, ("a",))

    def read(times: int) -> bool:
        body = callgraph.Definition("f", f"g(Q); {text * 500 * times}")
        return delegation.works_itself("f", {"h": helper, "f": body}, {"g"}, ["Q"])

    assert cpu_growth(read, 1, 8, repeat=3) < 32, "for 8 times the text, quadratic time would grow 64-fold"


def marker(part: str, text: str) -> Marker:
    bench = SimpleNamespace(source=Path("a.cpp"), assignment=ASSIGNMENT, shape={}, backend=lambda _: None)
    made = Marker(cast(Bench, bench), ASSIGNMENT.part(part))
    made.__dict__ |= {"source": text, "body": landmarks.function(text, made.part.function)}
    return made


def test_a_part_without_its_own_loop_is_flagged() -> None:
    helpers = f"void shared(int n) {{ while (n) {LOOP} }}\nvoid other(int n) {{ do {LOOP} while (n); }}\n"
    for level, first, second in (
        ("review", LOOP, "myNaiveAttention();"),
        ("review", "shared(1);", "shared(1);"),
        ("note", "shared(1);", "shared(2);"),
        ("note", "shared<Naive::tile>(1);", "shared<Blocked::tile>(1);"),
        ("review", LOOP, LOOP.replace("i", "row")),
        ("", LOOP, f"{LOOP} shared(1);"),
        ("", "shared(1);", "for (int t = 0; t < 4; t++) shared(t);"),
        ("", LOOP, "other(1);"),
    ):
        text = f"{helpers}{PART_1} {{ {first} }}\n{PART_2} {{ {second} }}\n"
        found = [(flag.code, flag.level) for flag in same_work.source_flags(marker("part2", text))]
        assert found == [("same_as_part1", level)] * bool(level), (first, second)


ALL = "torch::Tensor Q, torch::Tensor K, torch::Tensor V, torch::Tensor W, int B, int H, int N, int d"
WHOLE, ROWS = "shared(Q, K, V);", "for (int i = 0; i < N; i++)"
#: Bodies that are flagged: each passes all inputs to another function, and its own loops do not affect the result.
FLAGGED = f"""int x = 0; {ROWS} x += i; {WHOLE}
{ROWS} W.data_ptr<float>()[i] = 0; {WHOLE}
auto a = Q, b = K; auto c(V); {ROWS} d += 0; auto O = shared(a, b, c); {ROWS} O[i] *= 1;
warm(K); {WHOLE}
warm(Q); {WHOLE}
return wraps(Q, K, V, N);
return outer(N, V, K, Q);
return ANY(Q, K, V);
kept = Q; kept2 = K; kept3 = V; return of_kept(N);
return Wrapper::wrapped(Q, K, V, N);
auto run = [&] {{ {ROWS} x += i; return {WHOLE} }}; return run();
return [&](auto a) {{ {ROWS} x += i; return shared(a, K, V); }}(Q);
for (int t = 0; t < 1; t++) {WHOLE}
float x = 0; {ROWS} x += Q[i]; {WHOLE}
float x = 0; {ROWS} {{ float y = Q[i] * 2; x += y; }} if (x > 1e9) return Q; return {WHOLE}
return reads(Q, K, V, N);"""
COUNTED = f"""{ROWS} work(Q, i); {WHOLE}
auto *q = Q.data_ptr<float>(); {ROWS} if (q[i] > 0) W[i] = q[i]; {WHOLE}
uses(Q); {WHOLE}
kept = Q; keeps(); {WHOLE}
shared(Q); shared(K); shared(V); {ROWS} W[i] = 0;
auto all = shared(Q, K); {ROWS} work(all, V, i);
{ROWS} shared(Q, K, V, i);
{ROWS} {{ W += d; shared(Q, K, V, W); }}
float x = 0; {ROWS} x += Q[i]; shared(Q, K, V, x);
float x = 0, a = 0; {ROWS} x += Q[i]; a = x; shared(Q, K, V, a);
auto O = shared(Q, K, V); float x = 0; {ROWS} x += Q[i]; O[0] = x; return O;
auto O = shared(Q, K, V); float *o = O.data_ptr<float>(); {ROWS} o[i] += Q[i]; return O;
{ROWS} kept[i] = Q[i]; {WHOLE}
return packs(Q, K, V);
return shared(Q, K, V, uses);
return shared(Q, K, V, [&](int t) {{ {ROWS} tile(i, t); }});
auto row = [&](int t) {{ {ROWS} tile(i, t); }}; return shared(Q, K, V, row);
Tiled tiled; return shared(Q, K, V, tiled);
auto row = [&](int i) {{ shared(Q, K, V, i); }}; {ROWS} row(i);
rows(N, [&](int i) {{ shared(Q, K, V, i); }});"""
HELPERS = f"""void warm(auto q) {{ while (n--) {{ }} }} void uses(auto q) {{ {ROWS} q[i] += 1; }}
void keeps() {{ {ROWS} W[i] = kept[i]; }} void of_kept(int N) {{ {ROWS} x += i; shared(kept, kept2, kept3); }}
auto wraps(auto q, auto k, auto v, int N) {{ {ROWS} x += i; return shared(q, k, v); }}
auto reads(auto q, auto k, auto v, int N) {{ float x = 0; {ROWS} x += q[i] * k[i]; return shared(q, k, v); }}
auto outer(int N, auto v, auto k, auto q) {{ while (x--) {{ }} return wraps(q, k, v, N); }}
auto packs(auto q, auto k, auto v) {{ {ROWS} t[i] = k[i]; return shared(q, t, v); }}
#define ANY(q, k, v) {ROWS} x += i; shared(q, k, v)
struct Wrapper {{ static auto wrapped(auto a, auto b, auto c, int N) {{ {ROWS} x += i; return shared(a, b, c); }} }};
struct Tiled {{ void operator()(int t) {{ {ROWS} tile(i, t); }} }}; void rows(int n, auto f) {{ while (n--) f(n); }}"""


def test_only_loops_that_compute_count_beside_a_call_with_all_inputs() -> None:
    first = f"void shared() {{ {LOOP} }} {HELPERS}\n{PART_1} {{ {WHOLE} }}\n{PART_2[:-2]}({ALL})"
    for bodies, is_flagged in ((FLAGGED, True), (COUNTED, False)):
        for body in bodies.split("\n"):
            assert any(same_work.source_flags(marker("part2", f"{first} {{ {body} }}\n"))) is is_flagged, body


def test_an_accessor_counts_through_a_part_that_calls_it() -> None:
    write = "void fourDimWrite()"
    for is_used, text in (
        (False, f"{write};\n{PART_1} {{ {LOOP} }}"),
        (False, f"{write} {{ }}\n{PART_1} {{ {LOOP} }}"),
        (False, f"{write};\n{PART_1} {{ fourDimWrite(); }}"),
        (True, f"{write} {{ }}\nvoid store() {{ fourDimWrite(); }}\n{PART_1} {{ store(); }}"),
        (True, f"#define PART {PART_1}\n{write} {{ }}\nPART {{ fourDimWrite(); }}"),
        (True, published()),
    ):
        assert marker("4Dwrite", text).is_used() is is_used, text


def test_a_part_may_differ_from_several(tmp_path: Path) -> None:
    text = COURSE.read_text().replace("differs_from: part1", "differs_from: [part1, part3]")
    found = loading.load(write(tmp_path, text, "gpt149.yaml"))
    assert found.part("part4").differs_from == ("part1", "part3")
    assert [same_work.is_compared(found, part) for part in found.parts[-4:]] == [True, False, True, True]
