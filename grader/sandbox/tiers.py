"""The sandbox tiers: their locks, and the choice of the strongest tier that passes a trial on this machine.

Tier A starts programs in their own namespaces by bubblewrap. Source: bwrap(1).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import platform
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from grader.core.errors import KitError, UsageError
from grader.core.places import ROOT
from grader.sandbox import lock, seccomp, view
from grader.sandbox.limits import Limits

#: Capabilities of a zygote (the process that forks runners with torch) if it runs as root. It needs them to change
#: runners' user ids, to kill runners and to remove their files.
ZYGOTE_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER")


def _seen(path: Path, read: Collection[Path]) -> list[str]:
    """Return bwrap's options that make a path visible.

    A symbolic link (/bin on many systems) stays a link if its target lies in one of the visible paths `read`. Else the
    target appears in its place.
    """
    target = Path(os.path.realpath(path))
    if path.is_symlink() and any(target.is_relative_to(other) for other in read):
        # For a link to a link, link to the final target: the link in between may be invisible.
        step = path.parent / os.readlink(path)
        return ["--symlink", str(target) if step.is_symlink() else os.readlink(path), str(path)]
    return ["--ro-bind", str(path), str(path)]


Tier = Literal["A", "B", "C", "D"]
TIERS: tuple[Tier, ...] = ("A", "B", "C", "D")
LOCK = Path(lock.__file__)
#: Folder in which a process in tier A sees those files of the judge that the process needs.
INSIDE = "/run/gpt149"
PROBE_TIMEOUT_S = 20.0
#: User ids for runners: BLOCKS blocks of BLOCK ids, from FIRST_UID on. On usual systems they are above the ids of
#: people, below the ids of dynamic services, and within the range of a container.
FIRST_UID, BLOCKS, BLOCK = 50_000, 500, 16


@dataclass(frozen=True)
class Sandbox:
    """Settings of a sandbox. Plain data, so that it can be sent to a worker process.

    `bwrap` is the path of bubblewrap in tier A, else None. `own_user_namespace`: True if bubblewrap also makes a user
    namespace, which it needs without root rights. `landlock` is the version of Landlock in this Linux; 0 if Landlock is
    not used. `own_uid`: True if each runner gets a user id of its own. `seccomp`: True if system calls are filtered.
    """

    tier: Tier
    bwrap: str | None = None
    own_user_namespace: bool = False
    landlock: int = 0
    seccomp: bool = False
    own_uid: bool = False

    @property
    def applied(self) -> tuple[str, ...]:
        """Names of the sandbox's protections, as in `result.json`."""
        words = {
            "bubblewrap": self.bwrap is not None,
            "namespaces": self.bwrap is not None,
            "no network": self.seccomp,
            "own files only": self.hides_files,
            "landlock": self.landlock > 0,
            "seccomp": self.seccomp,
            "own uid": self.own_uid,
            "rlimits": True,
            "wall limit": True,
        }
        return tuple(word for word, holds in words.items() if holds)

    def describe(self) -> dict[str, object]:
        return {"tier": self.tier, "applied": list(self.applied), "limits": asdict(Limits())}

    @property
    def hides_files(self) -> bool:
        """True if namespaces or Landlock hide files. Otherwise only owners and permissions protect them."""
        return bool(self.bwrap or self.landlock)

    @property
    def locks(self) -> bool:
        """True if the sandbox has locks besides limits, as in all tiers except D."""
        return self.tier != "D"

    def runner_lock(
        self, uid: int | None, read: Iterable[str], write: Iterable[str], *, card: bool = False
    ) -> dict[str, Any] | None:
        """Return a runner's lock for `sandbox.lock.enter`; None in tier D.

        `read` and `write` are the files of this runner, besides the system and Python. `card`: True if the runner may
        use a GPU.
        """
        if not self.locks:
            return None
        files = {
            "read": [*_readable(), *view.DEVICES, *view.FACTS, "/proc/self", *read],
            "run": [],
            "write": [*write, "/dev/null"],
        }
        if card:
            files["read"] += view.CARD_FACTS
            # CUDA's driver writes the names of its threads to /proc/self/task, and aborts if it cannot.
            files["write"] += [*view.card_devices(), "/proc/self/task"]
        return self._lock(uid, files, seccomp.runner_filter(platform.machine(), card))

    def compiler_lock(
        self,
        uid: int | None,
        read: Iterable[str],
        write: Iterable[str],
        *,
        card: bool = False,
        system: Iterable[str] | None = None,
    ) -> dict[str, Any]:
        """Return the lock of a compiler, which may run all programs that it may read, such as the linker.

        `read` and `write` are the files of this build. `system` replaces the folders of the system and of Python.
        `card`: True if the compiler may use a GPU.
        """
        run = [*(_readable() if system is None else system), *read]
        files = {"read": [*view.DEVICES], "run": run, "write": [*write, "/dev/null"]}
        if card:
            files["read"] += [*view.FACTS, *view.CARD_FACTS, "/proc/self"]
            files["write"] += [*view.card_devices(), "/proc/self/task"]
        return self._lock(uid, files, seccomp.compiler_filter(platform.machine(), card))

    def _lock(
        self, uid: int | None, files: Mapping[str, list[str]], calls: seccomp.Filter | None
    ) -> dict[str, Any]:
        described = None
        if self.seccomp and calls is not None:
            described = {**asdict(calls), "program": calls.program.hex()}
        return {
            "uid": uid if self.own_uid else None,
            "files": files if self.landlock else None,
            "calls": described,
        }

    def enclosed(
        self,
        command: Sequence[str],
        *,
        read: Iterable[Path] = (),
        write: Iterable[Path] = (),
        places: Mapping[Path, str] | None = None,
        changing: Mapping[Path, str] | None = None,
        own_processes: bool = True,
        cwd: str = "/tmp",
        card: bool = False,
        system: Iterable[Path] | None = None,
    ) -> list[str]:
        """Return the command line that runs a command in namespaces in tier A; in other tiers the command itself.

        In the namespaces the command sees only some files, a bare /dev and an empty /tmp.

        Args:
            read, write: paths that the command sees under their own names. It may write to those in `write`.
            places, changing: {path: its name inside the namespaces}. The command may only read those in `places`, and
                may write to those in `changing`.
            own_processes: True for a process namespace and /proc. Otherwise the command has no /proc, and it replaces
                the process of bwrap, so that the caller can read its CPU time.
            card: True to show the devices of a GPU, and the files of CARD_FACTS that are not in /proc.
            system: paths that the command sees in place of the system and Python, besides the interpreter that
                `lock.py` needs.
        """
        if self.bwrap is None:
            return list(command)
        places, changing = places or {}, changing or {}
        known = map(Path, _readable()) if system is None else (*system, *view.interpreter_paths())
        # Leave out paths inside other visible folders: these folders are read-only, so bwrap could not make symbolic
        # links in them.
        seen = view.outermost([*known, *read])
        line = [self.bwrap, "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
        if own_processes:
            line += ["--unshare-pid", "--proc", "/proc"]
        if self.own_user_namespace:
            line.append("--unshare-user")
        else:
            line += ["--cap-drop", "ALL"]
            for capability in ZYGOTE_CAPABILITIES:
                line += ["--cap-add", capability]
        line += ["--new-session", "--hostname", "runner", "--dev", "/dev"]
        for device in view.card_devices() if card else ():
            line += ["--dev-bind", device, device]
        for path in view.CARD_FACTS if card else ():
            if not path.startswith("/proc/"):
                line += ["--ro-bind-try", path, path]
        # /dev would be writable without a limit of size: make it read-only. /dev/shm and /tmp are writable up to a
        # limit.
        size = ["--size", str(Limits.scratch_bytes), "--perms", "1777"]
        line += [*size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev", *size, "--tmpfs", "/tmp"]
        inner = map(os.path.dirname, (*places.values(), *changing.values()))
        for folder in dict.fromkeys([*(str(path.parent) for path in seen), *inner]):
            # Without --dir, bwrap would create parent folders that other users cannot enter.
            line += ["--dir", folder]
        for path in seen:
            line += _seen(path, seen)
        for outside, inside in places.items():
            line += ["--ro-bind", str(outside), inside]
        for outside, inside in (*changing.items(), *((path, str(path)) for path in write)):
            line += ["--bind", str(outside), inside]
        return [*line, "--remount-ro", "/", "--chdir", cwd, "--", *command]

    def protect(self, *paths: Path) -> None:
        """In tier C, remove other users' permissions for these paths: no other layer of this tier hides files."""
        if self.hides_files or not self.own_uid:
            return
        for path in paths:
            with contextlib.suppress(OSError):
                path.chmod(stat.S_IMODE(path.stat().st_mode) & 0o700)

    def check_within_reach(self, folder: Path) -> None:
        """Raise KitError unless the runners' user ids can enter all folders above `folder`.

        Otherwise a runner could not open its files, and this would look like the student's fault.
        """
        if not self.own_uid or self.bwrap:
            return
        for place in folder.resolve().parents:
            if not place.stat().st_mode & stat.S_IXOTH:
                raise KitError(
                    f"students' code has user ids that may not enter {place}, in which {folder} lies: "
                    "set TMPDIR to a folder that all users may enter, such as /tmp"
                )

    @contextlib.contextmanager
    def claimed_uids(self) -> Iterator[range | None]:
        """Yield user ids for the runners of one zygote or the compilers of one build.

        Yield None if the sandbox does not change user ids.
        """
        if not self.own_uid:
            yield None
            return
        with claimed_block() as block:
            yield block


#: Tier D, only limits: for a student's own run, in which code and judge belong to the same user.
OPEN = Sandbox("D")


def _readable() -> list[str]:
    return [str(path) for path in (*view.system_paths(), *view.python_paths())]


# ---- the choice


def choose(wanted: str | None = None, trust: bool = False) -> Sandbox:
    """Return the strongest tier that works on this machine, or the tier `wanted` ("A" to "D").

    Tiers A to C are tested before use. `trust`: True if the caller trusts the code, so that tier D suffices.

    Raises UsageError if tier `wanted` does not work on this machine, or if tier D would be used without `trust`.
    """
    if wanted is not None and wanted not in TIERS:
        raise UsageError(f"there is no sandbox tier '{wanted}': choose A, B, C or D")
    reasons = []
    for tier in TIERS[:-1] if wanted is None else (wanted,):
        if tier == "D":
            break
        found, reason = _tried(tier)
        if found is not None:
            return found
        reasons.append(f"{tier}: {reason}")
    if wanted not in (None, "D"):
        raise UsageError(
            f"sandbox tier {wanted} does not work on this machine ({'; '.join(reasons)}). Leave out --tier to use the "
            "strongest tier that works"
        )
    if not trust:
        why = "; ".join(reasons) or "tier D only limits time and memory"
        raise UsageError(
            f"no sandbox for untrusted code on this machine ({why}). Install bubblewrap, or pass --trust for code "
            "that you trust"
        )
    return OPEN


def of_file(source: Path) -> Sandbox:
    """Return tier D for the user's own file, and the strongest tier that works here for other files.

    A file is the user's own if this user owns it and it is not a link. It must also lie directly in the working
    directory, the kit's folder or a lab's folder. Other files may be somebody else's code: a teacher opens a student's
    file, a student a friend's.
    """
    folder = source.absolute().parent
    places = [Path.cwd(), ROOT, *(ROOT / "labs").glob("*/")]
    with contextlib.suppress(OSError):
        is_here = any(folder.samefile(place) for place in places)
        if is_here and not source.is_symlink() and source.stat().st_uid == os.geteuid():
            return OPEN
    return choose(trust=True)


@functools.cache
def _tried(tier: str) -> tuple[Sandbox | None, str]:
    """Return (the sandbox of a tier, "") if it confines a test program on this machine; else (None, the reason)."""
    if sys.platform != "linux":
        return None, "only Linux has it"
    if seccomp.runner_filter(platform.machine()) is None:
        return None, f"no table of system calls for {platform.machine()}"
    reason = ""
    for candidate in _candidates(tier):
        reason = _escape(candidate)
        if not reason:
            return candidate, ""
    return None, reason or _lacks(tier)


def _candidates(tier: str) -> Iterator[Sandbox]:
    """Yield the sandboxes of this tier that may start on this machine, the best first."""
    is_root, landlock = os.geteuid() == 0, lock.landlock_version()
    if tier == "A" and (bwrap := shutil.which("bwrap")):
        if is_root:
            yield Sandbox("A", bwrap, landlock=landlock, seccomp=True, own_uid=True)
        yield Sandbox("A", bwrap, own_user_namespace=True, landlock=landlock, seccomp=True)
    if tier == "B" and landlock:
        if is_root:
            yield Sandbox("B", landlock=landlock, seccomp=True, own_uid=True)
        yield Sandbox("B", landlock=landlock, seccomp=True)
    if tier == "C" and is_root:
        yield Sandbox("C", seccomp=True, own_uid=True)


def _lacks(tier: str) -> str:
    return {
        "A": "bubblewrap is not installed",
        "B": "this Linux has no Landlock",
        "C": "only root can give a runner another user",
    }[tier]


def _escape(sandbox: Sandbox) -> str:
    """Run a test program that tries to escape from the sandbox. Return the weakness that was found; "" for none."""
    with tempfile.TemporaryDirectory(prefix="gpt149-probe-") as folder, sandbox.claimed_uids() as block:
        os.chmod(folder, 0o711)
        closed, open_to_all = Path(folder, "closed"), Path(folder, "open")
        for secret, mode in ((closed, 0o600), (open_to_all, 0o644)):
            secret.write_text("secret")
            secret.chmod(mode)
        runner_lock = sandbox.runner_lock(block[0] if block else None, [], [])
        limits = {**asdict(Limits()), "processes": None}
        script = f"{INSIDE}/lock.py" if sandbox.bwrap else str(LOCK)
        spec = json.dumps({"lock": runner_lock, "limits": limits})
        needed = view.torch_file()
        command = [sys.executable, "-I", "-S", script, spec, "--probe", str(closed), str(open_to_all), needed]
        try:
            ended = subprocess.run(
                sandbox.enclosed(command, places={LOCK: f"{INSIDE}/lock.py"}),
                capture_output=True,
                text=True,
                timeout=PROBE_TIMEOUT_S,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    said = ended.stdout.splitlines()
    if not said:
        return (ended.stderr.strip().splitlines() or ["it does not start"])[-1]
    readable = json.loads(said[0])["readable"]
    if str(closed) in readable or (str(open_to_all) in readable and sandbox.hides_files):
        return "it does not hide files"
    if needed and needed not in readable:
        return f"other users cannot read {needed}"
    # The filter kills a program that opens a socket. bwrap reports that signal as exit code 128 + number.
    if ended.returncode not in (-signal.SIGSYS, 128 + signal.SIGSYS):
        return "it does not refuse the network"
    return ""


@contextlib.contextmanager
def claimed_block() -> Iterator[range]:
    """Yield a block of user ids that no other judge on the machine uses.

    The process claims the block by the name of an abstract socket. Linux gives a name to one process only, and frees it
    when that process ends, even by a signal. Raises KitError if all blocks are taken.
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
    raise KitError(
        "no user id is left for a runner, because too many judges run on this machine: wait until one ends"
    )
