"""The command line that puts a program into namespaces of its own (tier A), after bwrap(1)."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

#: Capabilities of a zygote that is root: to give its runners another uid, to end them and to clean up after them.
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
    """Return the prefix for a command that sees only `read` and `write` under their own names and `places` (and the
    writable `changing`) under others. It also gets a bare /dev and an empty /tmp of `scratch_bytes`.

    With `own_processes` it has a process namespace and a /proc of its own. Without it, /proc is missing and the command
    replaces bwrap, so that the caller can read its CPU time. The command also sees `devices`, and those of `facts`
    outside of /proc.
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
    # The device folder's file system has no size limit: writable files go to two that have one.
    line += [*size, "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    line += [*size, "--perms", "1777", "--tmpfs", "/tmp"]
    for folder in dict.fromkeys(
        [
            *(path.parent for path in read),
            *map(os.path.dirname, (*places.values(), *(changing or {}).values())),
        ]
    ):
        # Folders that bwrap creates on the way to a file are otherwise closed to other users.
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
    """Return the options that show a path as it is outside: /bin is a link to usr/bin on many systems and a folder on
    others.

    If a link points outside of all visible paths (an environment kept elsewhere), its target takes its place.
    """
    target = Path(os.path.realpath(path))
    if path.is_symlink() and any(target.is_relative_to(other) for other in read):
        # For a link to a link only the final target must be visible.
        step = path.parent / os.readlink(path)
        return ["--symlink", str(target) if step.is_symlink() else os.readlink(path), str(path)]
    return ["--ro-bind", str(path), str(path)]
