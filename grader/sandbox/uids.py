"""User ids that nobody else on the machine has, for as long as they are needed."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from collections.abc import Iterator

from grader.core.errors import KitError

#: Between the people (below) and the services (above) of the usual systems; within what a container maps.
FIRST_UID, BLOCKS, BLOCK = 50_000, 500, 16


@contextlib.contextmanager
def claim() -> Iterator[range]:
    """A block of user ids for this process alone.

    The claim is the name of an abstract socket: the kernel gives it to one process and takes it back at its end,
    however it ends. Raises KitError when all are taken.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mark:
        for block in random.sample(range(BLOCKS), BLOCKS):
            first = FIRST_UID + BLOCK * block
            try:
                mark.bind(f"\0gpt149-uid-{first}")
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                raise
            yield range(first, first + BLOCK)
            return
    raise KitError("too many judges run on this machine: no user id is left for another runner")
