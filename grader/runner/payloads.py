"""Memory through which a native runner gets its inputs and gives its output; the frames stay on the pipes.

Theory of operation. The memory is a file without a name (memfd_create) that the judge and one runner hold open. Both
read and write it with system calls, and neither maps it. So the runner's filter can still refuse to map any file.
Inputs reach the same tensors as from a pipe, and SIGBUS cannot stop the judge. Two mappings would take as long (0.35
and 0.34 ms for 1.5 MB in and 0.5 MB out, between bare programs). A pipe takes longer (0.60 ms), since it allocates each
page anew and has room for a part of the inputs.

The runner's threads may do anything with the memory: it holds only this runner's inputs and answer. The judge copies an
answer once, before its clock stops, and looks at that copy only. Later writes are not seen. The judge does not stop the
runner first: a thread that computes until the stop reaches it would gain that time.
"""

from __future__ import annotations

import contextlib
import os
import sys

if sys.platform == "linux":
    import fcntl

#: Only written pages take memory. Larger payloads go through the pipes.
LARGEST_BYTES = 32 << 20
#: Bit in a frame's payload length: the payload, and the answer's, are in the memory.
IN_MEMORY = 1 << 63


class Payloads:
    """One runner's memory, as the judge holds it."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd, self.size = fd, size
        self._written = self._most_used = 0

    @classmethod
    def made(cls, most_bytes: int = LARGEST_BYTES) -> Payloads | None:
        """Return a new memory; None if the system or this Python does not support it."""
        if sys.platform != "linux" or not hasattr(os, "memfd_create"):
            return None
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            fd = os.memfd_create("payloads", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            stack.callback(os.close, fd)
            os.ftruncate(fd, most_bytes)
            # Sealed even without a filter: the runner can neither shrink the memory nor forbid writing to it.
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            stack.pop_all()
            return cls(fd, most_bytes)
        return None

    def put(self, inputs: list[memoryview]) -> bool:
        """Write a request's payload, and zeros over the rest of the last answer. False if no memory is left.

        Without the zeros, a runner that writes no answer could pass off an earlier one.
        """
        count = sum(len(each) for each in inputs)
        self._most_used = max(self._most_used, count)
        rest = memoryview(bytes(max(0, self._written - count)))
        with contextlib.suppress(OSError):
            return os.pwritev(self.fd, [*inputs, rest], 0) == count + len(rest)
        return False

    def take(self, answer: bytearray) -> bool:
        """Fill `answer` with the first bytes of the memory; False if there are fewer."""
        self._written = len(answer)
        self._most_used = max(self._most_used, len(answer))
        with contextlib.suppress(OSError):
            return os.preadv(self.fd, [answer], 0) == len(answer)
        return False

    def excess_bytes(self) -> int:
        """Return the bytes of pages beyond the longest payload so far.

        No request or answer used them, and a runner cannot free them.
        """
        return max(0, 512 * os.fstat(self.fd).st_blocks - self._most_used)

    def close(self) -> None:
        os.close(self.fd)
