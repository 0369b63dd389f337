"""Reading of assignment files: values, the documentation's examples, and a message with the line for each mistake."""

import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import ROOT, put, refused, write

from grader.assignment import expressions, labs, records, rubric
from grader.assignment.inputs import drawn
from grader.assignment.loading import SCHEMA, load
from grader.backends.native.backend import NativeBackend
from grader.backends.selection import MAKERS
from grader.core.arrays import np
from grader.core.draws import derive
from grader.judge.marker import Marker
from grader.judge.timing.rounds import TimedInputs
from grader.runner.calls import Request
from labs.attention.cases import DISTRIBUTIONS
from labs.attention.oracle import ORACLES

CONFIG = ROOT / "configs" / "gpt149.yaml"
STAFF = ROOT / "configs" / "hidden" / "gpt149.yaml"
FORMAT, EXAMPLES = (ROOT / "docs" / f"assignment-{name}.md" for name in ("format", "examples"))


def test_the_public_assignment_has_the_handouts_points() -> None:
    assignment = load(CONFIG)
    worth = "part0:0 4Dread:1.5 4Dwrite:1.5 part1:10 part2:20 part3:25 part4:35"
    assert " ".join(f"{part.id}:{part.points:g}" for part in assignment.parts) == worth
    assert {item.id: item.points for item in assignment.manual if not item.extra} == {"writeup": 7}
    assert [item.points for item in assignment.manual if item.extra] == [3, 3, 3, 3]
    assert [each.id for each in assignment.parts if each.time and each.time.races == "wrong"] == ["part3"]
    assert assignment.commands() == ["part0", "4Daccess", "part1", "part2", "part3", "part4"]
    assert [part.id for part in assignment.select("4Daccess")] == ["4Dread", "4Dwrite"]
    assert "part0" not in [part.id for part in assignment.select("all")]


@pytest.mark.parametrize("hidden", [False, True], ids=["public", "staff"])
def test_cases_cover_prime_ragged_and_tiny_shapes(hidden: bool) -> None:
    assignment = load(STAFF if hidden else CONFIG)
    cases = [case for case in assignment.part("part4").cases if case.hidden == hidden]
    shapes = [{**assignment.defaults, **case.shape} for case in cases]
    assert any(s["N"] == 1 for s in shapes) and any(s["B"] > 1 and s["H"] > 1 for s in shapes)
    assert any(s["d"] & (s["d"] - 1) for s in shapes)
    assert any(1 < s["N"] < s["Br"] and s["N"] < s["Bc"] for s in shapes)
    assert any(s["N"] % s["Br"] and s["N"] % s["Bc"] and s["N"] > s["Br"] for s in shapes)
    assert any(s["N"] > 60 and all(s["N"] % k for k in range(2, s["N"])) for s in shapes)
    assert {case.distribution for case in cases} > {"random"}


def test_the_staff_file_only_adds_cases() -> None:
    public, staff = load(CONFIG), load(STAFF)
    for ours, theirs in zip(public.parts, staff.parts, strict=True):
        assert replace(theirs, cases=tuple(case for case in theirs.cases if not case.hidden)) == ours
        assert sum(case.hidden for case in theirs.cases) >= 3
        known = {(case.distribution, tuple(sorted(case.shape.items()))) for case in ours.cases}
        for case in filter(lambda case: case.hidden, theirs.cases):
            assert (case.distribution, tuple(sorted(case.shape.items()))) not in known
            assert str(case.seed) not in CONFIG.read_text()
    assert str(staff.seed) not in CONFIG.read_text()
    assert (public.manual, public.late, public.limits) == (staff.manual, staff.late, staff.limits)
    # Parts with their own public cases do not get the assignment's hidden cases.
    hidden = {part.id: [case.name for case in part.cases if case.hidden] for part in staff.parts}
    assert hidden["part1"] == hidden["part4"] != hidden["4Dread"] == hidden["4Dwrite"]
    for part in staff.parts:
        assert {case.distribution for case in part.cases} <= set(staff.lab.oracles[part.oracle].distributions)


def test_seed_draws_hidden_cases_and_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    staff, again, other = load(STAFF), load(STAFF), load(STAFF, seed=5)
    assert staff == again and other.seed == 5
    seeds = [case.seed for case in staff.part("part1").cases if case.hidden]
    assert len({*seeds, *(case.seed for case in other.part("part1").cases if case.hidden)}) == 2 * len(seeds)
    assert len({load(CONFIG).fingerprint, staff.fingerprint, other.fingerprint}) == 3
    # The fingerprint depends on every file that an assignment was read from.
    base, top = tmp_path / "base.yaml", tmp_path / "staff" / "top.yaml"
    put(tmp_path, {"base.yaml": CONFIG.read_text(), "staff/top.yaml": "extends: ../base.yaml\nseed: 1\n"})
    before = load(top).fingerprint
    base.write_text(CONFIG.read_text() + "\n# a remark\n")
    assert load(top).fingerprint != before


def test_extending_replaces_lists_merges_mappings_and_parts_by_id(tmp_path: Path) -> None:
    text = f"""extends: {CONFIG}
limits: {{call_s: 3}}
manual: [{{id: oral, title: Oral exam, points: 5}}]
late: {{due: 2026-11-14T23:59:00-08:00}}
parts:
  - {{id: part4, points: 40, hidden_cases: []}}
  - {{id: part5, title: Once More, label: ONCE MORE, function: again, points: 1,
     arguments: [Q, K, V, N], returns: [B, H, N, d], oracle: attention}}
"""
    assignment, below = load(write(tmp_path, text, "top.yaml")), load(CONFIG)
    assert assignment.limits == replace(below.limits, call_s=3)
    assert assignment.manual == (rubric.ManualItem("oral", "Oral exam", 5),)
    assert assignment.late is not None and assignment.late.cap_days == 3
    assert assignment.late.due == datetime(2026, 11, 14, 23, 59, tzinfo=timezone(timedelta(hours=-8)))
    assert [part.id for part in assignment.parts] == [*(part.id for part in below.parts), "part5"]
    assert assignment.part("part4") == replace(below.part("part4"), points=40)
    # A part may have `points_if_slow` in place of the time bands that the kit's own assignment has.
    bands = re.search(r"    time_bands: &time_bands\n(      - .*\n)+", CONFIG.read_text())
    path, text = tmp_path / "assignment.yaml", CONFIG.read_text().replace(bands[0], "    points_if_slow: 5\n")
    path.write_text(text.replace("*time_bands", "[{up_to: 2, share: 0.6}, {share: 0.5}]"))
    assert load(path).part("part1").points_if_slow == 5
    assert load(path).part("part2").time_bands == (rubric.TimeBand(2, 0.6), rubric.TimeBand(None, 0.5))


def timed_inputs(seed: int, calls: int) -> list[list[float]]:
    """Return the first number of each input of `calls` timed calls. Each call raises an error, so none is timed."""
    assignment, noted = load(CONFIG), []

    def call(request: Request, *, delays: bool) -> None:
        assert not delays
        noted.append([tensor.reshape(-1)[0].item() for tensor in request.inputs])
        raise TimeoutError

    shape = {"B": 1, "H": 1, "N": 8, "d": 4, "threads": 1}
    native = NativeBackend(None, None, None)
    bench = SimpleNamespace(assignment=assignment, shape=shape, backend=lambda part: native)
    draw = TimedInputs(Marker(bench, assignment.part("part1")), seed)  # type: ignore[arg-type]
    for _ in range(calls):
        refused("", draw.sample, SimpleNamespace(call=call), is_reference=False, of=TimeoutError)
    return noted


def test_a_seed_repeats_the_timed_inputs_and_seeds_do_not_reveal_one_another() -> None:
    first = timed_inputs(149, 4)
    assert timed_inputs(149, 4) == first
    numbers = {number for call in [*first, *timed_inputs(150, 4)] for number in call}
    assert len(numbers) == 3 * 8, "all timed calls have different inputs"
    seeds = [derive(7, label, call) for label in ("inputs", "rows") for call in range(500)]
    assert len({seed & 0xFFFFFFFF for seed in seeds}) == len(seeds), "low 32 bits differ"
    differences = {(b - a) & 0xFFFFFFFF for a, b in pairwise(seeds)}
    assert len(differences) == len(seeds) - 1, "differences of seeds do not repeat"
    assert all(0 <= seed < 1 << 63 for seed in seeds)
    assert derive(1, "12") != derive(1, "1", "2") != derive(11, "2")
    assignment = load(CONFIG)
    case = next(case for case in assignment.part("part1").cases if case.distribution == "random")
    shape = {**assignment.defaults, **case.shape}
    first, again, other = (drawn(assignment.lab, case.distribution, shape, k, keep=True) for k in (7, 7, 8))
    assert all((first[name] == again[name]).all() for name in first)
    assert not any((first[name] == other[name]).all() for name in "QKV")


def test_cached_inputs_and_expected_values_are_those_of_their_own_lab_and_oracle() -> None:
    """The caches' keys contain id() of lab and oracle. Python may reuse an id() after the object has been freed."""

    def made(number: int) -> Any:
        return SimpleNamespace(make_inputs=lambda *_: {"X": np.full(3, number)}, expected=lambda *_: number)

    of_each = [drawn(made(number), "equal", {"N": 3}, 1, keep=True) for number in range(20)]
    assert [inputs["X"].tolist() for inputs in of_each] == [[number] * 3 for number in range(20)]
    for number, inputs in enumerate(of_each):
        assert [inputs.expected(made(number + k)) for k in range(20)] == list(range(number, number + 20))


def test_every_accepted_key_is_documented_and_every_documented_key_is_accepted() -> None:
    documented = {}
    for section in FORMAT.read_text().split("\n## ")[1:]:
        # The keys are the first cells in the rows of the page's tables. A star marks an optional key.
        if keys := dict(re.findall(r"^\| `(\w+)`( \*)? \|", section, re.MULTILINE)):
            documented[section.partition("\n")[0]] = keys
    sections = {re.sub(r"^(an?|the) ", "", keys.what).capitalize(): keys for keys in SCHEMA}
    assert set(documented) == set(sections)
    for name, keys in sections.items():
        assert set(documented[name]) == set(keys.all)
        assert not any(documented[name][key] for key in keys.required), "it is documented as optional"
    # The lab's declaration names all oracles and distributions that are in its code.
    known = labs.load(labs.find("attention")).oracles
    assert set(known) == set(ORACLES)
    assert {name for facts in known.values() for name in facts.distributions} == set(DISTRIBUTIONS)


def test_every_language_of_kernels_has_a_backend(tmp_path: Path) -> None:
    assert MAKERS.keys() == records.SUFFIXES.keys()
    kernels = re.findall(r"```yaml\n# kernels.yaml\n(.*?)```", EXAMPLES.read_text(), re.DOTALL)[0]
    for language in records.SUFFIXES:
        (part,) = load(write(tmp_path, kernels.replace("backend: triton", f"backend: {language}"))).parts
        assert part.device is not None and part.device.language == language


def test_documented_examples_have_every_key_and_are_read(tmp_path: Path) -> None:
    files = dict(re.findall(r"```yaml\n# (\S+\.yaml)\n(.*?)```", EXAMPLES.read_text(), re.DOTALL))
    put(tmp_path, files)
    assert load(tmp_path / "example.yaml").seed is None
    assert load(tmp_path / "hidden" / "example.yaml").seed is not None
    text = "\n".join(files.values())
    unused = {key for keys in SCHEMA for key in keys.all if not re.search(rf"\b{key}:", text)}
    # The kit's own assignment has the first three (see below). The last cannot occur together with `time_bands`.
    assert unused == {"torch_function", "keywords", "stands_in", "points_if_slow"}
    (kernel,) = load(tmp_path / "kernels.yaml").parts
    assert kernel.device is not None and kernel.device.ranges == {"x": (-4.0, 4.0)}
    public = load(CONFIG)
    assert any(part.is_torch and part.keywords for part in public.parts)
    assert any(part.stands_in for part in public.parts)


def test_expressions_allow_only_arithmetic() -> None:
    assert expressions.evaluate_int("2 * (N + Br - 1) // Br", {"N": 10, "Br": 4}) == 2 * 13 // 4
    calls = ("__import__('os')", "N.bit_length()", "N if N else 0", "N ** N", "N // 0")
    for expression in (*calls, "M", "1.5", "True", "", "N\0"):
        refused("", expressions.evaluate_int, expression, {"N": 10})


def refusal(path: Path) -> str:
    message = refused("", load, path)
    assert len(message) < 600, message
    return message


def place(message: str, path: Path) -> int:
    found = re.match(re.escape(str(path)) + r":(\d+): ", message)
    assert found, message
    return int(found[1])


def edited(old: str, new: str) -> str:
    text = CONFIG.read_text()
    assert old in text, f"the public assignment no longer holds {old!r}"
    return text.replace(old, new, 1)


POINTS, BANDS, CREDIT = "    points: 10\n", "      - {up_to: 1.25, share: 0.9}\n", "    case_credit: 0.4\n"
LATE, MANUAL = "  grace_minutes: 15\n", "  - {id: writeup, title: Write-up, points: 7}\n"
TITLE = "title: Attention kernels on a multi-core CPU"
RANDOM = "  - {name: random, distribution: random, seed: 1, weight: 3}\n"

MISTAKES = [
    # keys
    (POINTS, "    pionts: 10\n", "unknown key 'pionts' in a part; did you mean 'points'?"),
    (POINTS, "    points: 10\n    points: 11\n", "the key 'points' occurs twice in a part"),
    ("id: gpt149\n", "id: gpt149\nid: gpt150\n", "'id' occurs twice"),
    ("    function: myFusedAttention\n", "", "needs either 'function' or 'torch_function'"),
    (f"{TITLE}\n", "", "lacks the key 'title'"),
    ("cases:\n", "caeses:\n", "unknown key 'caeses'"),
    ("id: gpt149\n", "id: gpt149\nother_cases: []\n", "unknown key 'other_cases': no part uses it"),
    ("    time_bands: *time_bands\n", "    <<: *time_bands\n", "merge keys (<<) are not read"),
    (POINTS, "    points: 10\n    ? [a, b]\n    : c\n", "a key of a part should be a word, not a list"),
    ("id: gpt149\n", "id: gpt149\nseed: 3\n", "'seed' is for the staff alone"),
    (POINTS, "    points: 10\n    hidden_cases: []\n", "'hidden_cases' is for the staff alone"),
    # numbers
    *((POINTS, f"    points:{value}\n", f"points should be a number of at least 0{says}") for value, says in (
        (" ten", ""), (" '10'", ", not '10'"), (" -1", ""), (" true", ", not true"), (" [10]", ", not a list"),
        ("", ", not nothing"),
    )),
    *((POINTS, f"    points: {value}\n", f"in decimal digits, not {value}")
      for value in (".nan", ".inf", "0x10", "010", "1:30", "1_0")),
    (POINTS, "    points: 1" + "0" * 5000 + "\n", "points should be"),
    (POINTS, "    points: 1000000\n", "points should be at most 10000"),
    ("defaults: {B: 1,", "defaults: {B: 0,", "defaults: B should be a whole number of at least 1"),
    ("defaults: {B: 1,", "defaults: {B: 1.0,", "defaults: B should be a whole number"),
    ("defaults: {B: 1,", "defaults: {B: 99999999999999999999,", "defaults: B should be at most 2147483647"),
    ("defaults: {B: 1, H: 4,", "defaults: {B: 1,", "maxima: 'H' is not among the defaults"),
    ("Bc: 256, threads: 8}", "Bc: 256}", "the size 'threads' is missing"),
    ("maxima: {B: 64,", "maxima: {B: 0,", "maxima: B should be a whole number"),
    ("maxima: {B: 64, H: 64, N: 8192,", "maxima: {B: 64, H: 64, N: 512,", "N is 512, below its default of 1024"),
    ("maxima: {B: 64,", "maxima: {C: 64,", "maxima: 'C' is not among the defaults"),
    ("build_s: 180", "build_s: 0", "build_s should be a number of at least 0.1"),
    ("memory_gib: 4", "memory_gib: lots", "memory_gib should be a number"),
    # text values, and values from a fixed list
    *(("  - id: part1\n", f"  - id: {name}\n", f"part {name} has the name of a command") for name in ("race", "sweep")),
    ("schema_version: 1", "schema_version: 2", "this kit reads schema_version 1"),
    ("schema_version: 1", "schema_version: true", "schema_version should be a whole number"),
    *((TITLE, f"title: {title}", f"title should be one line of text{says}")
      for title, says in (("no", ", not no (put it"), ("149", ", not 149"), ('"a\\nb"', ""))),
    ("source: module.cpp", "source: ../module.cpp", "source should be the name of one file"),
    ("id: gpt149\n", "id: gpt 149\n", "id should be an id of letters"),
    ("clock: wall", "clock: sundial", "clock should be one of cpu, wall"),
    ("threads: 1, a", "threads: 1, parallel: review, a", "for a part with 'threads: all'"),
    ("threads: 1, a", "threads: 1, races: slow, a", "races should be one of wrong, review, free"),
    ("threads: all", "threads: some", "threads should be one of all"),
    ("threads: all", "threads: 0", "threads (a number or all) should be a whole number of at least 1"),
    ("returns: number", "returns: numbers", "returns (or a list of dimensions) should be one of number, nothing"),
    ("returns: number", "returns: [N]", "'returns: number' or 'returns: nothing', and no"),
    ("    returns: [B, H, N, d]\n    reference", "    returns: number\n    reference", "number' needs the key 'table'"),
    ("oracle: attention", "oracle: delphi", "oracle should be one of attention, read4d, write4d"),
    ("workspace_in_scope: false", "workspace_in_scope: 0", "workspace_in_scope should be true or false"),
    ("workspace_in_scope: false", "workspace_in_scope: no", "workspace_in_scope should be true or false, not no"),
    ("torch_function: torch.nn", "torch_function: os.system#", "torch_function should be a function of torch"),
    ("function: myFusedAttention", "function: my-fused", "function should be the name of a function"),
    ("keywords: {scale: 1.0}", "keywords: {scale: [1.0]}", "keywords: scale should be a single plain value"),
    ("    function: myFusedAttention\n", "    function: f\n    keywords: {}\n", "'keywords' are for a torch_function"),
    # expressions and references between keys
    ('"zeros(threads, N)"', '"zeros(treads, N)"', "cannot evaluate 'treads'"),
    ('"zeros(threads, N)"', '"zeros(threads, N - 1024)"', "'N - 1024' is 0 for the default sizes"),
    ('"zeros(threads, N)"', '"zeros(threads, ' + "(" * 4000 + ')"', "is longer than 200 characters"),
    ('"column(0)"', '"column(x)"', "column(k) takes one whole number"),
    ("  Q: [B, H, N, d]", "  Q: [B, H, N, depth]", "input Q: cannot evaluate 'depth'"),
    ("  - id: part2\n", "  - id: part1\n", "two parts are called 'part1'"),
    ("stands_in: part1", "stands_in: part7", "stands_in: no part is called"),
    ("stands_in: part1", "stands_in: 4Dwrite", "cannot stand in"),
    ("    reference: gpt149_ref_fused\n", "", "no reference to be timed against"),
    # cases
    ("shape: {B: 2, H: 3, N: 103,", "shape: {B: 2, H: 3, M: 103,", "'M' is not among the defaults"),
    ("shape: {B: 2, H: 3, N: 103,", "shape: {B: 2, H: 3, N: 10300,", "N is 10300, above its maximum of 8192"),
    (RANDOM, RANDOM.replace("distribution: random", "distribution: randon"), "distribution should be one of ramp"),
    (RANDOM, RANDOM.replace("distribution: random", "distribution: indices"), "distribution should be one of ramp"),
    (RANDOM, RANDOM.replace("seed: 1", "seed: -1"), "seed should be a whole number of at least 0"),
    (RANDOM, RANDOM.replace("seed: 1,", ""), "a case lacks the key 'seed'"),
    (RANDOM, RANDOM.replace("weight: 3", "weight: -3"), "weight should be a number of at least 0"),
    (RANDOM, RANDOM.replace("name: random", "name: ragged"), "two cases are called 'ragged'"),
    (RANDOM, RANDOM.replace("name: random", "name: timed call"), "a case cannot be called 'timed call'"),
    ("    cases: *accessor_cases\n", "    cases: []\n", "the part has no public cases: give it `cases`"),
    # points
    (BANDS, "      - {up_to: 1.05, share: 0.9}\n", "up_to 1.05 is never reached: a ratio up to 1.1"),
    (BANDS, "      - {up_to: 1.6, share: 0.9}\n", "put fast bands first: up_to 1.5 follows up_to 1.6"),
    (BANDS, "      - {up_to: 1.25, share: 0.6}\n", "than the band before it: share 0.75, not 0.6"),
    (BANDS, "      - {up_to: 1.25, share: 90}\n", "share should be at most 1"),
    (BANDS, "      - {share: 0.9}\n", "never reached after one without 'up_to'"),
    ("      - {share: 0.4}\n", "      - {up_to: 9, share: 0.4}\n", "very slow kernel would earn the share 0,"),
    (CREDIT, "    case_credit: 0.5\n", "would earn the share 0.4, a wrong one up to 0.5"),
    (CREDIT, "    case_credit: 40%\n", "case_credit should be a number"),
    (CREDIT, "    points_if_slow: 5\n", "has time_bands and points_if_slow"),
    ("    points: 35\n", "    points: 35\n    points_if_slow: 3\n", "has points_if_slow, but its time is not graded"),
    # manual points
    (MANUAL, MANUAL + MANUAL, "two parts or manual items are called 'writeup'"),
    (MANUAL, MANUAL.replace("writeup", "part1"), "two parts or manual items are called 'part1'"),
    (MANUAL, MANUAL.replace("writeup", "comment"), "cannot be 'comment': the kit uses that word"),
    (MANUAL, MANUAL.replace("points: 7", "points: 0"), "writeup: points should be above 0"),
    (MANUAL, MANUAL.replace("}", ", extra: 1}"), "extra should be true or false"),
    # lateness
    *((LATE, f"  due: {due}\n", "due needs a time and a zone") for due in ("2026-11-14", "2026-11-14 23:59:00")),
    *((LATE, f"  due: {due}\n", "due should be a date with time and zone")
      for due in ("2026-02-30T23:59:00-08:00", "tomorrow", "20261114")),
    (LATE, "  grace_minutes: -5\n", "grace_minutes should be a number of at least 0"),
    ("per_day: {share: 0.1}", "per_day: 0.1", "per_day should be a mapping"),
    ("per_day: {share: 0.1}", "per_day: {share: 0.1, points: 3}", "either 'share' (of what was earned) or 'points'"),
    ("per_day: {share: 0.1}", "per_day: {share: 10}", "share should be at most 1"),
    ("  after_cap: zero\n", "", "give both cap_days and after_cap, or neither: later than cap_days"),
    ("after_cap: zero", "after_cap: 0", "after_cap should be one of zero, max_penalty"),
    ("cap_days: 3", "cap_days: 0", "cap_days should be a whole number of at least 1"),
    # YAML itself
    ("parts:\n", "parts: [\n", "not valid YAML"),
    (POINTS, "\tpoints: 10\n", "not valid YAML: a tab in the indentation; use spaces"),
    ("cases: *accessor_cases", "cases: *acessor_cases", "undefined alias"),
    ("id: gpt149\n", "id: gpt149\n---\n", "not valid YAML: but found another document"),
    ("id: gpt149\n", "id: gpt149\nx: \x07\n", "is not allowed in YAML"),
    (POINTS, "    points: !!python/name:os.system 10\n", "points should be a number"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "says"), MISTAKES)
def test_mistakes_are_reported_with_file_and_line(old: str, new: str, says: str, tmp_path: Path) -> None:
    path = write(tmp_path, edited(old, new), "assignment.yaml")
    message = refusal(path)
    assert says in message and 1 <= place(message, path) <= len(path.read_text().splitlines()) + 1


def test_a_mistake_in_a_file_or_its_base_is_reported_at_its_line(tmp_path: Path) -> None:
    below, top = tmp_path / "below.yaml", tmp_path / "top.yaml"
    top.write_text("extends: below.yaml\nseed: 1\n")
    points, late, manual = "    pionts: 10\n", "  due: 2026-11-14\n", "  - 7\n"
    for old, new in ((POINTS, points), (POINTS, "    points: .nan\n"), (LATE, late), (MANUAL, manual)):
        below.write_text(edited(old, new))
        for read in (below, top):
            assert below.read_text().splitlines(keepends=True)[place(refusal(read), below) - 1] == new


@pytest.mark.full
def test_other_files_and_bombs_of_aliases_nesting_and_size_are_refused_at_once(tmp_path: Path) -> None:
    """Each of sixty lists has two aliases of the list before, so a reader that expands them gets 2^60 values."""
    path = tmp_path / "assignment.yaml"
    bomb = "  x0: &x0 [N, N]\n" + "".join(f"  x{k}: &x{k} [*x{k - 1}, *x{k - 1}]\n" for k in range(1, 60))
    for text, says in (
        *((text, str(path)) for text in ("", "[]", "just text", "a: b: c", "7", "--- {}\n--- {}\n")),
        (bytes(range(128, 256)).decode("latin-1"), "not UTF-8"),
        (edited("inputs:\n", "inputs:\n" + bomb), "input x1 should be a name, a whole number or an expression"),
        (edited("limits:", f"limits:\n{bomb}others:"), "unknown key 'others' in the assignment"),
        (edited("keywords: {scale: 1.0}", "keywords: {x: &x [*x, *x]}"), "keywords: x should be a single"),
        (edited(POINTS, "    points: &p [*p]\n"), "number of at least 0, not a list"),
        ("extends: &all [*all]\n", "extends should be the path of a file, not a list"),
        (f"extends: {CONFIG}\nparts: &all [*all]\n", "a part should be a mapping of keys to values, not a list"),
        (f"extends: {CONFIG}\nlimits: &all {{call_s: *all}}\n", "call_s should be a number of at least 0.1, not a map"),
        ("id: " + "[" * 5_000, "nested too deeply"),
        ("# " + "x" * (2 << 20), "larger than 1 MiB"),
    ):  # fmt: skip
        path.write_text(text, encoding="latin-1")
        assert says in refusal(path)


@pytest.mark.parametrize(("text", "says"), [
    ("extends: gone.yaml", "extends: cannot read"),
    ("extends: .", "extends: cannot read"),
    ("extends: 7", "extends should be the path of a file, not 7"),
    ("extends: top.yaml", "extends this file, directly"),
    ("extends: loop.yaml", "extends this file, directly"),
    ("extends: {config}\nhiden_cases: []", "unknown key 'hiden_cases'"),
    ("extends: {config}\nseed: 0x5eed", "seed should be a whole number of at least 0 in decimal digits"),
    ("extends: {config}\nseed: 99999999999999999999", "seed should be at most 9223372036854775807"),
    ("extends: {config}\nhidden_cases: [{{name: x, distribution: random}}]", "a case lacks the key 'seed'"),
    ("extends: {config}\nseed: 1\nhidden_cases: [{{name: random, distribution: random}}]", "called 'random'"),
    ("extends: {config}\nseed: 1\nhidden_cases: [{{name: x, distribution: indices}}]", "should be one of ramp"),
    ("extends: {config}\nparts: [{{id: part44, hidden_cases: []}}]", "no part is called 'part44'"),
    ("extends: {config}\nparts: [{{id: part4}}, {{id: part4}}]", "two parts are called 'part4'"),
    ("extends: {config}\nparts: [{{hidden_cases: []}}]", "a part lacks the key 'id'"),
    ("extends: {config}\nparts: [{{id: part4, points: -1}}]", "points should be a number"),
])  # fmt: skip
def test_mistakes_in_an_extending_file_are_reported_in_it(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "loop.yaml").write_text("extends: top.yaml\n")
    message = refusal(write(tmp_path, text.format(config=CONFIG) + "\n", "top.yaml"))
    assert says in message and place(message, tmp_path / ("loop.yaml" if "loop" in text else "top.yaml")) <= 3
