"""What the tests share: one build cache for all of them, and ways to make a submission from the master source."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Builds of the tests stay out of the user's cache, and are found again by the next run and by parallel workers.
os.environ["GPT149_CACHE"] = str(ROOT / "build" / "test-cache")
# One thread for each judge: two workers of two threads each would fight over two cores. Runners have their own number.
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(ROOT))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are no name: an archive holds the time it was made, and the workers of one run have to agree on names."""
    return argname if isinstance(val, bytes) else None


#: Files whose tests take seconds each, for two workers to begin with: the first makes what the cache lacks while the
#: second is busy with arithmetic, and neither is left alone with a long test at the end. Nor is
#: a file divided whose fixture is costly: what one worker takes from the other are the last tests of its list.
FIRST = (
    (
        *(
            "test_class_of_sixty",
            "test_bugs",
            "test_plain_torch",
            "test_build",
            "test_verdicts",
            "test_classroom",
        ),
        *("test_sanitize", "test_cluster", "test_without_torch", "test_published"),
    ),
    (
        *("test_gpu_lab", "test_diagnose", "test_oracle", "test_labs", "test_release_runs", "test_threats"),
        *("test_family", "test_operators_ladder", "test_student_run", "test_textgen_train"),
    ),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each of two workers, which get one half of the list each, begin with the long tests of its half."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    place = {name: (half, rank) for half, names in enumerate(FIRST) for rank, name in enumerate(names)}
    long: tuple[list[pytest.Item], list[pytest.Item]] = ([], [])
    for item in items:
        if item.path.stem in place:
            long[place[item.path.stem][0]].append(item)
    for half in long:
        half.sort(key=lambda item: place[item.path.stem])
    short = [item for item in items if item.path.stem not in place]
    beside = max(0, len(items) // 2 - len(long[0]))
    items[:] = [*long[0], *short[:beside], *long[1], *short[beside:]]


@pytest.fixture(scope="session")
def master() -> str:
    """The text of the assignment's master source, staff solution included."""
    return (ROOT / "module.cpp").read_text()


#: Races are brought out by timers of a thread, and by pinning those that work.
needs_delays = pytest.mark.skipif(
    sys.platform != "linux", reason="macOS has no such timers, and does not tell who worked"
)


def insert_at_start(source: str, function: str, statements: str) -> str:
    """The source with statements put first in one function's body. Raises ValueError when there is no such function."""
    declared = source.index(f" {function}(")
    opened = source.index("{", declared)
    return source[: opened + 1] + "\n    " + statements + "\n" + source[opened + 1 :]


def keeping(source: str, *functions: str) -> str:
    """The source with these of its attention kernels alone: what a test does not judge need not be compiled."""
    for name in re.findall(r"^torch::Tensor (my\w+)\(", source, re.MULTILINE):
        if name not in functions:
            source = re.sub(rf"^torch::Tensor {name}\(.*?^}}\n", "", source, flags=re.DOTALL | re.MULTILINE)
            source = re.sub(rf'^ *m\.def\("{name}".*?;\n', "", source, flags=re.DOTALL | re.MULTILINE)
    return source
