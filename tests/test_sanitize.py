"""A build with sanitizers names the student's line for each kind of fault, and prints nothing for a clean call."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from building import binding, includes
from conftest import python, refused, write, write_files

from grader.backends.native import nativebuild, sanitize
from grader.backends.native.nativehost import NativeHost
from grader.backends.native.toolchain import toolchain
from grader.backends.torch.torchbuild import build
from grader.core.arrays import np
from grader.core.errors import KitError
from grader.runner.calls import Request
from grader.sandbox import OPEN, Limits, Sandbox, choose, lock

FAULTY = """
inline float twoDimRead(std::vector<float> &t, int x, int y, int w) {
  return t[x * w + y];
}
torch::Tensor tensor_write(torch::Tensor q, int n) {
  auto out = at::zeros({n});
  float *p = out.data_ptr<float>();
  for (int i = 0; i <= n; i++)
    p[i] = 1.0f;
  return out;
}
float input_read(torch::Tensor q, int n) {
  return q.data_ptr<float>()[n];
}
float vector_read(torch::Tensor q, int n) {
  std::vector<float> v(n);
  float s = 0;
  for (int i = 0; i <= n; i++)
    s += twoDimRead(v, 0, i, n);
  return s;
}
int overflow(torch::Tensor q, int n) {
  int x = 2147483647;
  x += n;
  return x;
}
int fine(torch::Tensor q, int n) { return n; }
"""
NAMES = ("tensor_write", "input_read", "vector_read", "overflow", "fine")
#: One process for all: each fault in a child of its own, so that torch is imported under the sanitizer only once.
CALL_EACH = """
import os, sys, torch
from grader.backends.torch.loaded import CallFailed, StudentObject
loaded = StudentObject(sys.argv[1])
for name in loaded.names:
    child = os.fork()
    if child == 0:
        os.dup2(1, 2)
        print("CALL", name, flush=True)
        loaded.prepare(name, [torch.ones(100), 100])()
        print("SURVIVED", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.fixture(scope="module", params=["native", pytest.param("with torch", marks=pytest.mark.full)])
def faults(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    source = write(tmp_path_factory.mktemp("faulty"), includes("vector") + FAULTY + binding(*NAMES))
    return source, natively(source) if request.param == "native" else with_torch(source)


def natively(source: Path) -> dict[str, str]:
    made = nativebuild.build(source, sanitize=True)
    assert made.ok and made.program is not None, made.diagnostics
    reports = {}
    with NativeHost(checks=sanitize.options()) as host:
        for name in NAMES:
            with host.spawn(made.program, threads=1, limits=Limits(memory_bytes=None)) as session:
                arguments = [{"input": 0}, {"value": 100}]
                call = session.call(Request(name, arguments, [np.ones(100, np.float32)]))
            reports[name] = session.printed + ("SURVIVED" if call.status == "ok" else "")
    return reports


def with_torch(source: Path) -> dict[str, str]:
    made = build(source, sanitize=True)
    assert (made.ok, made.path) == (True, "light"), made.diagnostics
    printed = python("-c", CALL_EACH, made.object_path, timeout_s=600, **sanitize.environment()).stdout
    return {part.split("\n", 1)[0].strip(): part for part in printed.split("CALL ")[1:]}


def test_sanitizers_name_the_students_own_line(faults: tuple[Path, dict[str, str]]) -> None:
    source, reports = faults
    for name, kind, quoted in (
        ("tensor_write", "heap-buffer-overflow write", ["p[i] = 1.0f;"]),
        ("input_read", "heap-buffer-overflow read", ["return q.data_ptr<float>()[n];"]),
        ("vector_read", "vector index", ["return t[x * w + y];", "s += twoDimRead(v, 0, i, n);"]),
        ("overflow", "undefined behaviour", ["x += n;"]),
    ):
        found = sanitize.report(reports[name], source)
        assert found is not None and found.kind == kind, reports[name]
        assert [frame.text for frame in found.frames] == quoted
        assert source.read_text().split("\n")[found.frames[0].line - 1].strip() == quoted[0]
        assert "overflow " not in kind or "index 100 of an array of 100 floats" in found.message
    assert "SURVIVED" in reports["fine"] and sanitize.report(reports["fine"], source) is None


@pytest.mark.skipif(not all(map(shutil.which, ("addr2line", "nm"))), reason="binutils is not installed")
def test_lines_are_found_in_a_folder_of_any_name(tmp_path: Path) -> None:
    """Frames of the kit's own functions are left out. Those of a program in a folder named like the kit count."""
    files = {"module.cpp": "int f() { return 1; }\nint main() { return f(); }\n"}
    folder = write_files(tmp_path / "my gpt149 (1)", files)
    built = folder / "program"
    subprocess.run([toolchain().compiler, "-g", "-o", built, "module.cpp"], cwd=folder, check=True)
    symbols = subprocess.check_output(["nm", built], text=True)
    address = int(next(row.split()[0] for row in symbols.split("\n") if row.endswith(" main")), 16)
    place = f"({built}+{address + 1:#x})"
    assert "module.cpp:2" in sanitize.with_lines(f"    #1 0x55d2 in main {place}", built)
    own = f"    #2 0x55d2 in void gpt149::Bound<float>::call() {place}"
    assert sanitize.with_lines(own, built) == own


#: Ways to files that are not the program's own, each as early as it can be. `SECRET` is a file that all may read.
READING = r"""
static int readable(const char *path) {
  char byte;
  int fd = open(path, O_RDONLY);
  return fd >= 0 && read(fd, &byte, 1) >= 0;
}
static int saw = 0;
__attribute__((constructor)) static void at_start() { saw |= readable(SECRET); }
static void before_all() { saw |= readable(SECRET) << 1; }
__attribute__((section(".preinit_array"), used)) static void (*first)() = before_all;
extern "C" {
static int closed() { return 0; }
static int opened() { return 1; }
__attribute__((no_sanitize("address", "undefined"))) static int (*chosen())() {
  long fd = -1;
#if defined(__x86_64__)
  asm volatile("syscall" : "=a"(fd) : "a"(2L), "D"(SECRET), "S"(0L) : "rcx", "r11", "memory");
#endif
  return fd >= 0 ? opened : closed;
}
int when_linked() __attribute__((ifunc("chosen")));
}
static void saw_by(const char *way, bool found) { std::printf("%s %s\n", found ? "SAW" : "no", way); }
torch::Tensor look(torch::Tensor t) {
  saw_by("a constructor", saw & 1);
  saw_by("code before all constructors", saw & 2);
  saw_by("a resolver of the loader's", when_linked());
  saw_by("a call", readable(SECRET));
  saw_by("its root", readable("/proc/self/root" SECRET));
  for (const char *path : {"/proc/1/environ", "/proc/self/environ", "/proc/self/mem", "/etc/passwd"})
    saw_by(path, readable(path));
  for (const char *path : {"/", "/tmp", "/proc", "/proc/self/fd"}) saw_by(path, opendir(path) != nullptr);
  long how[3] = {};
  saw_by("openat2", syscall(437, AT_FDCWD, SECRET, how, sizeof how) >= 0);
  saw_by("its own map", readable("/proc/self/maps"));
  std::fflush(stdout);
  return t;
}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has Landlock")
@pytest.mark.parametrize("sandbox", [OPEN, choose(trust=True)], ids=lambda sandbox: sandbox.tier)
def test_a_program_with_sanitizers_reads_its_own_files_alone(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = write(tmp_path, "answers", "secret")
    secret.chmod(0o644)
    text = f'#define SECRET "{secret}"\n{READING}{binding("look")}'
    text = includes("cstdio dirent.h fcntl.h unistd.h sys/syscall.h") + text
    made = nativebuild.build(write(tmp_path, text), sanitize=True)
    assert made.ok and made.program is not None, made.diagnostics
    given = {"threads": 1, "limits": Limits(memory_bytes=None)}
    with NativeHost(sandbox, checks=sanitize.options()) as host, host.spawn(made.program, **given) as session:
        assert "landlock" in host.applied
        call = session.call(Request("look", [{"input": 0}], [np.ones(1, np.float32)]))
    assert call.status == "ok", session.printed
    lines = session.printed.splitlines()
    assert [line for line in lines if line.startswith("SAW")] == ["SAW its own map"]
    assert len([line for line in lines if line.startswith("no ")]) == 14


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has Landlock")
def test_a_kernel_without_landlock_starts_no_program_with_sanitizers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "landlock_version", lambda: 0)
    for sandbox in (OPEN, Sandbox("C", seccomp=True, own_uid=True)):
        refused("need Landlock", NativeHost, sandbox, checks=sanitize.options(), of=KitError)
