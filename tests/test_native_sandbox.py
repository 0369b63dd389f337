"""Code in a native runner finds nothing around it, in any tier: a probe tries, and prints what it finds."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from building import HEAD, asked, binding, includes, program
from conftest import ROOT, refused, tiers
from process_tree import stat, wait_for

from grader.backends.native.nativehost import NativeHost
from grader.core.errors import KitError
from grader.runner.calls import Request
from grader.sandbox import Limits, Sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these sandboxes")

HEADERS = """cerrno csignal cstdio cstring ctime dlfcn.h dirent.h fcntl.h link.h sched.h unistd.h sys/mman.h sys/prctl.h
sys/ptrace.h sys/resource.h sys/socket.h sys/stat.h sys/syscall.h sys/time.h sys/wait.h"""
PROBE = r"""
extern char **environ;
extern "C" {
#define WEAK __attribute__((weak)) void
WEAK Py_Initialize(); WEAK PyRun_SimpleString(); WEAK PyEval_GetBuiltins(); WEAK cblas_sgemm(); WEAK sgemm_();
WEAK mkl_serv_get_version(); WEAK THPVariable_Wrap(); WEAK gpt149_ref_fused(); WEAK dnnl_sgemm();
}
static void saw(const char *what, const char *where, bool found) {
  std::printf("%s %s: %s\n", found ? "SAW" : "no", what, where);
}
torch::Tensor files(torch::Tensor t) {
  for (const char *path : {"/", ".", "..", "/proc", "/proc/self", "/proc/self/maps", "/proc/self/exe",
                           "/proc/1/environ", "/dev/null", "/dev/shm", "/tmp", "/etc/passwd", "/lib", "/usr/lib",
                           "/sys/devices/system/cpu"}) {
    saw("open", path, open(path, O_RDONLY) >= 0);
    saw("openat", path, openat(AT_FDCWD, path, O_PATH) >= 0);
    saw("list", path, opendir(path) != nullptr);
    struct stat about;
    saw("stat", path, stat(path, &about) == 0);
    char target[100];
    saw("readlink", path, readlink(path, target, sizeof target) > 0);
  }
  saw("create", "/tmp/x", open("/tmp/x", O_CREAT | O_WRONLY, 0600) >= 0);
  saw("create", "x", open("x", O_CREAT | O_WRONLY, 0600) >= 0);
  saw("mkdir", "x", mkdir("x", 0700) == 0);
  saw("chdir", "/", chdir("/") == 0);
  saw("memory file", "", syscall(SYS_memfd_create, "x", 0) >= 0);
  saw("less payload memory", "", ftruncate(5, 0) == 0);
  saw("more payload memory", "", ftruncate(5, 1L << 30) == 0 || pwrite(5, "x", 1, 48L << 20) == 1);
  saw("sealed payload memory", "", fcntl(5, F_ADD_SEALS, F_SEAL_WRITE) == 0);
  saw("hole in the payload memory", "", fallocate(5, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0);
  for (int fd = 0; fd < 256; fd++) {
    struct stat about;
    if (syscall(SYS_fstat, fd, &about) == 0) std::printf("open descriptor %d\n", fd);
    for (int how : {MAP_PRIVATE, MAP_SHARED})
      if (mmap(nullptr, 4096, PROT_READ, how, fd, 0) != MAP_FAILED) std::printf("SAW mapped %d\n", fd);
    char byte;
    if (pread(fd, &byte, 1, 0) >= 0 && fd != 5) std::printf("SAW read from %d\n", fd);
  }
  return t;
}
static int names(dl_phdr_info *info, size_t, void *) {
  std::printf("library '%s'\n", info->dlpi_name);
  return 0;
}
torch::Tensor libraries(torch::Tensor t) {
  dl_iterate_phdr(names, nullptr);
  for (const char *name : {"libc.so.6", "libtorch_cpu.so", "libpython3.so", "libcblas.so.3", "libm.so.6"})
    saw("dlopen", name, dlopen(name, RTLD_NOW) != nullptr);
  void (*known[])() = {Py_Initialize, PyRun_SimpleString, PyEval_GetBuiltins, cblas_sgemm, sgemm_,
                       mkl_serv_get_version, THPVariable_Wrap, gpt149_ref_fused, dnnl_sgemm};
  for (auto function : known) saw("linked", "", function != nullptr);
  for (char **entry = environ; *entry != nullptr; entry++) std::printf("environment %s\n", *entry);
  return t;
}
torch::Tensor power(torch::Tensor t) {
  cpu_set_t all;
  std::memset(&all, 255, sizeof all);
  for (int rights : {PROT_EXEC, PROT_READ | PROT_EXEC, PROT_READ | PROT_WRITE | PROT_EXEC}) {
    void *own = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    saw("memory of its own as code", "", own == MAP_FAILED || mprotect(own, 4096, rights) == 0);
    saw("memory of its own as code", "", syscall(SYS_pkey_mprotect, own, 4096, rights, -1) == 0);
    saw("its constants as code", "", mprotect((void *)((size_t)"x" & -4096), 4096, rights) == 0);
    for (int fd : {-1, 5})
      for (int how : {MAP_PRIVATE, MAP_SHARED})
        saw("new code", "", mmap(nullptr, 4096, rights, fd < 0 ? how | MAP_ANONYMOUS : how, fd, 0) != MAP_FAILED);
    saw("memory that it stops writing", "", mprotect(own, 4096, PROT_READ) != 0);
  }
  saw("cores", "", sched_setaffinity(0, sizeof all, &all) == 0);
  saw("death signal", "", prctl(PR_SET_PDEATHSIG, 0) == 0);
  sigevent event = {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGCONT;
  int timer;
  saw("a timer that continues it", "", syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer) == 0);
  saw("a timer of its own", "", syscall(SYS_timer_create, CLOCK_MONOTONIC, nullptr, &timer) == 0);
  itimerspec left = {};
  const itimerval soon = {{0, 1}, {0, 1}};
  saw("the state of the delays' timer", "", syscall(SYS_timer_gettime, 0, &left) == 0);
  saw("the state of the delays' timer", "as it is set", syscall(SYS_timer_settime, 0, 0, &left, &left) == 0);
  saw("an interval timer", "", setitimer(ITIMER_REAL, &soon, nullptr) == 0);
  rlimit more = {RLIM_INFINITY, RLIM_INFINITY};
  saw("more memory", "", setrlimit(RLIMIT_AS, &more) == 0);
  saw("more signals", "", setrlimit(RLIMIT_SIGPENDING, &more) == 0);
  saw("priority", "", setpriority(PRIO_PROCESS, 0, -10) == 0);
  saw("other user", "", setuid(1) == 0);
  saw("perf", "", syscall(SYS_perf_event_open, nullptr, 0, -1, -1, 0) >= 0);
  saw("io_uring", "", syscall(SYS_io_uring_setup, 1, nullptr) >= 0);
  return t;
}
torch::Tensor reach(torch::Tensor t, int how) {
  char *none[] = {nullptr};
  if (how == 0) execve("/bin/true", none, none);
  if (how == 1) syscall(SYS_execveat, 0, "", none, none, 0x1000, 0);
  if (how == 2) fork();
  if (how == 3) syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (how == 4) socket(AF_INET, SOCK_STREAM, 0);
  if (how == 5) socket(AF_UNIX, SOCK_STREAM, 0);
  if (how == 6) ptrace(PTRACE_TRACEME, 0, 0, 0);
  if (how == 7) kill(getpid() == 1 ? 2 : 1, SIGKILL);
  if (how == 8) kill(-1, SIGCONT);
  if (how == 9) syscall(SYS_process_vm_readv, 1, nullptr, 0, nullptr, 0, 0);
  if (how == 10) unshare(CLONE_NEWUSER);
  if (how == 11) setsid();
  if (how == 12) syscall(SYS_pidfd_open, 1, 0);
  if (how == 13) syscall(SYS_open_tree, AT_FDCWD, "/", 0);
  return t;
}
torch::Tensor take(torch::Tensor t, int mib) {
  std::vector<char> space((size_t)mib << 20, 1);
  return torch::full({1}, (float)space[0]);
}
torch::Tensor hangs(torch::Tensor t) { for (;;) asm volatile(""); }
static bool at_start = (saw("open at the start", "/", open("/", O_RDONLY) >= 0), std::fflush(stdout), true);
"""
BOXES = tiers()
if os.geteuid() == 0:
    # Also try the tiers of a judge that is not root: it cannot give its runners another user id.
    BOXES += [Sandbox(each.tier, each.bwrap, True, each.landlock, True) for each in BOXES if each.bwrap]


def name(box: Sandbox) -> str:
    return box.tier + ("" if box.own_uid else "-one-uid")


@pytest.fixture(scope="module", params=BOXES, ids=name)
def host(request: pytest.FixtureRequest) -> Iterator[NativeHost]:
    with NativeHost(request.param) as started:
        yield started


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = includes(HEADERS) + PROBE + binding("files libraries power reach take hangs")
    return program(tmp_path_factory.mktemp("probe"), text)


def request(function: str, *values: int) -> Request:
    return asked(function, *values, shape=(3,), output=(3,))


def test_nothing_is_found(host: NativeHost, probe: Path) -> None:
    with host.spawn(probe, threads=2, cpus=[0]) as session:
        assert session.death is None, session.death
        calls = [session.call(request(function)) for function in ("files", "libraries", "power")]
    assert [call.status for call in calls] == ["ok"] * 3, (calls, session.printed)
    # The runner names files that could not be opened (inside/machine_files.h).
    lines = [line for line in session.printed.splitlines() if not line.startswith("gpt149: ")]
    assert lines[0] == "no open at the start: /"
    assert [line for line in lines if line.startswith("SAW")] == []
    assert len([line for line in lines if line.startswith("no ")]) > 90
    assert [line for line in lines if line.startswith("open")] == [f"open descriptor {fd}" for fd in range(6)]
    # The program itself, and the library that the operating system maps into every process.
    libraries = {line for line in lines if line.startswith("library")}
    assert libraries <= {"library ''", "library 'linux-vdso.so.1'"}
    environment = {line for line in lines if line.startswith("environment")}
    names = {line.partition("=")[0] for line in environment}
    assert names <= {"environment OMP_NUM_THREADS", "environment GPT149_CACHE_FILES"}
    assert "environment OMP_NUM_THREADS=2" in environment
    assert session.evidence.new_code == () and not session.evidence.extra_cpus


def test_reaching_out_is_the_end(host: NativeHost, probe: Path) -> None:
    for how in range(14):
        with host.spawn(probe, threads=1) as session:
            assert session.call(request("reach", -1)).status == "ok"
            call = session.call(request("reach", how))
        assert (call.status, call.signal_name) == ("crash", "SIGSYS"), how


def test_memory_is_limited(host: NativeHost, probe: Path) -> None:
    with host.spawn(probe, threads=1, limits=Limits(memory_bytes=300 << 20)) as session:
        assert session.call(request("take", 200)).status == "ok"
        call = session.call(request("take", 400))
    assert (call.status, call.message) == ("exception", "std::bad_alloc")


def processes() -> dict[int, int]:
    """Return the living processes and their parents. A process that waits to be reaped has no memory."""
    fields = {int(pid): stat(int(pid)) for pid in os.listdir("/proc") if pid.isdigit()}
    return {pid: int(each[1]) for pid, each in fields.items() if each[0] != "Z" and int(each[20]) > 0}


def children() -> set[int]:
    return {pid for pid, parent in processes().items() if parent == os.getpid()}


def test_nothing_is_left_of_a_runner(host: NativeHost, probe: Path) -> None:
    before, fds = children(), set(os.listdir("/proc/self/fd"))
    why = "no native runner could be started: program: No such file"
    refused(why, host.spawn, probe.with_name("none"), threads=1, of=KitError)
    assert children() <= before
    with host.spawn(probe, threads=4, call_timeout_s=0.3) as session:
        assert 1 <= len(children() - before) <= 2
        assert session.call(request("hangs")).status == "timeout"
    assert children() <= before and set(os.listdir("/proc/self/fd")) <= fds


JUDGE = """
import sys
from pathlib import Path
sys.path[:0] = [{root!r}, {root!r} + "/tests"]
from building import asked
from grader.backends.native.nativehost import NativeHost
from grader.sandbox import choose
host = NativeHost(choose({tier!r}, trust=True))
session = host.spawn(Path({probe!r}), threads=2)
print(session.pid, *(each.init for each in host._living.values()), flush=True)
session.call(asked("hangs", shape=(3,), output=(3,)), timeout_s=600)
"""


def test_a_runner_ends_with_its_judge(host: NativeHost, probe: Path) -> None:
    text = JUDGE.format(root=str(ROOT), tier=host.sandbox.tier, probe=str(probe))
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) as judge:
        assert judge.stdout is not None
        pids = {int(word) for word in judge.stdout.readline().split()} - {0}
        assert pids and pids <= set(processes())
        judge.send_signal(signal.SIGKILL)
    assert wait_for(lambda: not pids & set(processes()))


def test_a_program_built_in_a_tier_starts_there(host: NativeHost, tmp_path: Path) -> None:
    """The compiler's user can read the file, and the runner's user can start the program, under any umask."""
    tier = name(host.sandbox)
    text = f"{HEAD}// built in tier {tier}\ntorch::Tensor same(torch::Tensor t) {{ return t; }}\n{binding('same')}"
    umask = os.umask(0o077)
    try:
        built = program(tmp_path, text, sandbox=host.sandbox)
    finally:
        os.umask(umask)
    with host.spawn(built, threads=1) as session:
        assert session.call(asked("same")).status == "ok", session.death
