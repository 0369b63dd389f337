"""Pages: a class's report.html, in which students' text cannot run as code, and the page of a verdict."""

import base64
import hashlib
import io
import random
import re
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from html.parser import HTMLParser
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from classrows import absurd_rows, assignment, hidden_failure, part, result, score, student, the_class
from rich.console import Console

from grader.core.results import CaseResult, Diagnosis, PartResult, ProfileRow
from grader.explain.deviation import blocks, usual_axes
from grader.judge.events import Deviated, PartDone, PartStarted, Profiled, Settled
from grader.report import charts, classbook, html, terminal
from grader.report import page as verdict_page
from grader.report.machines import Machine, Row, compared
from grader.report.progress import Progress
from grader.source.cpptext import definition

MADE_AT = datetime(2025, 11, 21, 14, 2)
EVIL = "</style><script>alert(1)</script>\x1b]0;x\x07 ‮ '\"<b>&"


class Page(HTMLParser):
    """A parser of a page. It collects elements, their attributes and their texts, as a browser reads them."""

    VOID = frozenset({"meta", "br", "img", "input", "hr", "link"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.all_text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.all_text.append(data)
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def write(folder: Path, rows: Iterable[Row]) -> Path:
    with html.Report(assignment(), MADE_AT) as report:
        for row in rows:
            report.add(row)
        report.write(folder / "report.html")
    return folder / "report.html"


def written(folder: Path, rows: Iterable[Row]) -> str:
    return write(folder, rows).read_text(encoding="utf-8")


def page_of(folder: Path, *parts: PartResult) -> str:
    found = result(parts)
    return written(folder, [Row("s", "Ada", "", found, score(found), None)])


def students_on(page: Page) -> int:
    return len([element for element in page.of("details") if element.get("class") == "student"])


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("page"), the_class(40))


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_a_page_allows_only_the_kits_script_and_style_and_has_every_row(page: Page, text: str) -> None:
    assert len(page.of("script")) == len(page.of("style")) == 1
    assert not {"img", "iframe", "object", "embed", "link", "base"} & {tag for tag, _ in page.elements}
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("style", "src")], tag
        assert re.fullmatch(r"#[\w-]+", attributes.get("href") or "#x"), attributes
    ids = [attributes["id"] for _, attributes in page.elements if attributes.get("id")]
    links = {attributes["href"][1:] for attributes in page.of("a")}
    assert len(ids) == len(set(ids)) and len(links) > 40 and links <= set(ids), "every link leads somewhere"
    policy = next(m["content"] for m in page.of("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy and "http" not in policy
    for tag in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256("".join(page.texts[tag]).encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    shown = "".join(page.all_text)
    markup = ("<script>alert(1)</script>", "{{ 7 * 7 }} {% raw %}", '"><img src=x onerror=alert(1)>')
    machine = ("tier A (bubblewrap, seccomp, rlimits)", "Some CPU @ 2.50GHz", "g++ 12.2.0")
    for fact in (*markup, "أحمد بن محمد", *machine, "2025-11-21 14:02", assignment().fingerprint[:16]):
        assert fact in shown
    assert "<script>alert" not in text and "<img" not in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", text) and "x" * 300 not in text
    assert page.open == [], "an element is not closed"
    assert students_on(page) == 40 + len(absurd_rows())
    assert len([row for row in page.of("tr") if "data-state" in row]) == students_on(page)
    # The page sorts by a column's position, so each row must have as many cells as the table's head.
    table = text[text.index('<table class="class"') :]
    head, body = table[: table.index("</table>")].split("<tbody>")
    rows = body.split("<tr ")[1:]
    assert rows and {len(re.findall("<td[ >]", row)) for row in rows} == {len(re.findall("<th[ >]", head))}


def test_hidden_cases_are_there_for_the_staff_and_equal_flags_in_one_line(tmp_path: Path) -> None:
    page = Page(page_of(tmp_path, part("part1", "Naive", 10.0, "rejected"), hidden_failure()))
    for fact in ("staff primes (hidden)", "N=7919", "loads library, rejected"):
        assert fact in "".join(page.all_text)
    shown = page_of(tmp_path, *(part(f"part{k}", "P", 10.0, "rejected") for k in range(1, 4)))
    table = shown.partition('<table class="flags">')[2].partition("</table>")[0]
    assert table.count("<tr>") == 2 and "part1, part2, part3" in table


@pytest.mark.parametrize("count", [0, 1])
def test_a_class_of_0_or_1_students_has_a_page(count: int, tmp_path: Path) -> None:
    page = Page(written(tmp_path, [student(k, random.Random(k)) for k in range(count)]))
    assert page.open == [] and students_on(page) == count


@pytest.mark.full
def test_neither_memory_nor_the_page_grows_much_with_the_class(tmp_path: Path) -> None:
    """A student adds less than 12 kB to the page. In memory the report keeps only names and numbers: under 6 kB."""

    def peak_and_size_bytes(count: int) -> tuple[int, int]:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        made = write(tmp_path, islice(the_class(count), count))
        return tracemalloc.get_traced_memory()[1] - before, made.stat().st_size

    write(tmp_path, the_class(3))
    tracemalloc.start()
    try:
        small, large = peak_and_size_bytes(5), peak_and_size_bytes(25)
    finally:
        tracemalloc.stop()
    assert (large[0] - small[0]) / 20 < 6_000 and (large[1] - small[1]) / 20 < 12_000


def dots(*ratios: float) -> list[charts.Dot]:
    return [charts.Dot(ratio, ratio > 1.1, f"s{k}", f"<{k}>") for k, ratio in enumerate(ratios)]


def test_pictures_are_well_formed_and_stay_in_their_frame() -> None:
    totals = ([], 100.0), ([0.0, 100.0, 100.0, 103.0, -2.0], 100.0), ([1.5], 1.5), ([5.0] * 300, 0.0)
    far, equal = dots(1.0, 0.001, 900.0), dots(*[1.0] * 2000)
    ratios = ([], [], (0.5, 2.0)), (far, [1.1, 1.3], (0.5, 4.0)), (equal, [1.1], (0.5, 2.0))
    intervals = [charts.interval(1.0, (0.9, 1.2), 1.1), charts.interval(9.0, (0.001, 99.0), None)]
    bars = [*map(charts.verdict_bar, ({"pass": 0}, {"pass": 3, "wrong": 1})), charts.share(0, 0)]
    drawn = [*(charts.histogram(*each) for each in totals), *(charts.ratios(*each) for each in ratios)]
    for root in map(ElementTree.fromstring, [*drawn, *intervals, *bars]):
        width, height = (float(v) for v in root.attrib["viewBox"].split()[2:])
        for element in root.iter():
            for name, high in (("x", width), ("y", height), ("cx", width), ("cy", height)):
                assert -1 <= float(element.attrib.get(name, 0)) <= high + 1, element.attrib
            for start in re.findall(r"M([\d.e-]+) ([\d.e-]+)", element.attrib.get("d", "")):
                assert 0 <= float(start[0]) <= width and 0 <= float(start[1]) <= height


def test_every_ratio_and_total_is_drawn_and_slow_ones_can_be_followed() -> None:
    picture = charts.ratios(dots(0.9, 1.0, 1.05, 1.8, 12.0), [1.1], (0.5, 4.0))
    assert picture.count("h.01") == 3
    assert re.findall(r'href="#(s\d)"', picture) == ["s3", "s4"]
    assert "allowed 1.10" in picture and "≥ 4" in picture and "≤" not in picture
    assert re.search(r'aria-label="[^"]*&lt;3&gt;: 1.80"', picture)
    assert 'role="group"' in picture, "an image would hide the links in it from a screen reader"
    # The axis always includes the allowance. Extreme ratios may lie outside of the axis.
    assert charts.ratio_limits([], []) == charts.ratio_limits([0.9, 1.1], [1.1]) == (0.5, 2.0)
    assert charts.ratio_limits([0.01, 90.0], [1.1]) == (0.25, 4.0)
    assert charts.ratio_limits([0.9, 90.0], [5.04]) == (0.5, 8.0)
    totals = [0.0, 0.1, 9.99, 10.0, 49.9, 50.0, 99.9, 100.0, 103.0]
    assert sum(map(int, re.findall(r": (\d+)</title>", charts.histogram(totals, 100.0)))) == len(totals)
    assert charts.interval(float("nan"), (float("nan"), float("nan")), 1.1) == ""


def machine(name: str, ratio: float, half: float = 0.01, **more: str) -> Machine:
    ratios = {"part1": (ratio, ratio - half, ratio + half)}
    return Machine(name, ratios=ratios, cores=4, processor="a processor", **more)  # type: ignore[arg-type]


def test_a_machine_is_marked_if_its_whole_interval_differs(tmp_path: Path) -> None:
    of_six = zip(range(6), the_class(6), ["lab-1", "<b>lab-2"] * 3, strict=False)
    rows = [replace(row, submission_id=f"s{k}", machine=judge) for k, row, judge in of_six]
    met = [machine(name, ratio) for name, ratio in (("lab-1", 1.0), ("lab-0", 1.0), ("<b>lab-2", 1.3))]
    met.append(machine("old", 1, refused="another compiler"))
    classbook.write(tmp_path, assignment(), rows, made_at=MADE_AT, machines=met)
    page = (tmp_path / "report.html").read_text()
    section = page.partition('<section id="machines">')[2].partition("</section>")[0]
    assert "1.00 to 1.30 of the reference" in section.replace("\u00d7", "").replace(" x", "")
    assert section.count("<summary>3</summary>") == 2
    assert section.count("t-review") == 1 and "&lt;b&gt;lab-2" in section and "<b>lab-2" not in page
    assert "may not judge</span> another compiler" in section and page.count("judged on lab-1") == 3
    classbook.write(tmp_path, assignment(), rows[:1], made_at=MADE_AT)
    assert 'id="machines"' not in (tmp_path / "report.html").read_text()
    near, far = [machine("a", 1.0), machine("b", 1.02)], machine("c", 1.2)
    apart, (spread,) = compared([*near, far, machine("d", 1.05, 0.2), machine("e", 9, refused="no")])
    assert apart == {"c": ["part1"]} and (spread.machines, spread.lowest, spread.highest) == (4, 1.0, 1.2)
    assert compared([]) == ({}, []) and compared([Machine("x", refused="no")])[1] == []


def test_progress_shows_each_machine_with_its_work() -> None:
    stream, shown = io.StringIO(), io.StringIO()
    progress = Progress(4, stream)
    progress.machine("lab-1", "")
    progress.machine("lab-2", "another compiler")
    progress.phase("ada", "part1: timing", "lab-1")
    progress.phase("bob", "building", "lab-3")
    progress.finished("eve", {"part1": "pass", "part2": "slow"}, "3 points", machine="lab-1")
    progress.machine("lab-3", "", "it is gone")
    Console(file=shown, width=100).print(progress.table())
    lines = [" ".join(line.split()) for line in shown.getvalue().splitlines()][2:]
    starts = ["lab-1: 1 judged (1 pass, 1 slow)", "ada part1: timing", "lab-2: 0 judged; another compiler"]
    starts += ["lab-3: 0 judged; lost: it is gone", "bob building"]
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=False)), lines
    said = stream.getvalue()
    assert "machine lab-1 passed its test" in said and "machine lab-2 may not judge: another compiler" in said


def deviated(actual: np.ndarray, *, case: str = "random", blocks: Any = None) -> Deviated:
    expected, allowed = np.ones(actual.shape), 1e-3
    wrong, part4 = ~(abs(actual - expected) <= allowed), SimpleNamespace(id="part4")
    about = (part4, case, False, {"N": 8, "threads": 8}, usual_axes(actual.ndim))
    blocks = blocks or (None,) * actual.ndim
    return Deviated(*about, blocks, expected=expected, actual=actual, tolerance=allowed, wrong=wrong)


def test_the_worst_slice_is_drawn_with_its_blocks() -> None:
    output = np.ones((2, 3, 103, 40))
    output[0, 1, 0, 0] = 7
    output[1, 2, 48:96] = 1.5
    output[1, 2, 96, 3] = np.nan
    seen = charts.reduced(deviated(output, blocks=(None, None, ("Br", 48), ("T", 64))))
    assert (seen.place, seen.rows, seen.columns, seen.wrong_slices) == ("a=1, b=2", 103, 40, 2)
    assert seen.wrong == 48 * 40 + 2 and seen.total == output.size
    levels = np.array([[charts.level(cell) for cell in band] for band in seen.cells])
    assert levels.shape == (64, 40)
    edges = charts._edges(103)
    for row in (0, 47, 48, 95, 100):
        band = next(k for k in range(64) if edges[k] <= row < edges[k + 1])
        assert levels[band, 20] == (3 if 48 <= row < 96 else 0), row
    assert (levels == charts.DECADES + 1).sum() == 1, "no number"
    drawn = [(p.get("class"), p.get("d")) for p in ElementTree.fromstring(charts.map_svg(seen)).iter("path")]
    (line,) = (d for kind, d in drawn if kind == "block")
    assert line.count("M") == 2, "at 48 and 96; a block of 64 columns covers all 40"
    # A light line below each dark line makes the dark line visible on dark cells.
    assert [d for kind, d in drawn if kind == "under"] == [line]
    words = " ".join(charts.caption(seen))
    counts = f"{seen.wrong} of {output.size} elements are wrong, in 2 of 6 slices. Shown: the slice a=1, b=2."
    assert counts in words
    assert "Lines: i every 48 (Br); T = 64, which covers all of j" in words and "threads" not in words


@pytest.mark.parametrize("shape", [(5,), (3000,), (1, 1), (2, 5000), (4, 3, 2, 2, 3), (1, 1, 1, 1)], ids=str)
def test_an_output_of_any_shape_has_a_picture(shape: tuple[int, ...]) -> None:
    output = np.ones(shape)
    output.reshape(-1)[-1] = np.inf
    seen = charts.reduced(deviated(output))
    assert charts.level(seen.cells[-1][-1]) == charts.DECADES + 1
    drawn = ElementTree.fromstring(charts.map_svg(seen))
    _, _, width, height = map(float, drawn.get("viewBox", "").split())
    for each in drawn.iter("rect"):
        assert float(each.get("x", 0)) + float(each.get("width", 0)) <= width + 0.1
        assert float(each.get("y", 0)) + float(each.get("height", 0)) <= height + 0.1
    assert charts.caption(seen)[0].startswith("On 'random' (N=8): ")


def test_blocks_come_from_sizes_of_the_call_or_from_macros_of_the_body() -> None:
    source = "#define T 16\n// f(T)\nint g(int n) { return T; }\nint f(int a, int b)\n{ if (a) { b; } return T; }\n"
    axes, cuts = usual_axes(2), {"i": ("R", "T"), "j": ("T",)}

    def found(function: str, sizes: dict[str, int], **defines: str) -> object:
        return blocks(axes, cuts, sizes, source, function, defines)

    assert found("f", {}) == (("T", 16), ("T", 16)) and found("f", {"R": 4}, T="8") == (("R", 4), ("T", 8))
    assert found("h", {"R": 4}) == (("R", 4), None), "without a body, no macro is found"
    assert found("f", {}, T="x + 1") == (None, None)
    code = "f(a); int g(int x) { if (f(x)) { } } struct S { int f(F<int(int)> &a) const { { } b; } } c;"
    found = definition(code, "f")
    assert found is not None and code[found.opened : found.closed] == "F<int(int)> &a"
    assert code[found.body : found.end].split() == ["{", "}", "b;"]


def test_a_message_is_wrapped_except_for_its_lines_of_source() -> None:
    source = "    2 |         for (;;) {\n      |         ^~~"
    first, last = "a.cpp:2: error: expected ';'", "hint: a semicolon\n  a.cpp:3: x | y"
    shown = [(False, first), (True, "    2 | for (;;) {\n      | ^~~"), (False, last)]
    assert verdict_page.message_pieces(f"{first}\n{source}\n{last}") == shown
    assert verdict_page.message_pieces("    2 |\n      |") == [(True, "    2 |\n      |")]


def page_on(tmp_path: Path, text: str) -> str:
    diagnosis = Diagnosis("wrong", text)
    case = CaseResult(text, {"N": 8}, False, 1.0, diagnosis, error_map=("09",))
    hidden = CaseResult("secret", {"N": 77}, False, 1.0, diagnosis, hidden=True)
    found = part("part4", text, 35, "wrong")
    found = replace(found, cases=(case, hidden), diagnosis=diagnosis, output=text)
    several = replace(result((found, part("part1", "naive", 10))), submission_id=text)
    heard: list[object] = []
    pictures = verdict_page.Collector(heard.append)
    event = deviated(np.zeros((4, 4)), case=text)
    for one in (PartStarted(event.part, {}), event, replace(event, case="secret", hidden=True)):
        pictures(one)
    assert len(heard) == 3 and list(pictures.pictures["part4"]) == [text]
    source = tmp_path / "kernel.cpp"
    source.write_text(text)
    several = replace(several, sha256=hashlib.sha256(source.read_bytes()).hexdigest())
    verdict_page.write(tmp_path / "a.html", assignment(), several, score(several), pictures, MADE_AT, source)
    pictures(PartStarted(event.part, {}))
    assert pictures.of(found) is None, "the next run has pictures of its own"
    return (tmp_path / "a.html").read_text(encoding="utf-8")


def test_a_page_has_no_scripts_and_loads_nothing(tmp_path: Path) -> None:
    text = page_on(tmp_path, EVIL)
    read = Page(text)
    tags = {tag for tag, _ in read.elements}
    assert not tags & {"script", "img", "link", "iframe", "object", "form", "a", "base"}
    names = {name for _, given in read.elements for name in given}
    assert not [name for name in names if name.startswith("on") or name in ("src", "href")]
    assert not [harm for harm in ("http:", "https:", "url(", "\x1b", "\u202e") if harm in text]
    (policy,) = (given["content"] or "" for _, given in read.elements if given.get("http-equiv"))
    assert policy.startswith("default-src 'none'; style-src 'sha256-") and "script-src 'none'" in policy
    assert text.count("<style>") == text.count("</style>") == 1
    assert "secret" not in text and "N=77" not in text, "the page shows no sizes of a hidden case"


def test_a_page_shows_wrong_places_and_times(tmp_path: Path) -> None:
    text = page_on(tmp_path, "ramp")
    assert "<title>" in text and "kernel.cpp" in text
    assert "Where it is wrong" in text and text.count('class="e4"') >= 2 and "to 1000 x" in text
    whole = text[text.index('<figure class="whole"') : text.index("</figure>")]
    assert 'class="chart map"' in whole and re.search(r"figure\.whole {[^}]*grid-column: 1 / -1", text)
    assert re.search(r"svg\.map {[^}]*max-width: none", text)
    calls = {"reference_wall_ms": (100.0, 110.0, 105.0, 95.0), "student_wall_ms": (100.0, 110.0, 105.0, 95.0)}
    timed = replace(part("part1", "naive", 10).time, clock="wall", rounds=2, **calls)
    circles = list(ElementTree.fromstring(charts.rounds(timed)).iter("circle"))
    dots = [each.get("class") for each in circles]
    assert dots.count("reference") == dots.count("student") == 4
    heights = [float(each.get("cy", 0)) for each in circles]
    assert heights[1] < heights[0] < heights[3] and all(0 < height < 150 for height in heights)
    assert charts.rounds(replace(timed, student_wall_ms=(), student_cpu_ms=())) == ""


def shown(found: PartResult, points: float, *, is_terminal: bool) -> str:
    stream = io.StringIO()
    stream.isatty = lambda: is_terminal  # type: ignore[method-assign]
    terminal.Terminal(stream).verdict(found, points)
    return stream.getvalue()


def test_a_terminal_with_colours_shows_a_small_map() -> None:
    diagnosis = Diagnosis("wrong", "It is.")
    mapped = CaseResult("mapped", {"N": 8}, False, 1.0, diagnosis, error_map=("09", "10"))
    other = replace(mapped, name="other", diagnosis=None, error_map=("5",))
    cases = (other, mapped, replace(mapped, name="secret", hidden=True, error_map=("77",)))
    wrong = replace(part("part4", "flash", 35, "wrong"), cases=cases, diagnosis=diagnosis)
    coloured = shown(wrong, 0, is_terminal=True)
    plain = re.sub(r"\x1b\[[\d;]*m", "", coloured)
    assert "  where     ·  9 " in plain and "            1  · " in plain and "(on 'mapped')" in plain
    assert "\x1b[97;48;5;160m 9 \x1b[0m" in coloured
    in_a_file = shown(wrong, 0, is_terminal=False)
    assert "where" not in in_a_file and "\x1b" not in in_a_file
    assert "where" not in shown(part("part1", "naive", 10), 10, is_terminal=True)


def test_a_wrong_part_fits_a_screen() -> None:
    message = "The row's sum is not right. " * 9
    message += "\nThe compiler says: a.cpp:4: 'x' may be used uninitialized\n  x++;\nLines to look at in f:\n"
    message += "".join(f"  a.cpp:{k}: x++;\n" for k in range(5))
    diagnosis = Diagnosis("wrong", f"{message}Smallest that fails: python gpt149.py part1 -N 1")
    names = ("published ramp", "random", "ragged", "one row", "smaller than a tile", "one-hot values", "flat")
    cases = [CaseResult(name, {"N": 8}, False, 1.0, diagnosis, error_map=("9" * 8,) * 8) for name in names]
    found = replace(part("part1", "naive", 10, "wrong"), cases=tuple(cases), diagnosis=diagnosis)
    # The kernel prints the same text for every input.
    found = replace(found, output="".join(f"row {k}\n" for k in range(30)) * len(names))
    text = re.sub(r"\x1b\[[\d;]*m", "", shown(found, 0, is_terminal=True))
    lines = text.splitlines()
    assert len(lines) + len(["Running", "Correctness:"]) <= terminal.SCREEN_LINES, text
    assert max(map(len, lines)) <= terminal.WIDTH + len("  results  ") and text.count(" 9 " * 8) == 2, text
    order = ["row 0", "a.cpp:4: warning: 'x' may", "WRONG", "sum is not right", "Lines to look"]
    order += ["Smallest", "'flat'"]
    assert sorted(map(text.index, order)) == list(map(text.index, order)), text
    assert text.count("row 0\n") == 1 and "The compiler says" not in text and "memory" not in text


def test_the_profile_is_below_the_verdict_of_a_right_part() -> None:
    rows = tuple(ProfileRow("STUDENT - " + "X" * 50, 1e6, 9.9e8, 10**6, 1 << 29, 0) for _ in range(20))
    table = terminal.table(rows).splitlines()
    assert max(map(len, table)) <= terminal.WIDTH and len(table) == 15
    found, stream = part("part1", "naive", 10), io.StringIO()
    judged, screen = assignment().part("part1"), terminal.Terminal(stream)
    screen(Settled(judged, found))
    screen(Profiled(judged, "STUDENT", True, "equal", "", 0.1, rows))
    screen(PartDone(judged, replace(found, memory=None)))
    text = stream.getvalue()
    assert text.count("PASS") == 1 and text.index("PASS") < text.index("-----RUNNING STUDENT")
    screen(Settled(judged, found))
    screen(PartDone(judged, replace(found, verdict="rejected")))
    # A cheat was found in the profiled call, after the verdict "pass" was printed.
    assert stream.getvalue().rindex("REJECTED") > stream.getvalue().rindex("PASS")


def test_code_of_named_lines_is_numbered_and_escaped() -> None:
    source = "/* one\ntwo */\n" + "int x = 1;\n" * 20 + 'return "<b>&";\n'
    named = "Lines: a.cpp:2: two, a.cpp:23: last, a.cpp:99: none, other/a.cpp:12: else"
    drawn = verdict_page.rows(source, "a.cpp", named)
    read = ElementTree.fromstring(f"<pre>{drawn}</pre>")
    numbers = [int(each.text or "") for each in read.iter("i")]
    assert numbers == [1, 2, 3, 4, 21, 22, 23] and drawn.count("row named") == 2 and drawn.count("⋮") == 1
    text = "".join(read.itertext())
    assert '23return "<b>&";' in text and "2two */" in text
    assert '<span class="kc">two */</span>' in drawn, "the comment began on an earlier line"
    assert '<span class="kn">1</span>' in drawn and '<span class="kw">return</span>' in drawn
    assert verdict_page.rows(source, "a.cpp", "wrong") == verdict_page.rows("", "a.cpp", "a.cpp:1: x") == ""
    too_long = "int x;\n" * 30_000  # for a lexer
    assert 'class="k' not in verdict_page.rows(too_long, "a.cpp", "a.cpp:2")
