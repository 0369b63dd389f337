"""Functions that a file defines, and which of them a part reaches: read as text, without a compiler."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from building import cpu_growth
from conftest import ASSIGNMENT, COURSE
from honest.styles import STYLES, Style, published, source

from grader.assignment import loading
from grader.judge import same_work
from grader.judge.bench import Bench
from grader.judge.marker import Marker
from grader.source import landmarks
from grader.source.callgraph import CallGraph, Definition
from grader.source.delegation import works_itself

LOOP = "for (int i = 0; i < n; i++) work(i);"
PART_1, PART_2 = "void myNaiveAttention()", "void myUnfusedAttentionBlocked()"


def test_what_a_function_reaches() -> None:
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
        assert CallGraph(text).reached("f").keys() == set(reached), text


@pytest.mark.parametrize(
    "text", ["((((", "a = [b]", "f(", "struct A {", "int f() { f(); for }\n", "#define A f(g)\n"]
)
def test_a_hostile_text_is_read_in_linear_time(text: str) -> None:
    growth = cpu_growth(lambda times: CallGraph(text * 8000 * times).reached("f"), 1, 8, repeat=3)
    assert growth < 32, "8 times as much text; were it not linear, 64 times as long"


@pytest.mark.parametrize("text", ["h(g(", "a=[]{}(", "for (g(Q);", "a = b, ", "a = b; "])
def test_a_hostile_body_is_read_in_linear_time(text: str) -> None:
    helper = Definition("h", LOOP, ("a",))

    def read(times: int) -> bool:
        body = Definition("f", f"g(Q); {text * 500 * times}")
        return works_itself("f", {"h": helper, "f": body}, {"g"}, ["Q"])

    growth = cpu_growth(read, 1, 8, repeat=3)
    assert growth < 32, "8 times as much text; were it not linear, 64 times as long"


def marker(part: str, text: str) -> Marker:
    bench = SimpleNamespace(
        source=Path("module.cpp"), assignment=ASSIGNMENT, shape={}, backend=lambda _: None
    )
    made = Marker(cast(Bench, bench), ASSIGNMENT.part(part))
    made.__dict__ |= {"source": text, "body": landmarks.function(text, made.part.function)}
    return made


def test_a_part_without_a_loop_of_its_own() -> None:
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


#: Loops beside a call that is given all inputs count only if they use the inputs, or what else is made of them.
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


def test_loops_beside_a_call_that_is_given_all_inputs() -> None:
    first = f"void shared() {{ {LOOP} }} {HELPERS}\n{PART_1} {{ {WHOLE} }}\n{PART_2[:-2]}({ALL})"
    for bodies, is_flagged in ((FLAGGED, True), (COUNTED, False)):
        for body in bodies.split("\n"):
            flags = [*same_work.source_flags(marker("part2", f"{first} {{ {body} }}\n"))]
            assert bool(flags) is is_flagged, body


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_honest_parts_have_loops_of_their_own(style: Style) -> None:
    for part in ASSIGNMENT.parts:
        assert not [*same_work.source_flags(marker(part.id, source(style)))], part.id


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
    path = tmp_path / "gpt149.yaml"
    path.write_text(COURSE.read_text().replace("differs_from: part1", "differs_from: [part1, part3]"))
    found = loading.load(path)
    assert found.part("part4").differs_from == ("part1", "part3")
    assert [same_work.is_compared(found, part) for part in found.parts[-4:]] == [True, False, True, True]
