"""Sampling of a call that does not end, to find the lines of the student's file that it executes.

Theory of operation. The runner is stopped three times before it is killed. For a stopped thread Linux reports the
program counter and the stack pointer (/proc/PID/task/TID/syscall). The program counter may be in a library, so words at
the top of the stack are tried as return addresses. The checked build has debug information, from which addr2line
(binutils) gets the lines. A word on the stack may be left over from an earlier call, so only lines of the part's
function are used.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

from grader.core import procfs
from grader.source.landmarks import Body

TIMES, PAUSE_S, LOOKUP_S = 3, 0.03, 20.0
STACK_BYTES, MOST_ADDRESSES = 4096, 400


class Samples:
    """Samples of a process that runs `program`. A sample lists one thread's code addresses, the innermost call first.

    Addresses count from the beginning of the program in memory.
    """

    def __init__(self, program: Path) -> None:
        self.program = program
        self.addresses: list[list[int]] = []

    def take(self, pid: int) -> None:
        """Stop a process TIMES times and read the addresses of its first 16 threads. Linux only."""
        with contextlib.suppress(OSError, ValueError):
            base, end = self._mapped(pid)
            for _ in range(TIMES):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(PAUSE_S)
                for thread in procfs.threads(pid, procfs.Excess())[:16]:
                    self._read(pid, thread, base, end)
                os.kill(pid, signal.SIGCONT)
                time.sleep(PAUSE_S)

    def lines(self, body: Body) -> Counter[int]:
        """Return {line number: number of samples in which this line is the innermost one of the function}."""
        every = list(dict.fromkeys(a for sample in self.addresses for a in sample))[:MOST_ADDRESSES]
        known = dict(zip(every, self._named(every), strict=False))
        found = Counter[int]()
        for sample in self.addresses:
            inside = (n for a in sample for n in known.get(a, ()) if body.opened < n <= body.last)
            if (line := next(inside, None)) is not None:
                found[line] += 1
        return found

    def _mapped(self, pid: int) -> tuple[int, int]:
        """Return (first address, end address) of the program in the process's memory."""
        rows = [
            row.split()[0].split("-")
            for row in procfs.lines(f"/proc/{pid}/maps", procfs.Excess())
            if row.rstrip().endswith(str(self.program))
        ]
        if not rows:
            raise ValueError("the program is not mapped")
        return int(rows[0][0], 16), int(rows[-1][1], 16)

    def _read(self, pid: int, thread: int, base: int, end: int) -> None:
        words = procfs.text(f"/proc/{pid}/task/{thread}/syscall").split()
        if len(words) < 3:
            return
        stack, counter = int(words[-2], 16), int(words[-1], 16)
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
        try:
            top = os.pread(memory, STACK_BYTES, stack)
        finally:
            os.close(memory)
        words_of_stack = (int.from_bytes(top[at : at + 8], "little") for at in range(0, len(top) - 7, 8))
        # A return address points behind the call: take the byte before it.
        called = [counter - base, *(word - 1 - base for word in words_of_stack if base < word < end)]
        self.addresses.append([address for address in called if 0 <= address < end - base])

    def _named(self, addresses: list[int]) -> list[list[int]]:
        """Return one list for each address: the lines of the student's file to which it belongs.

        A list has several lines if calls were inlined, the innermost first. Returns [] if addr2line fails.
        """
        if not addresses:
            return []
        command = ["addr2line", "-a", "-i", "-e", str(self.program), *map(hex, addresses)]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=LOOKUP_S).stdout
        except (OSError, subprocess.SubprocessError):
            return []
        groups = re.split(r"^0x[0-9a-f]+\n", answer, flags=re.MULTILINE)[1:]
        return [[int(n) for n in re.findall(r"/module\.cpp:(\d+)", group)] for group in groups]
