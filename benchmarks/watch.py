"""How soon `--watch` answers after a save, and what many saves leave behind.

A session of `gpt149.py part3 --watch` on the master is driven from outside: a version of the file is written, and the
arrival of each line on the terminal is timed from that moment. Kinds of saves: a syntax error, an edit that changes
the object (a constant that the result does not depend on), a comment. They take turns, so that a busy moment affects
all of them.

With `--soak N`, N saves of all kinds follow in a drawn order, and the result of each is checked. Kinds: right, wrong,
syntax error, crash, hang, half-written file, removed and back, by rename. Then the script checks the watcher's memory
for growth, its open descriptors, and the processes left. Exit code 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median

from trials import ROOT

from grader.backends.native.toolchain import cache_root

HANG = 'while (B) __asm__ volatile ("");'
PART, FUNCTION = "part3", "myFusedAttention"
WITHIN_S = 90.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--saves", type=int, default=20, help="of each kind (%(default)s)")
    parser.add_argument("--soak", type=int, metavar="N", default=0, help="so many saves of all kinds, drawn")
    parser.add_argument("--seed", type=int, default=1, help="of the soak's order (%(default)s)")
    parser.add_argument("-N", type=int, default=1024, help="tokens (%(default)s; a soak takes 32)")
    parser.add_argument("--json", type=Path, help="write all figures here")
    return parser.parse_args()


class Session:
    """A watching process, and its lines with the moments at which they came."""

    def __init__(self, source: Path, *options: str) -> None:
        self.source = source
        command = [
            sys.executable,
            "-u",
            str(ROOT / "gpt149.py"),
            PART,
            "--watch",
            "--module",
            str(source),
            *options,
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        self.lines: list[tuple[float, str]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line))

    def wait(self, since: int, is_it: Callable[[str], bool], within_s: float = WITHIN_S) -> tuple[float, str]:
        """The first line of those that fits, and when it came. Raises TimeoutError."""
        end, at = time.monotonic() + within_s, since
        while time.monotonic() < end:
            while at < len(self.lines):
                if is_it(self.lines[at][1]):
                    return self.lines[at]
                at += 1
            if self.process.poll() is not None:
                break
            time.sleep(0.002)
        raise TimeoutError("".join(line for _, line in self.lines[since:]))

    def settled(self, since: int, verdict: str = "", within_s: float = WITHIN_S) -> None:
        """Wait until the newest run has its line of history, at the table's end, with this verdict. Raises
        TimeoutError."""
        end = time.monotonic() + within_s
        while time.monotonic() < end and self.process.poll() is None:
            lines = self.lines[since:]
            begun = [k for k, (_, line) in enumerate(lines) if line.startswith("-- ")][-1:]
            rows = [line for _, line in lines[begun[0] :] if history(line)] if begun else []
            if rows and f"  {verdict}" in rows[-1] and time.monotonic() - lines[-1][0] > 0.05:
                return
            time.sleep(0.01)
        raise TimeoutError(self.text(since))

    def text(self, since: int) -> str:
        return "".join(line for _, line in self.lines[since:])


def history(line: str) -> bool:
    """Return True if it is a line of the history: the last one of them belongs to the last save."""
    return line.startswith("  ") and line[4:5] == ":" and line[7:8] == ":"


def in_function(master: str, statements: str) -> str:
    declared = master.index(f" {FUNCTION}(")
    opened = master.index("{", declared)
    return f"{master[: opened + 1]}\n    {statements}\n{master[opened + 1 :]}"


def latencies(master: str, saves: int, n: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "module.cpp")
        source.write_text(master)
        one = Session(source, "-N", str(n))
        one.wait(0, history)
        time.sleep(0.5)

        def save(kind: str, text: str, awaited: dict[str, Callable[[str], bool]]) -> None:
            since, began = len(one.lines), time.monotonic()
            source.write_text(text)
            for what, is_it in awaited.items():
                at, _ = one.wait(since, is_it)
                found.setdefault(f"{kind}: {what}", []).append(at - began)
            one.settled(since)
            time.sleep(0.3)

        for k in range(saves):
            # A mark that makes it another object, at no cost: a volatile that is set once a call.
            edit = in_function(master, f"volatile int mark = {k}; (void)mark;")
            save(
                "edit",
                edit,
                {
                    "correctness": lambda line: line.startswith("Correctness: right"),
                    "time of a first round": lambda line: line.startswith("Time so far:"),
                    "time": lambda line: line.startswith("Time:"),
                    "verdict": history,
                },
            )
            save(
                "comment", f"{edit}// {k}\n", {"verdict known": lambda line: line.startswith("Only comments")}
            )
            save(
                "syntax", edit.replace("float rowSum = 0.0f;", "float rowSum = 0.0f", 1), {"error": is_error}
            )
        one.process.send_signal(signal.SIGINT)
        one.process.wait(30)
    return found


def is_error(line: str) -> bool:
    return "error: " in line


# ---- many saves


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found |= {child} | descendants(child)
    return found


def resident_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def soak(master: str, saves: int, seed: int) -> int:
    draw, faults = random.Random(seed), 0
    kinds: Counter[str] = Counter()
    before = {int(path.name) for path in Path("/proc").glob("[0-9]*")}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "quick.yaml")
        config.write_text(
            f"extends: {ROOT / 'configs' / 'gpt149.yaml'}\nlimits: {{build_s: 180, call_s: 2, memory_gib: 4}}\n"
        )
        source = Path(folder, "module.cpp")
        source.write_text(master)
        one = Session(source, "-N", "32", "--no-time", "--config", str(config))
        one.wait(0, history)
        memory: list[int] = []
        for k in range(saves):
            kind = draw.choice(
                ["right", "wrong", "syntax", "crash", "hang", "half", "gone", "rename", "during"]
            )
            kinds[kind] += 1
            mark = f"volatile int mark = {k}; (void)mark;"
            right = in_function(master, mark)
            wrong = right.replace("value += weight *", "value += 2.0f * weight *", 1)
            texts = {
                "wrong": (wrong, "WRONG RESULT"),
                "syntax": (
                    right.replace("float rowSum = 0.0f;", "float rowSum = 0.0f", 1),
                    "DOES NOT COMPILE",
                ),
                "crash": (in_function(master, f"{mark} __builtin_trap();"), "CRASHED"),
                "hang": (in_function(master, f"{mark} {HANG}"), "DID NOT END"),
            }
            text, verdict = texts.get(kind, (right, "PASS"))
            since = len(one.lines)
            if kind == "half":
                source.write_text(text[: len(text) // 2])
                time.sleep(draw.random() * 0.3)
                source.write_text(text)
            elif kind == "gone":
                source.unlink()
                time.sleep(draw.random() * 0.6)
                source.write_text(text)
            elif kind == "rename":
                beside = Path(folder, ".module.cpp~")
                beside.write_text(text)
                os.replace(beside, source)
            elif kind == "during":
                # Right, while something that hangs is compiled or run.
                source.write_text(in_function(master, f"{mark} {HANG} // first"))
                time.sleep(draw.random() * 2)
                source.write_text(text)
            else:
                source.write_text(text)
            try:
                one.settled(since, verdict)
            except TimeoutError as error:
                faults += 1
                print(f"save {k} ({kind}): no {verdict}:\n{error}")
            memory.append(resident_kib(one.process.pid))
            if k % 20 == 19:
                print(f"{k + 1} saves, {memory[-1] / 1024:.0f} MiB", flush=True)
        time.sleep(0.5)
        left = descendants(one.process.pid)
        open_fds = len(list(Path(f"/proc/{one.process.pid}/fd").iterdir()))
        one.process.send_signal(signal.SIGINT)
        code = one.process.wait(30)
    time.sleep(0.5)
    stray = [
        path.name for path in Path("/proc").glob("[0-9]*") if int(path.name) not in before and _is_ours(path)
    ]
    third = max(1, len(memory) // 3)
    grown = median(memory[-third:]) / median(memory[:third]) if memory else 1.0
    print(f"{dict(kinds)}; {faults} not as they should be; exit code {code}")
    print(
        f"memory of the last third over that of the first: {grown:.3f}; {open_fds} descriptors; left: {left}, {stray}"
    )
    return 1 if faults or left or stray or grown > 1.1 or "Traceback" in one.text(0) else 0


def _is_ours(process: Path) -> bool:
    """Return True if it is a judged program of this cache, or a compiler at work in it."""
    cache = str(cache_root())
    try:
        return any(os.readlink(process / link).startswith(cache) for link in ("exe", "cwd"))
    except OSError:
        return False


def main() -> int:
    given = arguments()
    # A shell's background job ignores Ctrl-C, and its children with it: the watcher is ended by that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    master = (ROOT / "module.cpp").read_text()
    if given.soak:
        return soak(master, given.soak, given.seed)
    found = latencies(master, given.saves, given.N)
    print(f"{'seconds after the save':28}  median     least     most   of {given.saves}")
    for what, seconds in found.items():
        print(f"{what:28}  {median(seconds):6.2f}    {min(seconds):6.2f}   {max(seconds):6.2f}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
