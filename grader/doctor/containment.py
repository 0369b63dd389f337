"""Weaknesses of the sandbox around students' code."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from grader.core.errors import KitError, UsageError
from grader.doctor.host import Finding, Host, fail, ok, warn

if TYPE_CHECKING:
    from grader.sandbox import Sandbox

#: Remaining weakness of the weaker sandbox tiers, for a warning. Tier A, the strongest, has none.
_OPEN = {
    "B": "students' code can list the machine's processes and devices, though it cannot use them",
    "C": "students' code can read every file that all users of this machine can read",
}


def findings(host: Host) -> Iterator[Finding]:
    """Yield a finding on each feature of the machine that a sandbox needs."""
    if host.system != "Linux":
        yield fail(
            f"this is {host.system}",
            "the sandbox needs Linux: here students' code has limits on time and memory, but can reach your files",
            "grade on Linux (a virtual machine or a container suffices), or use --trust for code that you trust",
        )
        return
    yield _bubblewrap(host)
    yield from _namespaces(host)
    yield _landlock(host)
    yield _seccomp(host)
    yield _user(host)


def tier() -> Finding:
    """Find the strongest sandbox tier that works for kernels, and try the compiler in it. Return the finding."""
    from grader import sandbox

    try:
        box = sandbox.choose()
    except UsageError as error:
        return fail(
            "no sandbox works here",
            str(error),
            "apply the remedies (->) above, or use --trust for code that you trust",
        )
    if broken := _compiler_fault(box):
        return fail(
            f"sandbox tier {box.tier} works for kernels, but not for the compiler: {broken}",
            "no submission can be built",
            "use the system's own compiler (in /usr), and let all users read its files",
        )
    what = f"sandbox tier {box.tier} works: {', '.join(box.applied)}"
    if box.tier == "A":
        return ok(what)
    return warn(what, _OPEN.get(box.tier, ""), "tier A needs bubblewrap and namespaces: see above")


def _compiler_fault(box: Sandbox) -> str:
    """Compile a small program in the sandbox, as submissions are compiled.

    Return "" if that works, else the last line of the compiler's output or the sandbox's error.
    """
    from grader.backends.native.toolchain import toolchain
    from grader.sandbox import compiling, run_limited
    from grader.sandbox.view import programs_folders, system_paths

    try:
        compiler = str(toolchain().compiler)
        with (
            tempfile.TemporaryDirectory(prefix="gpt149-") as folder,
            compiling.room(box, Path(folder), None) as room,
        ):
            source = room.put("probe.cpp", b"#include <vector>\nstd::vector<float> probe;\n")
            ended = run_limited(
                [compiler, "-c", str(source)],
                cwd=room.folder,
                timeout_s=60.0,
                env={"PATH": os.environ.get("PATH", ""), "TMPDIR": str(room.folder)},
                sandbox=box,
                read=programs_folders(compiler),
                system=system_paths(),
                uid=room.uid,
            )
    except KitError as error:
        return str(error)
    words = ended.output.decode(errors="replace").strip().splitlines() or [f"status {ended.returncode}"]
    return "" if ended.returncode == 0 else words[-1]


def _bubblewrap(host: Host) -> Finding:
    if found := host.which("bwrap"):
        return ok(f"bubblewrap is installed ({found})")
    return warn(
        "bubblewrap is not installed",
        "without bubblewrap, students' code shares the machine's namespaces, so it can see the names of all files and "
        "processes",
        "apt install bubblewrap",
    )


def _namespaces(host: Host) -> Iterator[Finding]:
    """Yield findings on settings of Linux by which only root may make namespaces, or one "ok" without such settings."""
    weak = "warn" if host.euid != 0 else "ok"
    why = "only root can then hide the machine's files, processes and network from students' code"
    forbidding = (
        ("user/max_user_namespaces", 0, "sysctl user.max_user_namespaces=15000"),
        ("kernel/unprivileged_userns_clone", 0, "sysctl kernel.unprivileged_userns_clone=1"),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            1,
            "give bwrap an AppArmor profile with 'userns,', or run "
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    )
    said = False
    for name, value, remedy in forbidding:
        if host.number(f"/proc/sys/{name}") == value:
            said = True
            what = f"{name.replace('/', '.')} is {value}: user namespaces are restricted"
            yield (Finding(weak, what, why, remedy) if weak == "warn" else ok(f"{what} (not for root)"))
    if (
        not said
        and host.read("/proc/self/ns/user") is None
        and not (host.root / "proc/self/ns/user").is_symlink()
    ):
        yield Finding(
            weak,
            "this kernel has no user namespaces",
            why,
            "use a kernel with CONFIG_USER_NS, or grade as root",
        )
    elif not said:
        yield ok("user namespaces are not restricted")


def _landlock(host: Host) -> Finding:
    modules = host.read("/sys/kernel/security/lsm")
    # The file is missing in containers, which do not mount securityfs. A system call reports Landlock's version there.
    known = host.landlock_version() > 0 if modules is None else "landlock" in modules.split(",")
    if known:
        return ok("Landlock is on")
    return warn(
        "Landlock is off",
        "without Landlock, --sanitize does not run; if bubblewrap is missing, too, students' code can read each file "
        "that all users may read",
        "use Linux 5.13 or later, started with 'lsm=landlock,...'",
    )


def _seccomp(host: Host) -> Finding:
    actions = host.read("/proc/sys/kernel/seccomp/actions_avail")
    if actions and "kill" in actions:
        return ok("seccomp filters are available")
    status = host.read("/proc/self/status") or ""
    if "Seccomp_filters:" in status or "\nSeccomp:" in f"\n{status}":
        return ok("seccomp is available")
    return fail(
        "this kernel has no seccomp filters",
        "without these filters, students' code can use the network and start processes",
        "use a kernel with CONFIG_SECCOMP_FILTER",
    )


def _user(host: Host) -> Finding:
    if host.euid == 0:
        return ok("running as root: each runner gets a user id of its own")
    return warn(
        "not running as root",
        "students' code runs under your user id: it may send signals to your processes and, in a weak sandbox, read "
        "your files",
        "grade as root in a container or a virtual machine, or as a user who owns no other files",
    )
