"""The process that runners are forked from: its imports, and its `sys.stderr`, which is not the kernel's output."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from building import HEAD, binding, write

from grader.base.arrays import np
from grader.base.errors import KitError
from grader.build.torchbuild import build
from grader.run import zygote as zygote_module
from grader.run.calls import Request
from grader.run.session import Session
from grader.run.zygote import Zygote

#: A kernel that makes the interpreter beside it print, as torch does, and list its imports.
SPEAKS = (
    HEAD
    + r"""
#include <cstdio>
#include <dlfcn.h>
static void python(const char *text) {
  auto run = reinterpret_cast<int (*)(const char *)>(dlsym(RTLD_DEFAULT, "PyRun_SimpleString"));
  auto take = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
  auto leave = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
  int held = take();
  run(text);
  leave(held);
}
torch::Tensor imported(torch::Tensor t) {
  python("import sys; seen = set(sys.modules); print('new:', *sorted(seen - getattr(sys, 'seen_before', seen)),"
         " flush=True); sys.seen_before = seen");
  return t.clone();
}
torch::Tensor speaks(torch::Tensor t) {
  std::printf("printed by C\n");
  std::fflush(stdout);
  std::fprintf(stderr, "an error by C\n");
  python("print('printed by Python', flush=True)");
  python("import sys, warnings, logging; warnings.warn('noise of warnings'); sys.stderr.write('noise of stderr\\n')");
  python("logging.getLogger('torch').error('noise of logging'); logging.StreamHandler(sys.__stderr__).emit(None)");
  python("raise ValueError('noise of a traceback')");
  return t.clone();
}
"""
    + binding("imported", "speaks")
)


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as started:
        yield started


@pytest.fixture
def runner(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    made = build(write(tmp_path_factory.mktemp("speaks"), SPEAKS))
    assert made.ok and made.object_path, made.diagnostics
    with zygote.spawn("student", made.object_path, threads=1) as session:
        yield session


def request(function: str) -> Request:
    return Request(function, [{"input": 0}], [np.ones((2, 3), np.float32)], (2, 3))


def test_nothing_is_imported_after_the_fork(runner: Session) -> None:
    """In tier A the way to an environment below /tmp is closed once a runner has been cleared away."""
    for label in (None, "SOME LABEL", None):
        call = runner.call(request("imported"), profile_label=label, echo_inputs=True)
        assert call.status == "ok" and (label is None or call.profile)
    runner.close()
    assert runner.printed.splitlines() == ["new:"] * 3


def test_what_python_says_by_itself_is_not_the_kernels(runner: Session) -> None:
    assert runner.call(request("speaks")).status == "ok"
    runner.close()
    assert runner.printed.splitlines() == ["printed by C", "an error by C", "printed by Python"]


def test_a_nursery_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its own tracebacks still reach the judge."""
    broken = tmp_path / "forkserver.py"
    text = zygote_module.FORK_SERVER.read_text()
    broken.write_text(text.replace("    import torch\n", "    import torch_that_is_not_there as torch\n", 1))
    monkeypatch.setattr(zygote_module, "FORK_SERVER", broken)
    with Zygote() as started, pytest.raises(KitError, match="torch_that_is_not_there"):
        started.spawn("torch", "", threads=1)
