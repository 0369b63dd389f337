"""Checks for causes of unsteady times, and for too little memory or disk space.

A round times the submission and the reference in turn, each twice. So most of these causes slow both programs, or make
the reference's two times differ: verdicts become less certain ("undecided", "unfit"), not unfair. The causes are
reported because the machine's owner can remove them. Randomised addresses (ASLR) also make times vary, but they are not
reported, because the sandbox relies on them. The confidence interval covers their effect: each round has new processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path, PurePosixPath

from grader.assignment.loading import load
from grader.assignment.records import Assignment, Part
from grader.backends.native.nativehost import NativeHost
from grader.core import machine
from grader.core.errors import KitError
from grader.core.machine import timings_at_once
from grader.core.quantities import GIB, size_text, whole
from grader.core.results import Timing
from grader.doctor.host import Finding, Host, fail, ok, warn
from grader.judge.timing import measure
from grader.runner import placement
from grader.runner.calls import Sample
from grader.runner.session import Session

LOAD_PER_CORE = 0.25
LEAST_MEMORY_BYTES, LEAST_SHM_BYTES, LEAST_DISK_BYTES = 6 * GIB, 64 << 20, 4 * GIB
"""Free bytes below which a warning is given: of memory, of /dev/shm, and of the disks for scratch and build cache."""
STEAL_SHARE = 0.01
WATCHED_S = 0.2


def findings(host: Host, sleep: Callable[[float], None] = time.sleep) -> Iterator[Finding]:
    """Yield findings on causes of unsteady times, on free memory and on free disk space.

    Takes `WATCHED_S` seconds on a virtual machine, which is observed for that time by `sleep`.
    """
    yield _cores(host)
    yield _side_by_side(host)
    # A check returns None if the system does not report the fact that is checked.
    for look in (_quota, _smt, _governor, _boost, _load, _swap, _huge_pages, _memory, _shared_memory):
        found = look(host)
        if found is not None:
            yield found
    yield from _virtual(host, sleep)
    yield from _disks(host)


def _either(fine: bool, what: str, trouble: str, why: str, advice: str) -> Finding:
    """Return an "ok" finding with the text `what` if `fine`, else a warning `trouble` with reason and remedy."""
    return ok(what) if fine else warn(trouble, why, advice)


def _cores(host: Host) -> Finding:
    count = len(host.cpus)
    if count == 0 or count >= host.threads:
        return ok(f"{count or 'unknown'} cores for {host.threads} threads")
    if count == 1:
        return warn(
            "one core",
            "a parallel kernel's threads take turns on this core, so the kernel is not faster than a serial one; while "
            "a submission of a class is timed, nothing else is judged",
            "grade on a machine with two cores or more",
        )
    return warn(
        f"{count} cores for {host.threads} threads",
        "parallel kernels and their reference are timed with more threads than cores: verdicts stay fair, but times "
        "vary more, and a study of scaling shows little",
        f"use a machine with {host.threads} cores, or set fewer threads in the assignment's defaults",
    )


def _side_by_side(host: Host) -> Finding:
    """Return a finding on the number of timings that run at once when a class is graded. It is always "ok"."""
    most = timings_at_once(len(host.cpus))
    if most == 0:
        return ok("timings of a class have the machine to themselves, one at a time")
    many = (
        f"{most} serial timings run side by side, a core each" if most > 1 else "a serial timing has one core"
    )
    return ok(f"{many}; timings of parts with threads have the machine to themselves")


def _quota(host: Host) -> Finding | None:
    """Return a finding on the lowest CPU quota of this process's control groups (cgroups); None without a quota."""
    limit = min((share for share in _shares(host)), default=None)
    if limit is None:
        return None
    what = f"the control group allows {limit:.3g} cores of CPU time"
    return _either(
        limit >= max(len(host.cpus), 1),
        what,
        what,
        "Linux stops a group that has used up its share, for the rest of each 0.1 s: wall times vary",
        "start the container without a CPU quota (docker: no --cpus; use --cpuset-cpus)",
    )


def _shares(host: Host) -> Iterator[float]:
    """Yield the CPU quota, in cores, of each control group (cgroup) that contains this process and has a quota."""
    for line in (host.read("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        place = PurePosixPath(path or "/")
        for above in (place, *place.parents):
            inside = str(above).strip("/")
            if not controllers:
                words = (host.read(f"/sys/fs/cgroup/{inside}/cpu.max") or "").split()
                if len(words) == 2 and (quota := whole(words[0])) is not None and (period := whole(words[1])):
                    yield quota / period
                continue
            for root in ("cpu,cpuacct", "cpu"):
                quota = host.number(f"/sys/fs/cgroup/{root}/{inside}/cpu.cfs_quota_us")
                period = host.number(f"/sys/fs/cgroup/{root}/{inside}/cpu.cfs_period_us")
                if quota and quota > 0 and period:
                    yield quota / period


def _smt(host: Host) -> Finding | None:
    active = host.number("/sys/devices/system/cpu/smt/active")
    if active is None:
        return None
    return _either(
        active == 0,
        "no simultaneous multithreading",
        "simultaneous multithreading is on",
        "two hardware threads share one core: a process on the other thread makes CPU times up to a third longer",
        "echo off > /sys/devices/system/cpu/smt/control (as root, while grading)",
    )


def _governor(host: Host) -> Finding | None:
    governors = set(host.glob("/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"))
    if not governors:
        return None
    return _either(
        governors == {"performance"},
        "frequency governor: performance",
        f"frequency governor: {', '.join(sorted(governors))}",
        "the clock changes with the load, so short kernels run at a lower frequency than long ones",
        "cpupower frequency-set -g performance (as root)",
    )


def _boost(host: Host) -> Finding | None:
    boost = host.number("/sys/devices/system/cpu/cpufreq/boost")
    no_turbo = host.number("/sys/devices/system/cpu/intel_pstate/no_turbo")
    if boost is None and no_turbo is None:
        return None
    intel = no_turbo == 0
    return _either(
        boost != 1 and not intel,
        "turbo frequencies are off",
        "turbo frequencies are on",
        "a core is faster while the others are idle, and slower when it is hot: equal runs take unequal times",
        "echo 1 > /sys/devices/system/cpu/intel_pstate/no_turbo"
        if intel
        else "echo 0 > /sys/devices/system/cpu/cpufreq/boost",
    )


def _load(host: Host) -> Finding | None:
    words = (host.read("/proc/loadavg") or "").split()
    if not words:
        return None
    load, cores = float(words[0]), max(len(host.cpus), 1)
    return _either(
        load <= LOAD_PER_CORE * cores,
        f"load {load:.2f}",
        f"load {load:.2f} on {cores} cores",
        "other programs compute here: parallel kernels wait for cores, and all kernels share caches with them",
        "grade when the machine is idle, or give the run a machine of its own",
    )


def _swap(host: Host) -> Finding | None:
    memory = host.fields("/proc/meminfo")
    if "SwapTotal" not in memory:
        return None
    used_kb = memory["SwapTotal"] - memory.get("SwapFree", 0)
    return _either(
        used_kb <= 0,
        "no swap in use",
        f"{size_text(used_kb * 1024)} of swap in use",
        "a timed call may wait while swapped memory is read back, and memory limits do not count swapped memory",
        "run 'swapoff -a' as root, or use a machine with more memory",
    )


def _huge_pages(host: Host) -> Finding | None:
    modes = host.read("/sys/kernel/mm/transparent_hugepage/enabled")
    if modes is None:
        return None
    return _either(
        "[always]" not in modes,
        "transparent huge pages only on request",
        "transparent huge pages: always",
        "the kernel gives huge pages to some runs and not to others: times and peak memory of equal kernels differ",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    )


def _memory(host: Host) -> Finding | None:
    available_kb = host.fields("/proc/meminfo").get("MemAvailable")
    if available_kb is None:
        return None
    limits = [
        value
        for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
        if (value := host.number(path)) is not None
    ]
    usable = min([available_kb * 1024, *limits])
    what = f"{size_text(usable)} of memory available"
    return _either(
        usable >= LEAST_MEMORY_BYTES,
        what,
        what,
        "a compiler may need 1.6 GiB and a runner its limit of 4 GiB: with less, honest submissions can be killed",
        "end other programs, grade with --jobs 1, or use a larger machine",
    )


def _shared_memory(host: Host) -> Finding | None:
    free = host.free_bytes(host.root / "dev/shm")
    if free is None or not (host.root / "dev/shm").is_dir():
        return None
    what = f"{size_text(free)} free in /dev/shm"
    return _either(
        free >= LEAST_SHM_BYTES,
        what,
        what,
        "the judge, OpenMP and torch keep shared memory there: if it is full, submissions cannot be judged",
        "start the container with a larger /dev/shm (docker: --shm-size=256m)",
    )


def _virtual(host: Host, sleep: Callable[[float], None]) -> Iterator[Finding]:
    """Yield a finding on the share of CPU time that a virtual machine loses to others; none on a physical machine."""
    flags = next(
        (line for line in (host.read("/proc/cpuinfo") or "").splitlines() if line.startswith("flags")), ""
    )
    if "hypervisor" not in flags.split():
        return
    before = _ticks(host)
    if before:
        sleep(WATCHED_S)
    after = _ticks(host)
    total = sum(after) - sum(before)
    stolen = (after[7] - before[7]) / total if total > 0 and len(after) > 7 and len(before) > 7 else 0.0
    since_start = after[7] / sum(after) if len(after) > 7 and sum(after) else 0.0
    yield _either(
        max(stolen, since_start) <= STEAL_SHARE,
        "a virtual machine that loses almost no CPU time to others",
        f"a virtual machine that lost {max(stolen, since_start):.1%} of its CPU time to others",
        "its host runs other guests on the same cores: wall times vary, and CPU times include time of other guests",
        "use a machine with cores of its own, or grade at a quieter hour",
    )


def _ticks(host: Host) -> list[int]:
    """Return clock ticks since the start of the system, summed over all cores; [] if they are not reported.

    The list has up to eight numbers: user, nice, system, idle, iowait, irq, softirq, steal.
    """
    for line in (host.read("/proc/stat") or "").splitlines():
        if line.startswith("cpu "):
            return [int(word) for word in line.split()[1:9]]
    return []


def _disks(host: Host) -> Iterator[Finding]:
    for what, place in (("scratch", host.scratch), ("the build cache", host.cache)):
        free = host.free_bytes(place)
        if free is None:
            continue
        yield _either(
            free >= LEAST_DISK_BYTES,
            f"{size_text(free)} free for {what}",
            f"{size_text(free)} free for {what} ({place})",
            "the objects of a class of 300 need a few GiB, and a full disk stops the run",
            "delete files, or set TMPDIR (scratch) and GPT149_CACHE (build cache) to folders on a larger disk",
        )


BUDGET_S = 6.0
APART = 0.05
"""Largest accepted difference between the medians of two copies of one program: 0.05 is 5 %."""


def steadiness(config: Path) -> list[Finding]:
    """Time the reference against itself. Return one finding for each clock (CPU, wall) by which parts are timed."""
    assignment = load(config)
    found = []
    try:
        with NativeHost() as host:
            for clock in ("cpu", "wall"):
                part = next(
                    (p for p in assignment.parts if p.time and p.time.clock == clock and p.reference), None
                )
                if part is not None:
                    found.append(judged(_against_itself(host, assignment, part), clock, part.title))
    except KitError as error:
        found.append(fail(f"the reference cannot be timed: {error}", "no time can be judged"))
    return found


def judged(timing: Timing, clock: str, title: str) -> Finding:
    """Return the finding on `timing`, a comparison of the reference with itself by the clock "cpu" or "wall".

    `title` is the title of the timed part.
    """
    low, high = timing.ratio_interval
    what = (
        f"{title}: one copy of the reference takes {timing.ratio:.3f} times ({low:.3f} to {high:.3f}) the {clock} time "
        "of another copy"
    )
    if timing.verdict == "slow":
        return fail(
            what,
            "one of two copies of the same program takes longer than the allowance permits: verdicts on time would "
            "be random",
            "end other programs on this machine, and apply the remedies (->) above",
        )
    apart = not low <= 1 <= high and abs(timing.ratio - 1) > APART
    if apart or not timing.fit:
        return warn(
            what,
            "the times of two copies of one program differ: submissions will be timed again, or stay undecided",
            "end other programs on this machine, and apply the remedies (->) above",
        )
    return ok(what)


def _against_itself(host: NativeHost, assignment: Assignment, part: Part) -> Timing:
    rule = part.time
    assert rule is not None
    policy = measure.TimePolicy(
        clock=rule.clock, allowance_ratio=rule.allowance_ratio, allowance_ms=0, budget_s=BUDGET_S
    )
    return measure.compare(reference_twice(host, assignment, part, assignment.defaults), policy)


def reference_twice(
    host: NativeHost, assignment: Assignment, part: Part, shape: Mapping[str, int]
) -> measure.PairOf:
    """Return a function that starts two runners of the part's reference, for `measure.compare`.

    Each runner gets the threads and cores of a graded timing. A timed call raises KitError if the reference fails.
    """
    from grader.backends import binding

    rule = part.time
    assert rule is not None
    threads, cpus = rule.threads or shape["threads"], machine.timing_cpus(rule.threads, rule.cores)
    cores = cpus or machine.core_order() if rule.clock == "wall" else ()
    request = binding.request(part, shape, assignment.typical_inputs(part, shape, 1), reference=True)

    program = assignment.lab.reference().program()

    def sample(session: Session) -> Sample:
        call = session.call(request)
        if call.status != "ok":
            raise KitError(f"{part.reference}: {call.status} {call.signal_name}{call.message}")
        return Sample(call.wall_s, call.cpu_s)

    @contextmanager
    def pair() -> Iterator[tuple[Callable[[], Sample], Callable[[], Sample]]]:
        with ExitStack() as stack:
            sides = [stack.enter_context(host.spawn(program, threads=threads, cpus=cpus)) for _ in range(2)]
            for side in sides:
                placement.warm_up(side, partial(sample, side), pin_to=cores)
            yield partial(sample, sides[0]), partial(sample, sides[1])

    return pair
