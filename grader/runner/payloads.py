"""Memory through which a native runner gets its inputs and gives its output; the frames stay on the pipes.

Theory of operation. The memory is a file without a name (memfd_create) that the judge and one runner hold open. Both
read and write it with system calls, and neither maps it: the runner's filter goes on refusing to map any file, the
inputs end in the same tensors as those from a pipe, and the judge cannot be stopped by SIGBUS. Two mappings would take
as long (0.35 and 0.34 ms for 1.5 MB in and 0.5 MB out, between bare programs). A pipe takes longer (0.60 ms), since it
allocates each page anew and has room for a part of the inputs.

What the runner's threads do with the memory is theirs to do: it holds the inputs that it was sent and what it answered,
nothing of another runner's. The judge takes an answer out once, before its clock stops, and looks at that copy alone:
whatever is written later is not seen. It does not wait for the runner to be stopped first, since a thread that goes on
computing until the stop reaches it would have that time for nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys

if sys.platform == "linux":
    import fcntl

#: Only what is written to takes memory. What does not fit goes through the pipes.
LARGEST_BYTES = 32 << 20
#: In a request's frame, beside the payload's length: the payload, and the answer's, are in the memory.
IN_MEMORY = 1 << 63


class Payloads:
    """One runner's memory, as the judge holds it."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd, self.size = fd, size
        self._written = self._most_used = 0

    @classmethod
    def made(cls, most_bytes: int = LARGEST_BYTES) -> Payloads | None:
        """None where the system, or what Python was built for, has no such memory."""
        if sys.platform != "linux" or not hasattr(os, "memfd_create"):
            return None
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            fd = os.memfd_create("payloads", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            stack.callback(os.close, fd)
            os.ftruncate(fd, most_bytes)
            # Also where there is no filter: the runner can neither take memory away nor forbid writing to it.
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            stack.pop_all()
            return cls(fd, most_bytes)
        return None

    def put(self, inputs: list[memoryview]) -> bool:
        """Write a request's payload, over all that is left of the last answer: of a runner that writes none, no former
        answer is taken for one. False when there is no memory to be had."""
        count = sum(len(each) for each in inputs)
        self._most_used = max(self._most_used, count)
        rest = memoryview(bytes(max(0, self._written - count)))
        with contextlib.suppress(OSError):
            return os.pwritev(self.fd, [*inputs, rest], 0) == count + len(rest)
        return False

    def take(self, answer: bytearray) -> bool:
        """Fill `answer` with the first bytes of the memory; False when they are not all there."""
        self._written = len(answer)
        self._most_used = max(self._most_used, len(answer))
        with contextlib.suppress(OSError):
            return os.preadv(self.fd, [answer], 0) == len(answer)
        return False

    def excess_bytes(self) -> int:
        """Return the bytes of its pages beyond the longest payload so far. They hold what nobody sent or asked for, and
        a runner can give none of them back."""
        return max(0, 512 * os.fstat(self.fd).st_blocks - self._most_used)

    def close(self) -> None:
        os.close(self.fd)
