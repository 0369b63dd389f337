"""The judge's reader of a runner's replies (frames), with limits on their sizes and checks of their form.

A native runner gets its inputs and returns its output through shared memory (payload memory), headers through pipes.

Theory of operation. The payload memory is a file without a name (memfd_create) that the judge and one runner have open.
Both read and write it with system calls and do not map it. So the runner's filter can refuse to map files, and a runner
cannot end the judge by SIGBUS. Two bare programs exchange 1.5 MB of inputs and 0.5 MB of output in 0.35 ms this way.
With mapped memory they take 0.34 ms. A pipe takes 0.60 ms, because it allocates each page anew and holds only a part of
the inputs.

The memory holds only this runner's inputs and output, so the runner may write to it at any time. The judge copies an
output once, before its clock stops, and uses that copy only. Later writes have no effect. The judge copies before it
stops the runner. Otherwise a thread could go on computing until the stop reaches it, and would gain that time.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

from grader.runner.runner import FRAME

if sys.platform == "linux":
    import fcntl

HEADER_LIMIT_BYTES = 1 << 20
#: Size of the payload memory. Pages that were never written use no RAM. Larger payloads go through the pipes.
LARGEST_BYTES = 32 << 20
#: Bit in a request's payload length. If it is set, the request's payload is in the payload memory, and the runner must
#: write the reply's payload there, too.
IN_MEMORY = 1 << 63


class RunnerDied(Exception):
    """Raised if no valid reply came: the runner closed its pipe, ran out of time, sent nonsense or filled the disk.

    `timed_out`: True if time ran out. `waited`: True if the wall-clock limit was reached before the CPU limit.
    `nonsense` names the malformed message, `excess` the exceeded limit. Only `grader.runner.session` catches this.
    """

    def __init__(
        self, timed_out: bool = False, nonsense: str = "", excess: str = "", waited: bool = False
    ) -> None:
        super().__init__(nonsense or excess)
        self.timed_out, self.nonsense, self.excess, self.waited = timed_out, nonsense, excess, waited


class Payloads:
    """The judge's end of one runner's payload memory."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd, self.size = fd, size
        self._written = self._most_used = 0

    @classmethod
    def made(cls, most_bytes: int = LARGEST_BYTES) -> Payloads | None:
        """Create a payload memory; None if the system or this Python does not support it."""
        if sys.platform != "linux" or not hasattr(os, "memfd_create"):
            return None
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            fd = os.memfd_create("payloads", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            stack.callback(os.close, fd)
            os.ftruncate(fd, most_bytes)
            # Fix the size and forbid further seals: the runner can neither shrink the memory nor forbid writing to it.
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            stack.pop_all()
            return cls(fd, most_bytes)
        return None

    def put(self, inputs: list[memoryview]) -> bool:
        """Write a request's payload, and zeros over the rest of the previous output. Return False if memory ran out.

        Without the zeros, a runner that writes nothing could pass off an earlier output as a new one.
        """
        count = sum(len(each) for each in inputs)
        self._most_used = max(self._most_used, count)
        rest = memoryview(bytes(max(0, self._written - count)))
        with contextlib.suppress(OSError):
            return os.pwritev(self.fd, [*inputs, rest], 0) == count + len(rest)
        return False

    def take(self, answer: bytearray) -> bool:
        """Fill `answer` with the first bytes of the memory. Return False if the memory is smaller."""
        self._written = len(answer)
        self._most_used = max(self._most_used, len(answer))
        with contextlib.suppress(OSError):
            return os.preadv(self.fd, [answer], 0) == len(answer)
        return False

    def excess_bytes(self) -> int:
        """Return the allocated bytes of the memory beyond the longest payload: the runner used them as workspace."""
        return max(0, 512 * os.fstat(self.fd).st_blocks - self._most_used)

    def close(self) -> None:
        os.close(self.fd)


class Incoming:
    """A reply frame that is being received. Its payload follows on the pipe, or is in `memory` if that is set.

    A payload of more than `limit_bytes` is refused. A zeroed buffer of the expected length, `likely_bytes`, is made
    before the clock starts: for half a megabyte, allocating takes longer than copying the payload into the buffer.
    """

    def __init__(self, limit_bytes: int, likely_bytes: int = 0) -> None:
        self.limit_bytes = limit_bytes
        self.memory: Payloads | None = None
        self._likely = bytearray(b"\0") * likely_bytes
        self.header: dict[str, Any] = {}
        self.payload = bytearray()
        self.complete = False
        self._head = bytearray()
        self._filled = 0
        self._body: memoryview | None = None

    def read_some(self, fd: int) -> None:
        """Read the available bytes. Raises RunnerDied at the end of the pipe or if the frame is malformed."""
        with contextlib.suppress(BlockingIOError):
            # Lengths, header and payload usually arrive together, so make three reads before the caller checks the
            # clock again.
            for _ in range(3):
                if self.complete:
                    break
                if self._body is None:
                    chunk = os.read(fd, self._head_missing())
                    if not chunk:
                        raise RunnerDied
                    self._head += chunk
                    self._open_body()
                else:
                    count = os.readv(fd, [self._body[self._filled :]])
                    if count == 0:
                        raise RunnerDied
                    self._filled += count
                self.complete = self._body is not None and self._filled == len(self._body)

    def _head_missing(self) -> int:
        if len(self._head) < FRAME.size:
            return FRAME.size - len(self._head)
        return FRAME.size + FRAME.unpack_from(self._head)[0] - len(self._head)

    def _open_body(self) -> None:
        """Parse the header once it is complete. Then prepare the payload's buffer, or fill it from `memory`."""
        if len(self._head) < FRAME.size:
            return
        header_bytes, payload_bytes = FRAME.unpack_from(self._head)
        if not 0 < header_bytes <= HEADER_LIMIT_BYTES or payload_bytes > self.limit_bytes:
            raise RunnerDied(nonsense="reply frame")
        if len(self._head) < FRAME.size + header_bytes:
            return
        try:
            self.header = json.loads(bytes(self._head[FRAME.size :]))
        except (ValueError, RecursionError) as error:
            raise RunnerDied(nonsense="reply header") from error
        if not isinstance(self.header, dict):
            raise RunnerDied(nonsense="reply header")
        self.payload = self._likely if len(self._likely) == payload_bytes else bytearray(payload_bytes)
        if self.memory is not None:
            if not self.memory.take(self.payload):
                raise RunnerDied(nonsense="reply payload")
            self._filled = payload_bytes
        self._body = memoryview(self.payload)
