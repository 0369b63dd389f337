"""Weaknesses of the sandbox around students' code."""

from __future__ import annotations

from collections.abc import Iterator

from grader.core.errors import UsageError
from grader.doctor.host import Finding, Host, fail, ok, warn

#: Weakness that remains with a tier, in words.
_OPEN = {
    "B": "code sees the machine's processes and devices by name, though it cannot use them",
    "C": "code can read every file that all users of this machine can read",
}


def findings(host: Host) -> Iterator[Finding]:
    """Yield findings on the parts of a sandbox. Only `tier` tries the whole sandbox."""
    if host.system != "Linux":
        yield fail(
            f"this is {host.system}",
            "only Linux has what confines strangers' code; limits on time and memory are all there is here",
            "grade on Linux (a virtual machine or a container will do), or use --trust for code that you trust",
        )
        return
    yield _bubblewrap(host)
    yield from _namespaces(host)
    yield _landlock(host)
    yield _seccomp(host)
    yield _user(host)


def tier() -> Finding:
    """Find the strongest sandbox that works on this machine, by trying each."""
    from grader import sandbox

    try:
        box = sandbox.choose()
    except UsageError as error:
        return fail(
            "no sandbox works here",
            str(error),
            "mend what is said above, or use --trust for code that you trust",
        )
    what = f"sandbox tier {box.tier} works: {', '.join(box.applied)}"
    if box.tier == "A":
        return ok(what)
    return warn(what, _OPEN.get(box.tier, ""), "install bubblewrap where namespaces are allowed")


def _bubblewrap(host: Host) -> Finding:
    if found := host.which("bwrap"):
        return ok(f"bubblewrap is installed ({found})")
    return warn(
        "bubblewrap is not installed",
        "without it students' code shares the machine's namespaces: it is locked out of files and network, but sees "
        "more than it needs",
        "apt install bubblewrap",
    )


def _namespaces(host: Host) -> Iterator[Finding]:
    """Yield findings on settings of the kernel and of distributions that keep a plain user from making namespaces."""
    weak = "warn" if host.euid != 0 else "ok"
    why = "a plain user then cannot give students' code file systems, processes and a network of its own"
    forbidding = (
        ("user/max_user_namespaces", 0, "sysctl user.max_user_namespaces=15000"),
        ("kernel/unprivileged_userns_clone", 0, "sysctl kernel.unprivileged_userns_clone=1"),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            1,
            "an AppArmor profile for bwrap with 'userns,', or "
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
    # The list is in securityfs, which containers lack. If it cannot be read, the kernel itself is asked.
    known = host.landlock_version() > 0 if modules is None else "landlock" in modules.split(",")
    if known:
        return ok("Landlock is on")
    return warn(
        "Landlock is off",
        "without it --sanitize does not run. Without bubblewrap as well, only their modes protect the machine's files",
        "a kernel from 5.13 on, started with 'lsm=landlock,...'",
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
        "nothing then keeps students' code from the network and from starting processes",
        "use a kernel with CONFIG_SECCOMP_FILTER",
    )


def _user(host: Host) -> Finding:
    if host.euid == 0:
        return ok("running as root: each runner gets a user id of its own")
    return warn(
        "not running as root",
        "runners have your user id: processes and, without a stronger sandbox, your files are theirs to reach",
        "grade in a container or a virtual machine as root, or as a user who owns nothing else",
    )
