"""The system calls that a runner and a compiler may make, as programs for Linux's seccomp filter.

A runner only computes: it needs memory, threads, clocks, signals to itself and, if it holds torch, files of its own.
Its filter (`native_filter`, or `runner_filter` with torch) lists the allowed calls. Calls that are needed only to
escape (to other processes, their memory or the network) kill the process with SIGSYS. So a fork bomb ends at its first
fork. All other calls fail with EPERM. A compiler starts other programs, so its filter lists the refused calls instead.
A call whose number is higher than LAST_KNOWN fails with ENOSYS, as on an older Linux: libraries then use an older call.

Sources: seccomp(2), bpf(2), the kernel's Documentation/userspace-api/seccomp_filter.rst, and the numbers in
asm/unistd_64.h (x86-64) and asm-generic/unistd.h (aarch64).
"""

from __future__ import annotations

import errno
import functools
import itertools
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

#: System calls that a runner with torch may make. Each entry of this table and of the tables below is a call's name and
#: its numbers on x86-64 and on aarch64 ('-': not on this instruction set). timer_create is not allowed: a timer could
#: send SIGCONT and wake a runner that the judge has stopped. A runner creates its one timer before it is locked
#: (runner/runner.py).
ALLOWED = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69,
pwritev 296 70, lseek 8 62, close 3 57, close_range 436 436, dup 32 23, dup2 33 -, dup3 292 24,
pipe 22 -, pipe2 293 59, open 2 -, openat 257 56, creat 85 -, access 21 -, faccessat 269 48,
faccessat2 439 439, stat 4 -, fstat 5 80, lstat 6 -, newfstatat 262 79, statx 332 291, statfs 137 43,
fstatfs 138 44, getdents 78 -, getdents64 217 61, readlink 89 -, readlinkat 267 78, getcwd 79 17,
chdir 80 49, fchdir 81 50, mkdir 83 -, mkdirat 258 34, rmdir 84 -, unlink 87 -, unlinkat 263 35,
rename 82 -, renameat 264 38, renameat2 316 276, truncate 76 45, ftruncate 77 46, fallocate 285 47,
fsync 74 82, fdatasync 75 83, fadvise64 221 223, umask 95 166, flock 73 32, mmap 9 222, munmap 11 215,
mprotect 10 226, mremap 25 216, madvise 28 233, brk 12 214, msync 26 227, mincore 27 232, mlock 149 228,
mlock2 325 284, munlock 150 229, mbind 237 235, get_mempolicy 239 236, set_mempolicy 238 237,
membarrier 324 283, futex 202 98, rseq 334 293, set_robust_list 273 99, get_robust_list 274 100,
set_tid_address 218 96, arch_prctl 158 -, getpid 39 172, getppid 110 173, gettid 186 178, getuid 102 174,
geteuid 107 175, getgid 104 176, getegid 108 177, getgroups 115 158, getresuid 118 148,
getresgid 120 150, getpgid 121 155, getpgrp 111 -, getsid 124 156, sched_yield 24 124,
sched_getaffinity 204 123, sched_getparam 143 121, sched_getscheduler 145 120,
sched_get_priority_max 146 125, sched_get_priority_min 147 126, getpriority 140 141, getcpu 309 168,
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136,
rt_sigsuspend 130 133, rt_sigtimedwait 128 137, sigaltstack 131 132, pause 34 -, alarm 37 -,
setitimer 38 103, getitimer 36 102, nanosleep 35 101, clock_nanosleep 230 115,
clock_gettime 228 113, clock_getres 229 114, gettimeofday 96 169, time 201 -, times 100 153,
getrusage 98 165, sysinfo 99 179, uname 63 160, getrlimit 97 163, poll 7 -, ppoll 271 73, select 23 -,
pselect6 270 72, epoll_create 213 -, epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -,
epoll_pwait 281 22, eventfd 284 -, eventfd2 290 19, getrandom 318 278, restart_syscall 219 128,
exit 60 93, exit_group 231 94, wait4 61 260, waitid 247 95
"""
#: Calls that start processes or programs: they kill a runner, and a compiler may make them.
STARTS_PROCESSES = "fork 57 -, vfork 58 -, execve 59 221, execveat 322 281"
#: Calls that affect other processes or the system: they kill a runner, and fail in a compiler.
REACHES_OUT = """
ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, kcmp 312 272,
tkill 200 130, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240, pidfd_open 434 434,
pidfd_send_signal 424 424, pidfd_getfd 438 438, unshare 272 97, setns 308 268, setsid 112 157,
setpgid 109 154, mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, open_tree 428 428,
move_mount 429 429, fsopen 430 430, fsmount 432 432, mount_setattr 442 442
"""
#: Calls that an honest program may make but can do without: they fail with EPERM (socketpair kills a native runner).
REFUSED = """
socketpair 53 199, bpf 321 280, perf_event_open 298 241, userfaultfd 323 282, keyctl 250 219,
add_key 248 217, request_key 249 218, io_uring_setup 425 425, io_uring_enter 426 426,
io_uring_register 427 427, init_module 175 105, finit_module 313 273, delete_module 176 106,
kexec_load 246 104, kexec_file_load 320 294, reboot 169 142, swapon 167 224, swapoff 168 225,
acct 163 89, settimeofday 164 170, clock_settime 227 112, clock_adjtime 305 266, adjtimex 159 171,
syslog 103 116, quotactl 179 60, open_by_handle_at 304 265, name_to_handle_at 303 264, mknod 133 -,
mknodat 259 33, shmget 29 194, msgget 68 186, semget 64 190, mq_open 240 180, fanotify_init 300 262,
memfd_create 319 279, memfd_secret 447 447, sched_setscheduler 144 119,
sched_setattr 314 274, setpriority 141 140, ioprio_set 251 30
"""
#: Calls whose arguments decide whether they are allowed.
BY_ARGUMENT = """
clone 56 220, clone3 435 435, kill 62 129, tgkill 234 131, prctl 157 167, prlimit64 302 261, fcntl 72 25,
ioctl 16 29, socket 41 198, personality 135 92, timer_settime 223 110
"""
#: Calls that CUDA's driver makes besides ALLOWED, to listen on a local socket. A runner on a GPU and its compiler may
#: make them, because they connect to nothing. They were found by trial (docs/measurements.md).
CARD_ALLOWED = "bind 49 200, listen 50 201"
SECCOMP = "seccomp 317 277"
#: Calls that a native runner (inside/runner.cpp) may make: to read and write its open descriptors, and to compute. None
#: of them opens a file. The C library also tries to read the number of cores in /sys, its own path in /proc and the
#: terminal's properties. These calls fail with EPERM, and the library works without them.
NATIVE_ALLOWED = """
read 0 63, write 1 64, readv 19 65, writev 20 66, close 3 57, fstat 5 80, munmap 11 215, mprotect 10 226,
mremap 25 216, brk 12 214, futex 202 98, rseq 334 293, set_robust_list 273 99,
set_tid_address 218 96, arch_prctl 158 -, getpid 39 172, gettid 186 178, sched_yield 24 124,
sched_getaffinity 204 123, getcpu 309 168, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139,
sigaltstack 131 132, nanosleep 35 101, clock_nanosleep 230 115, clock_gettime 228 113,
clock_getres 229 114, gettimeofday 96 169, time 201 -, times 100 153, getrusage 98 165, getrandom 318 278,
restart_syscall 219 128, exit 60 93, exit_group 231 94
"""
#: Calls that a dynamic program makes at its start, besides NATIVE_ALLOWED.
STARTS_DYNAMIC = """
stat 4 -, newfstatat 262 79, access 21 -, pread64 17 67, lseek 8 62, readlink 89 -,
getdents64 217 61
"""
NATIVE_BY_ARGUMENT = (
    "mmap 9 222, madvise 28 233, timer_create 222 107, pread64 17 67, pwrite64 18 68, open 2 -, openat 257 56"
)
NETWORK = "socket 41 198, socketpair 53 199, connect 42 203, bind 49 200"
#: The highest number of a system call in the Linux from which these tables were made (6.1).
LAST_KNOWN = 450

CLONE_THREAD, MAP_SHARED, MAP_ANONYMOUS, MAP_HUGETLB = 0x00010000, 0x1, 0x20, 0x40000
PROT_WRITE, PROT_EXEC = 0x2, 0x4
#: Refused advice of madvise(2): MADV_REMOVE, MADV_COLD and MADV_PAGEOUT lower a process's measured resident memory
#: without freeing its data.
HIDING_ADVICE = (9, 20, 21)
#: Flags of open(2) to write or create a file: O_WRONLY, O_RDWR, O_CREAT, O_TRUNC and the bit of O_TMPFILE. They are
#: equal on x86-64 and aarch64.
WRITING = 0x1 | 0x2 | 0x40 | 0x200 | 0x400000
#: Flags of clone(2) that create namespaces: NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
CLONE_NEW_NAMESPACES = 0x7E020000
#: Options of prctl(2) that a runner may use: PR_SET_NAME, PR_GET_NAME, PR_SET_VMA, PR_CAPBSET_READ, PR_GET_SECCOMP,
#: PR_GET_DUMPABLE.
PRCTLS = (15, 16, 0x53564D41, 23, 21, 3)
#: A native runner's descriptor of the memory for its inputs and outputs (inside/pipes.h).
PAYLOADS_FD = 5
#: Refused commands of fcntl(2): F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE and F_NOTIFY. They request signals,
#: F_SETOWN even for other processes.
REFUSED_FCNTLS = (8, 10, 15, 1024, 1026)
#: TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX: requests that the C library makes for ordinary files.
IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)

AF_UNIX = 1
#: Allowed arguments of personality(2): a query, and ADDR_NO_RANDOMIZE for ThreadSanitizer's memory at fixed addresses.
PERSONALITIES = (0xFFFFFFFF, 0x0040000)

KILL, ERRNO, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
#: Byte offsets in struct seccomp_data: call number, instruction set, first argument. Arguments have 64 bits, the low
#: half first on x86-64 and aarch64.
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
#: Tests of mmap's arguments (index, test, value). An executable mapping is refused if one of these tests is true: it is
#: writable, it maps no file, or it maps the payload memory.
WRITABLE_CODE = ((2, _ANY_BIT, PROT_WRITE), (3, _ANY_BIT, MAP_ANONYMOUS), (4, _EQUAL, PAYLOADS_FD))
#: mmap with MAP_HUGETLB is refused: Linux does not count these pages as the process's memory. Large pages by madvise
#: are counted.
RESERVED_PAGES = (3, _ANY_BIT, MAP_HUGETLB)
_X32_CALLS = 0x40000000


@dataclass(frozen=True)
class Machine:
    """An instruction set. `column` is its column in the tables above, `audit` its AUDIT_ARCH number in seccomp."""

    column: int
    audit: int


MACHINES = {"x86_64": Machine(1, 0xC000003E), "aarch64": Machine(2, 0xC00000B7)}
MACHINES |= {"amd64": MACHINES["x86_64"], "arm64": MACHINES["aarch64"]}


@dataclass(frozen=True)
class Filter:
    """A seccomp filter. `program` has gaps (byte offsets) that the process fills in before it installs the filter.

    At `pid_places` the process writes its own process id (u32). At `token_places` it writes the low and the high half
    of a random number (u32 each): the filter allows execveat only to a caller that passes this number. `call_number` is
    the number of the system call seccomp.
    """

    program: bytes
    pid_places: tuple[int, ...]
    call_number: int
    token_places: tuple[int, ...] = ()


def numbers(table: str, machine: Machine) -> dict[str, int]:
    """Return {name: number} for the calls in a table, without calls that the instruction set lacks."""
    rows = (entry.split() for entry in table.replace("\n", " ").split(","))
    return {row[0]: int(row[machine.column]) for row in rows if row[machine.column] != "-"}


@functools.cache
def runner_filter(machine_name: str, card: bool = False) -> Filter | None:
    """Return the filter of a runner with torch; None for an unsupported instruction set.

    The filter allows new threads but no new processes, and signals only to the runner itself. `card`: True for a runner
    on a GPU, which may make any ioctl, because ioctls control a GPU's driver. Landlock limits the device files that it
    can open.
    """
    machine = MACHINES.get(machine_name.lower())
    if machine is None:
        return None
    program = _Program(machine)
    special = numbers(BY_ARGUMENT, machine)
    if card:
        program.returns(numbers(CARD_ALLOWED, machine).values(), ALLOW)
    else:
        program.refuses(numbers(ALLOWED, machine)["mmap"], RESERVED_PAGES)
    program.returns(numbers(ALLOWED, machine).values(), ALLOW)
    # clone3 passes its flags in memory, which a filter cannot read. After ENOSYS glibc calls clone instead.
    program.returns([special["clone3"]], ERRNO | errno.ENOSYS)
    program.by_bits(special["clone"], CLONE_THREAD, found=ALLOW, otherwise=KILL)
    program.by_own_pid(special["kill"], otherwise=KILL)
    program.by_own_pid(special["tgkill"], otherwise=KILL)
    program.by_values(special["prctl"], 0, PRCTLS, found=ALLOW, otherwise=_EPERM)
    program.by_values(special["prlimit64"], 0, (0,), found=ALLOW, otherwise=_EPERM)
    program.by_wide_value(special["timer_settime"], 3, found=ALLOW, otherwise=_EPERM)
    program.by_values(special["fcntl"], 1, REFUSED_FCNTLS, found=_EPERM, otherwise=ALLOW)
    program.by_values(special["ioctl"], 1, IOCTLS, found=ALLOW, otherwise=ALLOW if card else _EPERM)
    # A torch built with CUDA tries to connect to a local daemon when it first profiles a call. The profiler also works
    # without the daemon, so do not kill the runner.
    program.by_values(special["socket"], 0, (AF_UNIX,), found=ALLOW if card else _EPERM, otherwise=KILL)
    program.returns(numbers(STARTS_PROCESSES, machine).values(), KILL)
    program.returns(numbers(REACHES_OUT, machine).values(), KILL)
    return program.finish(_EPERM)


@functools.cache
def native_filter(machine_name: str, opens_libraries: bool = False) -> Filter | None:
    """Return the filter of a native runner; None for an unsupported instruction set.

    The filter allows threads, memory, clocks and use of the open pipes. It does not allow new processes, or opening
    files by name. The launcher (inside/launch.cpp) installs the filter and then starts the runner by execveat. As a
    sixth argument, which Linux ignores, the launcher passes a random number. Code in the runner cannot guess this
    number, so it cannot call execveat.

    `opens_libraries`: True for a dynamic program or one with sanitizers. At its start such a program opens files, and
    reads or maps them, so the filter allows this. Memory that the program can write never becomes executable. So it may
    map a library's file as code, but not for writing, and it may not map the payload memory as code.
    """
    machine = MACHINES.get(machine_name.lower())
    if machine is None:
        return None
    program = _Program(machine)
    special = numbers(f"{BY_ARGUMENT}, {NATIVE_BY_ARGUMENT}", machine)
    starts = numbers(STARTS_PROCESSES, machine)
    executable = (2, _ANY_BIT, PROT_EXEC)
    program.refuses(special["mmap"], RESERVED_PAGES)
    program.refuses(numbers(NATIVE_ALLOWED, machine)["mprotect"], executable)
    program.returns(numbers(NATIVE_ALLOWED, machine).values(), ALLOW)
    if opens_libraries:
        for also in WRITABLE_CODE:
            program.refuses(special["mmap"], executable, also)
        program.returns([special["mmap"], *numbers(STARTS_DYNAMIC, machine).values()], ALLOW)
        for call, argument in (("open", 1), ("openat", 2)):
            if call in special:
                program.by_bits(special[call], WRITING, found=_EPERM, otherwise=ALLOW, argument=argument)
    else:
        program.refuses(special["mmap"], executable)
        # Shared pages keep their data after they are unmapped, but then no longer count as the process's memory.
        program.refuses(special["mmap"], (3, _ANY_BIT, MAP_SHARED))
        program.by_bits(special["mmap"], MAP_ANONYMOUS, found=ALLOW, otherwise=_EPERM, argument=3)
    program.by_values(special["madvise"], 2, HIDING_ADVICE, found=_EPERM, otherwise=ALLOW)
    for name in ("pread64", "pwrite64"):
        program.by_values(special[name], 0, (PAYLOADS_FD,), found=ALLOW, otherwise=_EPERM)
    program.returns([special["clone3"]], ERRNO | errno.ENOSYS)
    program.by_bits(special["clone"], CLONE_THREAD, found=ALLOW, otherwise=KILL)
    program.by_own_pid(special["kill"], otherwise=KILL)
    program.by_own_pid(special["tgkill"], otherwise=KILL)
    program.by_values(special["prlimit64"], 0, (0,), found=ALLOW, otherwise=_EPERM)
    # Argument 1 (the notification) must be 0: then the timer sends SIGALRM, the default (inside/delays.h). Another
    # timer could send SIGCONT and so wake a runner that the judge has stopped.
    program.by_wide_value(special["timer_create"], 1, found=ALLOW, otherwise=_EPERM)
    # Argument 3 must be 0. Otherwise Linux returns the timer's old state, which reveals to a kernel if its calls are
    # delayed.
    program.by_wide_value(special["timer_settime"], 3, found=ALLOW, otherwise=_EPERM)
    program.token_places += program.by_wide_value(starts.pop("execveat"), 5, found=ALLOW, otherwise=KILL)
    program.returns(starts.values(), KILL)
    program.returns(numbers(f"{REACHES_OUT}, {NETWORK}", machine).values(), KILL)
    return program.finish(_EPERM)


@functools.cache
def compiler_filter(machine_name: str, card: bool = False) -> Filter | None:
    """Return the filter of a compiler; None for an unsupported instruction set.

    The filter allows starting programs, but no network, no access to other processes' memory, and no new session or
    namespace. `card`: True to allow the calls of CUDA's driver, too.
    """
    machine = MACHINES.get(machine_name.lower())
    if machine is None:
        return None
    program = _Program(machine)
    special = numbers(BY_ARGUMENT, machine)
    if card:
        program.returns(numbers(CARD_ALLOWED, machine).values(), ALLOW)
    program.returns([special["clone3"]], ERRNO | errno.ENOSYS)
    program.by_bits(special["clone"], CLONE_NEW_NAMESPACES, found=_EPERM, otherwise=ALLOW)
    program.by_values(special["socket"], 0, (AF_UNIX,), found=ALLOW if card else _EPERM, otherwise=_EPERM)
    program.by_values(special["personality"], 0, PERSONALITIES, found=ALLOW, otherwise=_EPERM)
    program.returns(numbers(REACHES_OUT, machine).values(), _EPERM)
    program.returns(numbers(REFUSED, machine).values(), _EPERM)
    return program.finish(ALLOW)


_EPERM = ERRNO | errno.EPERM


class _Program:
    """Builder of a filter in classic BPF. It adds blocks of instructions, each for some system calls.

    At the start of a block, the register A holds the number of the system call. Calls that a block does not decide go
    on to the next block.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.code: list[bytes] = []
        self.pid_places: list[int] = []
        self.token_places: list[int] = []
        # Kill calls of other instruction sets (i386 or x32 on x86-64), whose numbers mean other calls.
        self.add(_LOAD, _MACHINE)
        self.add(_EQUAL, machine.audit, 1, 0)
        self.add(_RETURN, KILL)
        self.add(_LOAD, _NUMBER)
        self.add(_AT_LEAST, _X32_CALLS, 0, 1)
        self.add(_RETURN, KILL)

    def add(self, code: int, value: int, if_true: int = 0, if_false: int = 0) -> None:
        self.code.append(struct.pack("=HBBI", code, if_true, if_false, value))

    def returns(self, values: Iterable[int], verdict: int) -> None:
        """Add a block that returns `verdict` for these call numbers.

        The block has one test for each run of consecutive numbers, because the tests cost time at each call.
        """
        for first, last in _runs(values):
            if first == last:
                self.add(_EQUAL, first, 0, 1)
            else:
                self.add(_AT_LEAST, first, 0, 2)
                self.add(_AT_LEAST, last + 1, 1, 0)
            self.add(_RETURN, verdict)

    def refuses(self, call: int, *conditions: tuple[int, int, int]) -> None:
        """Add a block that refuses a call with EPERM if all `conditions` (argument's index, test, value) hold."""
        self.add(_EQUAL, call, 0, 2 * len(conditions) + 2)
        for k, (argument, test, value) in enumerate(conditions):
            self.add(_LOAD, _ARGUMENTS + 8 * argument)
            self.add(test, value, 0, 2 * (len(conditions) - k) - 1)
        self.add(_RETURN, _EPERM)
        self.add(_LOAD, _NUMBER)

    def by_bits(self, call: int, bits: int, *, found: int, otherwise: int, argument: int = 0) -> None:
        """Add a block that returns `found` if an argument of a call has any of these bits, else `otherwise`."""
        self.add(_EQUAL, call, 0, 4)
        self.add(_LOAD, _ARGUMENTS + 8 * argument)
        self.add(_ANY_BIT, bits, 0, 1)
        self.add(_RETURN, found)
        self.add(_RETURN, otherwise)

    def by_values(
        self, call: int, argument: int, values: tuple[int, ...], *, found: int, otherwise: int
    ) -> None:
        """Add a block that returns `found` if an argument of a call is one of these values, else `otherwise`."""
        self.add(_EQUAL, call, 0, 2 + 2 * len(values))
        self.add(_LOAD, _ARGUMENTS + 8 * argument)
        for value in values:
            self.add(_EQUAL, value, 0, 1)
            self.add(_RETURN, found)
        self.add(_RETURN, otherwise)

    def by_wide_value(self, call: int, argument: int, *, found: int, otherwise: int) -> list[int]:
        """Add a block that returns `found` if all 64 bits of an argument equal a value, else `otherwise`.

        The value is 0 unless it is filled in later. Return the byte offsets of the value's low and high halves in the
        program.
        """
        self.add(_EQUAL, call, 0, 6)
        places = []
        for half, distance in ((0, 3), (4, 1)):
            self.add(_LOAD, _ARGUMENTS + 8 * argument + half)
            places.append(len(self.code) * struct.calcsize("=HBBI") + struct.calcsize("=HBB"))
            self.add(_EQUAL, 0, 0, distance)
        self.add(_RETURN, found)
        self.add(_RETURN, otherwise)
        return places

    def by_own_pid(self, call: int, *, otherwise: int) -> None:
        """Add a block that allows a call whose first argument is the process's own id (filled in by the process)."""
        value_offset = struct.calcsize("=HBB")
        self.pid_places.append((len(self.code) + 2) * struct.calcsize("=HBBI") + value_offset)
        self.by_values(call, 0, (0,), found=ALLOW, otherwise=otherwise)

    def finish(self, verdict: int) -> Filter:
        self.add(_AT_LEAST, LAST_KNOWN + 1, 0, 1)
        self.add(_RETURN, ERRNO | errno.ENOSYS)
        self.add(_RETURN, verdict)
        call_number = numbers(SECCOMP, self.machine)["seccomp"]
        return Filter(b"".join(self.code), tuple(self.pid_places), call_number, tuple(self.token_places))


def _runs(values: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last number of each run of consecutive numbers."""
    ordered = sorted(values)
    first = ordered[0]
    for value, following in itertools.pairwise([*ordered, -1]):
        if following != value + 1:
            yield first, value
            first = following
