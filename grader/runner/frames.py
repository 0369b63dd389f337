"""The judge's reader of a runner's replies (frames), with limits on their sizes and checks of their form."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grader.runner.payloads import Payloads

#: Start of a frame: the lengths of header (u32) and payload (u64), little endian. See grader/runner/runner.py.
FRAME = struct.Struct("<IQ")
HEADER_LIMIT_BYTES = 1 << 20


class RunnerDied(Exception):
    """Raised if no proper reply came: the runner closed its pipe, ran out of time, sent nonsense or filled the disk.

    Only `grader.runner.session` catches it.
    """

    def __init__(
        self, timed_out: bool = False, nonsense: str = "", excess: str = "", waited: bool = False
    ) -> None:
        super().__init__(nonsense or excess)
        self.timed_out, self.nonsense, self.excess, self.waited = timed_out, nonsense, excess, waited


class Incoming:
    """A reply frame that is being received. Its payload follows on the pipe, or is in `memory` if that is set.

    A payload of more than `limit_bytes` is refused. A buffer of `likely_bytes`, the expected length, is allocated and
    written at once: allocating half a megabyte while the clock runs would take longer than filling it.
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
            # Lengths, header and payload usually arrive together: three reads. The caller must check the clock then.
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
