"""The command line of bubblewrap that starts a program in its own namespaces (tier A). Source: bwrap(1)."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

#: Capabilities of a zygote that runs as root: to change its runners' uid, to kill them and to remove their files.
ZYGOTE_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER")


def command(
    program: str,
    *,
    read: Collection[Path],
    places: Mapping[Path, str],
    write: Iterable[Path] = (),
    own_user_namespace: bool,
    own_processes: bool,
    scratch_bytes: int,
    cwd: str,
    devices: Iterable[str] = (),
    facts: Iterable[str] = (),
    changing: Mapping[Path, str] | None = None,
) -> list[str]:
    """Return the words to put before a command, which then sees only these files, a bare /dev and an empty /tmp.

    Args:
        read, write: paths that it sees under their own names, `write` with the right to write.
        places, changing: outside paths with the names that they have inside, `changing` with the right to write.
        own_user_namespace: True unless the caller is root: bwrap then needs a user namespace.
        own_processes: give it a process namespace and /proc. Otherwise it has no /proc, and it replaces the process of
            bwrap, so that the caller can read its CPU time.
        scratch_bytes: size of /tmp and of /dev/shm.
        devices, facts: device files, and files about the machine. Those of `facts` in /proc are left out.
    """
    line = [program, "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if own_processes:
        line += ["--unshare-pid", "--proc", "/proc"]
    if own_user_namespace:
        line.append("--unshare-user")
    else:
        line += ["--cap-drop", "ALL"]
        for capability in ZYGOTE_CAPABILITIES:
            line += ["--cap-add", capability]
    line += ["--new-session", "--hostname", "runner", "--dev", "/dev"]
    size = ["--size", str(scratch_bytes)]
    for device in devices:
        line += ["--dev-bind", device, device]
    for path in facts:
        if not path.startswith("/proc/"):
            line += ["--ro-bind-try", path, path]
    # /dev would be writable without a limit of size: make it read-only. /dev/shm and /tmp are writable up to a limit.
    line += [*size, "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    line += [*size, "--perms", "1777", "--tmpfs", "/tmp"]
    for folder in dict.fromkeys(
        [
            *(path.parent for path in read),
            *map(os.path.dirname, (*places.values(), *(changing or {}).values())),
        ]
    ):
        # Without --dir, bwrap creates the folders above a file closed to other users.
        line += ["--dir", str(folder)]
    for path in read:
        line += _seen(path, read)
    for outside, inside in places.items():
        line += ["--ro-bind", str(outside), inside]
    for outside, inside in (changing or {}).items():
        line += ["--bind", str(outside), inside]
    for path in write:
        line += ["--bind", str(path), str(path)]
    return [*line, "--remount-ro", "/", "--chdir", cwd, "--"]


def _seen(path: Path, read: Collection[Path]) -> list[str]:
    """Return the options that make a path visible: a link as a link (/bin on many systems), else a file or folder.

    If a link's target is not visible itself (an environment elsewhere, say), the target appears in the link's place.
    """
    target = Path(os.path.realpath(path))
    if path.is_symlink() and any(target.is_relative_to(other) for other in read):
        # For a link to a link, link to the final target: the link in between may be invisible.
        step = path.parent / os.readlink(path)
        return ["--symlink", str(target) if step.is_symlink() else os.readlink(path), str(path)]
    return ["--ro-bind", str(path), str(path)]
