"""Compare what grading a class costs in two versions of the kit: CPU and wall seconds, memory of a worker.

    python benchmarks/class_versions.py OLD NEW [--submissions 60] [--chunk 10]

OLD and NEW are checkouts. Both grade the same submissions, a chunk at a time; the version that was second in one chunk
is first in the next. Each has a cache of its own and runs under this Python. CPU seconds are those of all descendants,
so that another program's load changes little but the number of timed rounds.

The class consists of copies of the master that differ in a line each, so that every one has to be compiled. Every
fifth has a wrong part 1, and every tenth an error.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trials import ROOT, spread, table

LOOK_S = 1.0
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def sources(count: int) -> Iterator[tuple[str, str]]:
    """Name and text of each submission; all texts differ."""
    master = (ROOT / "module.cpp").read_text()
    for k in range(count):
        text = f"// handed in by student {k}\n" + master.replace("TILE_SIZE 16", f"TILE_SIZE {8 + k % 5 * 4}")
        if k % 10 == 9:
            text = text.replace("#include", "#inclood", 1)
        elif k % 5 == 4:
            text = text.replace("std::exp(", "1.0f + (")
        yield f"student{k:03}", text


class FamilyCpu:
    """CPU seconds of this process and all its descendants, sampled every `PERIOD_S`.

    Sampling also counts processes whose parent does not wait for them, such as a sandbox's. Work after a process's
    last sample is not counted.
    """

    PERIOD_S = 0.5

    def __init__(self) -> None:
        self._used_s: dict[tuple[int, str], float] = {}
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._sampler = threading.Thread(target=self._keep_sampling)

    def __enter__(self) -> FamilyCpu:
        self._sampler.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._sampler.join()

    def _keep_sampling(self) -> None:
        while not self._ended.wait(self.PERIOD_S):
            self.so_far_s()

    def so_far_s(self) -> float:
        parents: dict[int, list[int]] = {}
        stats: dict[int, list[str]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    parents.setdefault(int(fields[1]), []).append(int(entry.name))
                    stats[int(entry.name)] = fields
        with self._lock:
            family = [os.getpid()]
            while family:
                pid = family.pop()
                family += parents.get(pid, [])
                if fields := stats.get(pid):
                    user, system, began = fields[11], fields[12], fields[19]
                    self._used_s[pid, began] = (int(user) + int(system)) * TICK_S
            return sum(self._used_s.values())


def worker_peaks(root: int, peaks: dict[int, int]) -> None:
    """Keep the highest peak (bytes) seen of each Python process below `root` that grades: VmHWM of /proc."""
    children: dict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children[parent].append(int(stat.parent.name))
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        waiting += children[pid]
        try:
            if b"worker" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                continue
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        kib = next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
        peaks[pid] = max(peaks.get(pid, 0), kib << 10)


def graded(version: Path, folder: Path, place: Path) -> tuple[float, float, int, str]:
    """(wall seconds, CPU seconds, highest peak of a worker in bytes, what became of the submissions)."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(version),
        "GPT149_CACHE": str(place / f"cache-{version.name}"),
    }
    command = [sys.executable, "-m", "grader", "run", str(folder), "--out", f"{folder}-graded"]
    peaks: dict[int, int] = {}
    said = place / "said"
    with FamilyCpu() as used, said.open("w") as output:
        begun = time.perf_counter()
        run = subprocess.Popen(command, cwd=version, env=environment, stdout=output, stderr=subprocess.STDOUT)
        while run.poll() is None:
            time.sleep(LOOK_S)
            worker_peaks(run.pid, peaks)
        wall_s, cpu_s = time.perf_counter() - begun, used.so_far_s()
    lines = said.read_text().splitlines()
    if run.returncode != 0:
        sys.exit(f"{version}: exit code {run.returncode}: {' / '.join(lines[-3:])}")
    told = next((line for line in reversed(lines) if " graded: " in line), "")
    return wall_s, cpu_s, max(peaks.values(), default=0), told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("versions", nargs=2, type=Path, metavar="CHECKOUT", help="the old one, the new one")
    parser.add_argument("--submissions", type=int, default=60, help="(%(default)s)")
    parser.add_argument("--chunk", type=int, default=10, help="how many are graded in turn (%(default)s)")
    args = parser.parse_args()
    old, new = (path.resolve() for path in args.versions)
    if old.name == new.name:
        parser.error("the checkouts' folders need different names")
    texts = list(sources(args.submissions))
    found: dict[Path, list[tuple[float, float, int]]] = {old: [], new: []}
    ends: dict[Path, list[str]] = {old: [], new: []}
    with tempfile.TemporaryDirectory() as place:
        for first in range(0, len(texts), args.chunk):
            chunk = texts[first : first + args.chunk]
            turn = (old, new) if first // args.chunk % 2 == 0 else (new, old)
            for version in turn:
                folder = Path(place) / f"{version.name}-{first}"
                for name, text in chunk:
                    (folder / name).mkdir(parents=True)
                    (folder / name / "module.cpp").write_text(text)
                wall_s, cpu_s, peak_bytes, told = graded(version, folder, Path(place))
                found[version].append((wall_s / len(chunk), cpu_s / len(chunk), peak_bytes))
                ends[version].append(told)
                print(f"{version.name}: {told}; {cpu_s / len(chunk):.1f} s CPU each", file=sys.stderr)
    rows = [
        [
            version.name,
            spread([cpu for _, cpu, _ in found[version]]),
            spread([wall for wall, _, _ in found[version]]),
            f"{max(peak for _, _, peak in found[version]) >> 20} MiB",
        ]
        for version in (old, new)
    ]
    print(table(rows, ("", "CPU, a submission", "wall, a submission", "a worker's peak")))
    for k, what in enumerate(("wall", "CPU")):
        ratio = sum(each[k] for each in found[new]) / sum(each[k] for each in found[old])
        print(f"{what}: the new version takes {ratio:.3f} of the old one")
    if ends[old] != ends[new]:
        print(f"their verdicts differ: {ends[old]} {ends[new]}")
        sys.exit(1)


if __name__ == "__main__":
    main()
