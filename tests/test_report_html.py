"""report.html: one file, nothing of a student's runs in it, every link leads somewhere, and its memory stays flat; its
table of machines, and how they show while a class is judged."""

from __future__ import annotations

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
from xml.etree import ElementTree

import pytest
from classrows import absurd_rows, assignment, hidden_failure, part, result, score, student, the_class
from rich.console import Console

from grader.base.results import PartResult
from grader.report import charts, classbook
from grader.report.charts import Dot
from grader.report.classbook import Row
from grader.report.html import Report
from grader.report.machines import MachineRow, compared
from grader.report.progress import Progress

MADE_AT = datetime(2025, 11, 21, 14, 2)


class Page(HTMLParser):
    """Elements of a page with their attributes, and their texts, as a browser reads them."""

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

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

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
    with Report(assignment(), MADE_AT) as report:
        for row in rows:
            report.add(row)
        report.write(folder / "report.html")
    return folder / "report.html"


def written(folder: Path, rows: Iterable[Row]) -> str:
    return write(folder, rows).read_text(encoding="utf-8")


def page_of(folder: Path, *parts: PartResult) -> str:
    """Return the page of a class of one, who has these parts."""
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


def test_nothing_but_our_own_script_and_style(page: Page) -> None:
    assert len(page.of("script")) == len(page.of("style")) == 1
    assert not {"img", "iframe", "object", "embed", "link", "base"} & {tag for tag, _ in page.elements}
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("style", "src")], tag
        assert re.fullmatch(r"#[\w-]+", attributes.get("href") or "#x"), attributes
    ids = [attributes["id"] for _, attributes in page.elements if attributes.get("id")]
    links = {attributes["href"][1:] for attributes in page.of("a")}
    assert len(ids) == len(set(ids)) and len(links) > 40 and links <= set(ids), "every link leads somewhere"


def test_the_policy_allows_exactly_the_inline_script_and_style(page: Page) -> None:
    policy = next(m["content"] for m in page.of("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy and "http" not in policy
    for tag in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256("".join(page.texts[tag]).encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_names_stand_there_as_text(page: Page, text: str) -> None:
    shown = "".join(page.all_text)
    markup = ("<script>alert(1)</script>", "{{ 7 * 7 }} {% raw %}", '"><img src=x onerror=alert(1)>')
    for name in (*markup, "أحمد بن محمد"):
        assert name in shown
    assert "<script>alert" not in text and "<img" not in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", text)
    assert "x" * 300 not in text


def test_every_row_has_its_line_and_its_section(page: Page) -> None:
    assert page.open == [], "an element is not closed"
    assert students_on(page) == 40 + len(absurd_rows())
    assert len([row for row in page.of("tr") if "data-state" in row]) == students_on(page)


def test_every_row_has_a_cell_under_each_heading(text: str) -> None:
    """Sorting goes by position."""
    table = text[text.index('<table class="class"') :]
    head, body = table[: table.index("</table>")].split("<tbody>")
    rows = body.split("<tr ")[1:]
    assert rows and {len(re.findall("<td[ >]", row)) for row in rows} == {len(re.findall("<th[ >]", head))}


def test_the_page_tells_how_it_was_graded(page: Page) -> None:
    shown = "".join(page.all_text)
    machine = ("tier A (bubblewrap, seccomp, rlimits)", "Some CPU @ 2.50GHz", "g++ 12.2.0")
    for fact in (*machine, "2025-11-21 14:02", assignment().fingerprint[:16]):
        assert fact in shown


def test_hidden_cases_and_flags_are_there_for_the_staff(tmp_path: Path) -> None:
    page = Page(page_of(tmp_path, part("part1", "Naive", 10.0, "rejected"), hidden_failure()))
    shown = "".join(page.all_text)
    assert "staff primes (hidden)" in shown and "N=7919" in shown
    assert "loads library, rejected" in shown


@pytest.mark.parametrize("count", [0, 1])
def test_a_class_of_none_or_one_has_a_page(count: int, tmp_path: Path) -> None:
    page = Page(written(tmp_path, [student(k, random.Random(k)) for k in range(count)]))
    assert page.open == [] and students_on(page) == count


def test_neither_memory_nor_the_page_grows_much_with_the_class(tmp_path: Path) -> None:
    """Per student it keeps numbers and a name, far less than the 12 KB of its section on the page."""

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
    assert (large[0] - small[0]) / 20 < 6_000
    assert (large[1] - small[1]) / 20 < 12_000


# ---- pictures


def dots(*ratios: float) -> list[Dot]:
    return [Dot(ratio, ratio > 1.1, f"s{k}", f"<{k}>") for k, ratio in enumerate(ratios)]


PICTURES = {
    "no histogram": charts.histogram([], 100.0),
    "a histogram": charts.histogram([0.0, 100.0, 100.0, 103.0, -2.0], 100.0),
    "one total": charts.histogram([1.5], 1.5),
    "no points": charts.histogram([5.0] * 300, 0.0),
    "no ratios": charts.ratios([], [], (0.5, 2.0)),
    "far ratios": charts.ratios(dots(1.0, 0.001, 900.0), [1.1, 1.3], (0.5, 4.0)),
    "equal ratios": charts.ratios(dots(*[1.0] * 2000), [1.1], (0.5, 2.0)),
    "an interval": charts.interval(1.0, (0.9, 1.2), 1.1),
    "a wide interval": charts.interval(9.0, (0.001, 99.0), None),
    "no verdicts": charts.verdict_bar({"pass": 0}),
    "verdicts": charts.verdict_bar({"pass": 3, "wrong": 1}),
    "no share": charts.share(0, 0),
}


@pytest.mark.parametrize("kind", PICTURES)
def test_pictures_are_well_formed_and_stay_in_their_frame(kind: str) -> None:
    root = ElementTree.fromstring(PICTURES[kind])
    width, height = (float(v) for v in root.attrib["viewBox"].split()[2:])
    for element in root.iter():
        for name, high in (("x", width), ("y", height), ("cx", width), ("cy", height)):
            assert -1 <= float(element.attrib.get(name, 0)) <= high + 1, element.attrib
        for start in re.findall(r"M([\d.e-]+) ([\d.e-]+)", element.attrib.get("d", "")):
            assert 0 <= float(start[0]) <= width and 0 <= float(start[1]) <= height


def test_a_histogram_counts_everybody_once_and_an_interval_needs_numbers() -> None:
    totals = [0.0, 0.1, 9.99, 10.0, 49.9, 50.0, 99.9, 100.0, 103.0]
    counts = re.findall(r": (\d+)</title>", charts.histogram(totals, 100.0))
    assert sum(map(int, counts)) == len(totals)
    assert charts.interval(float("nan"), (float("nan"), float("nan")), 1.1) == ""


def test_every_ratio_is_drawn_and_the_slow_ones_can_be_followed() -> None:
    picture = charts.ratios(dots(0.9, 1.0, 1.05, 1.8, 12.0), [1.1], (0.5, 4.0))
    assert picture.count("h.01") == 3
    assert re.findall(r'href="#(s\d)"', picture) == ["s3", "s4"]
    assert "allowed 1.10" in picture and "≥ 4" in picture and "≤" not in picture
    assert "&lt;3&gt;: 1.80" in picture


def test_equal_flags_of_one_student_are_one_line(tmp_path: Path) -> None:
    shown = page_of(tmp_path, *(part(f"part{k}", "P", 10.0, "rejected") for k in range(1, 4)))
    table = shown.partition('<table class="flags">')[2].partition("</table>")[0]
    assert table.count("<tr>") == 2 and "part1, part2, part3" in table


def test_axis_of_times_reaches_the_allowance() -> None:
    assert charts.ratio_limits([], []) == charts.ratio_limits([0.9, 1.1], [1.1]) == (0.5, 2.0)
    assert charts.ratio_limits([0.01, 90.0], [1.1]) == (0.25, 4.0)
    assert charts.ratio_limits([0.9, 90.0], [5.04]) == (0.5, 8.0)


# ---- machines beside one another


def machine(name: str, ratio: float, half: float = 0.01, **more: str) -> MachineRow:
    ratios = {"part1": (ratio, ratio - half, ratio + half)}
    return MachineRow(name, ratios=ratios, cores=4, processor="a processor", **more)  # type: ignore[arg-type]


def test_a_machine_is_apart_only_with_its_whole_interval() -> None:
    near, far = [machine("a", 1.0), machine("b", 1.02)], machine("c", 1.2)
    rows, (spread,) = compared([*near, far, machine("d", 1.05, 0.2), machine("e", 9, refused="no")])
    assert [row.apart for row in rows] == [(), (), ("part1",), (), ()]
    assert (spread.machines, spread.lowest, spread.highest) == (4, 1.0, 1.2)
    assert compared([]) == ([], [])
    assert compared([MachineRow("x", refused="no")])[1] == []


def test_the_report_names_who_judged_whom_and_who_is_apart(tmp_path: Path) -> None:
    rows = [
        replace(row, submission_id=f"s{k}", machine=("lab-1", "<b>lab-2")[k % 2])
        for k, row in enumerate(list(the_class(6))[:6])
    ]
    met = [machine("lab-1", 1.0), machine("lab-0", 1.0), machine("<b>lab-2", 1.3)]
    met.append(machine("old", 1, refused="another compiler"))
    classbook.write(tmp_path, assignment(), rows, made_at=MADE_AT, machines=met)
    page = (tmp_path / "report.html").read_text()
    section = page.partition('<section id="machines">')[2].partition("</section>")[0]
    assert "1.00 to 1.30 of the reference" in section.replace("\u00d7", "").replace(" x", "")
    assert section.count("<summary>3</summary>") == 2
    assert section.count("t-review") == 1 and "&lt;b&gt;lab-2" in section and "<b>lab-2" not in page
    assert "may not judge</span> another compiler" in section
    assert page.count("judged on lab-1") == 3
    classbook.write(tmp_path, assignment(), rows[:1], made_at=MADE_AT)
    assert 'id="machines"' not in (tmp_path / "report.html").read_text()


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
    starts = ("lab-1: 1 judged (1 pass, 1 slow)", "ada part1: timing", "lab-2: 0 judged; another compiler")
    for line, start in zip(
        lines, (*starts, "lab-3: 0 judged; lost: it is gone", "bob building"), strict=False
    ):
        assert line.startswith(start)
    said = stream.getvalue()
    assert "machine lab-1 proved itself" in said and "machine lab-2 may not judge: another compiler" in said
