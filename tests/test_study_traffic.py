"""The traffic simulator against counts by hand, the formulas and a naive cache."""

import csv
import platform
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import refused, write_files

import gpt149
from grader.core import prebuilt
from grader.study import facts, helpers
from labs.attention.studies import cache
from labs.attention.studies.cache import Model, Shape, Traffic

KB = 1 << 10
Access = tuple[str, int]


def simulated(kernel: str, shape: Shape, model: Model, *, scores_only: bool = True) -> Traffic:
    walk = (kernel, model, shape)
    return cache.simulate([walk], scores_only=scores_only)[walk]


def scores(kernel: str, N: int, d: int, cache_bytes: int, **tiles: int) -> Traffic:
    return simulated(kernel, Shape(N, d, **tiles), Model(cache_bytes))


def naive(accesses: list[Access], lines: int, ways: int) -> Traffic:
    """Sets as lists, the newest last."""
    per_set = ways or lines
    sets: list[list[int]] = [[] for _ in range(lines // per_set)]
    dirty: set[int] = set()
    fetched = written = 0
    for kind, index in accesses:
        line = index // 16
        kept = sets[line % len(sets)]
        if line in kept:
            kept.remove(line)
        else:
            fetched += 1
            if len(kept) == per_set:
                out = kept.pop(0)
                written += out in dirty
                dirty.discard(out)
        kept.append(line)
        if kind == "w":
            dirty.add(line)
    return Traffic(len(accesses), fetched, written + len(dirty))


@pytest.mark.parametrize("seed", range(12))
def test_the_simulated_cache_is_the_naive_one(seed: int) -> None:
    """Runs, jumps and repetitions, fed by hand. N = d = 16 makes memory enough for the indices."""
    draw = random.Random(seed)
    ways, lines = draw.choice([0, 1, 2, 4]), draw.choice([4, 8, 16])
    accesses, place = [], 0
    for _ in range(600):
        place = draw.choice([place, place + 1, place + 1, draw.randrange(1024)]) % 1024
        accesses.append((draw.choice("rrw"), place))
    sizes = map(str, (16, 16, 1, 16, 16, 64 * lines, ways, 64))
    command = [helpers.program(cache.SIMULATOR), "script", *sizes]
    script = "".join(f"{kind} {index}\n" for kind, index in accesses)
    ended = subprocess.run(command, input=script, capture_output=True, text=True, check=True)
    loads, stores, *moved = map(int, ended.stdout.split())
    assert Traffic(loads + stores, *moved) == naive(accesses, lines, ways)


def walked(N: int, d: int, T: int) -> Iterator[Access]:
    """Yield part 2's accesses for the scores: Q, K, (V, O,) S one after the other, each on its own line."""
    K, S = (matrix * -(-N * d // 16) * 16 for matrix in (1, 4))
    for i0 in range(0, N, T):
        for j0 in range(0, N, T):
            for k0 in range(0, d, T):
                for i in range(i0, min(i0 + T, N)):
                    for j in range(j0, min(j0 + T, N)):
                        if k0 > 0:
                            yield "r", S + i * N + j
                        for k in range(k0, min(k0 + T, d)):
                            yield from (("r", i * d + k), ("r", K + j * d + k))
                        yield "w", S + i * N + j


@pytest.mark.parametrize(("N", "d", "T"), [(7, 19, 4), (12, 8, 16), (9, 33, 3)])
@pytest.mark.parametrize(("lines", "ways"), [(4, 0), (16, 0), (16, 2), (8, 1)])
def test_the_simulator_walks_as_the_loops_of_part_2(N: int, d: int, T: int, lines: int, ways: int) -> None:
    """Rows that begin in the middle of a line, ragged tiles, and a cache in which two lines do not both stay."""
    found = simulated("part2", Shape(N, d, T), Model(64 * lines, ways))
    assert found == naive(list(walked(N, d, T)), lines, ways)


def test_counts_by_hand() -> None:
    """N = d = 16: Q, K and S are 16 lines each, a row is one line."""
    assert scores("part1", 16, 16, 64 * KB) == Traffic(2 * 16**3 + 16**2, 16 + 16 + 16, 16)
    # Four lines: a row of Q and of S stay, the rows of K come anew for each row of Q.
    assert scores("part1", 16, 16, 4 * 64).fetched == 16 + 16 * 16 + 16
    # Tiles of 4 rows of Q, K and S, and room for the next 4 of K: it comes anew for each 4 rows of Q.
    assert scores("part2", 16, 16, 16 * 64, tile=4).fetched == 16 + 4 * 16 + 16
    # Part 3 keeps one row of scores and writes O where parts 1 and 2 keep all of them.
    whole = simulated("part3", Shape(16, 16), Model(64 * KB), scores_only=False)
    assert (whole.fetched, whole.written) == (4 * 16 + 1, 16 + 1)


def test_the_ratio_is_one_over_the_tile_only_where_rows_exceed_the_cache() -> None:
    first = scores("part1", 192, 4096, 16 * KB)
    for kernel, tile, wanted in (("part2", 16, 1 / 16), ("part2-rewritten", 16, 3 / 32)):
        found = scores(kernel, 192, 4096, 16 * KB, tile=tile)
        assert found.lines / first.lines == pytest.approx(wanted, rel=0.02 if kernel == "part2" else 0.03)
        assert found.lines == pytest.approx(cache.formula(kernel, Shape(192, 4096, tile), 64), rel=0.03)
    assert first.lines == pytest.approx(cache.formula("part1", Shape(192, 4096), 64), rel=0.01)
    # At the real size the ratio is one.
    lines = {kernel: scores(kernel, 1024, 32, 512 * KB).lines for kernel in ("part1", "part2")}
    assert lines["part2"] / lines["part1"] == pytest.approx(1.0, abs=0.001)


def test_a_table_holds_both_kernels_for_each_cache() -> None:
    models, shape = (Model(4 * KB), Model(64 * KB)), Shape(48, 64)
    study = cache.measure(("part1", "part2"), models, (shape,), scores_only=True, about="here")
    rows = study.table().rows
    assert [" ".join(row[2:4]) for row in rows] == ["4K part1", "4K part2", "64K part1", "64K part2"]
    assert rows[1][7] == pytest.approx(study.ratio(("part2", models[0], shape)))
    assert rows[0][7] == 1.0 and rows[3][7] == pytest.approx(1.0)
    assert rows[1][9] == 1 / 16


def test_sizes_have_units() -> None:
    sizes = {"16K,512K": (16 * KB, 512 * KB), "2m": (2 << 20,), "64,64b": (64,)}
    assert {text: helpers.byte_sizes(text, "--cache") for text in sizes} == sizes
    for text in ("", "K", "0", "-1K", "12Q", "1T", "99999999999G"):
        refused("--cache takes sizes like 32K", helpers.byte_sizes, text, "--cache")


def test_the_outputs_of_the_probe_and_of_cachegrind_are_read() -> None:
    text = "events: Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw\nfn=main\nsummary: 90 1 1 30 7 2 20 5 1\n"
    assert cache.data_misses(text) == 12
    peaks = "peak scalar 1 2e9\npeak avx2 1 4e10\npeak avx2 4 1.5e11\n"
    speed = facts.parse(peaks + "triad 1 5e9\nread 1 8e9\ntriad 4 9e9\nread 4 7e9\n", 4)
    assert speed.levels == ("scalar", "avx2")
    assert speed.peak("avx2", 1) == 4e10 and speed.peak("avx2", 4) == 1.5e11
    assert speed.bandwidth(1) == 8e9 and speed.bandwidth(4) == 9e9


def test_the_machine_has_wider_levels_that_are_faster_and_caches() -> None:
    """The probe keeps the best of several tries. Other programs change a ratio of 8 to 16 little."""
    speed = facts.measure()
    assert speed.peak(speed.levels[-1], 1) > 2 * speed.peak(speed.levels[0], 1) or len(speed.levels) == 1
    assert min(*speed.triad.values(), *speed.read.values()) > 0
    found = facts.describe()
    sizes = [each.size_bytes for each in found.caches]
    assert found.line_bytes in (32, 64, 128, 256) and sizes == sorted(sizes) and sizes


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_cachegrind_agrees_in_the_trend(tmp_path: Path) -> None:
    sizes = ["-N", "24", "-d", "512", "--cache", "4K"]
    assert gpt149.run(["cache", "part1", "part2", *sizes, "--cachegrind", "--out", str(tmp_path)]) == 0
    second = list(csv.DictReader((tmp_path / "cache.csv").read_text().splitlines()))[1]
    assert float(second["ratio"]) < float(second["ratio by cachegrind"]) < 0.5


def test_a_prebuilt_program_runs_without_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "cachesim.cpp"
    monkeypatch.setenv("GPT149_CACHE", str(tmp_path / "cache"))
    name = prebuilt.name("cachesim", platform.system(), platform.machine())
    handed_out = write_files(tmp_path / "prebuilt", {name: "#!/bin/sh\necho counted\n"}, 0o444) / name
    assert helpers.output_of(source, [], 60.0) == "counted\n"
    handed_out.chmod(0o555)
    assert helpers.program(source) == handed_out
