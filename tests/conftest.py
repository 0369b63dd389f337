"""The build cache of all tests, and fixtures and helpers for most test files."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import pytest
from _pytest.mark.structures import ParameterSet
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
# Builds of tests stay out of the user's cache. The next run and parallel workers find them in this folder.
os.environ["GPT149_CACHE"] = str(ROOT / "build" / "test-cache")
# Each judge gets one thread: two parallel test workers of two threads each would compete for two cores. For runners the
# kit sets this variable to their own number of threads.
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(ROOT))

from classes.acting_class import HANG_S, Class  # noqa: E402
from handing_in import put as put  # noqa: E402

from grader.assignment.loading import load  # noqa: E402
from grader.assignment.mutations import Mutation  # noqa: E402
from grader.assignment.records import Assignment, Part  # noqa: E402
from grader.backends.torch.zygote import Zygote  # noqa: E402  (it reads the environment and lies in ROOT)
from grader.core.errors import UsageError  # noqa: E402
from grader.core.results import Flag, SubmissionResult  # noqa: E402
from grader.explain import explanation_errors, repair, size_probe  # noqa: E402
from grader.judge.bench import Options  # noqa: E402
from grader.judge.evaluate import evaluate  # noqa: E402
from grader.sandbox import Sandbox, choose  # noqa: E402

# By default Hypothesis fails a test if an example takes 200 ms. Busy machines exceed this limit, so it is removed.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

COURSE = ROOT / "configs" / "gpt149.yaml"
ASSIGNMENT = load(COURSE)
Patch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]


def pytest_configure() -> None:
    """Remove runners' root folders that remain from killed test runs."""
    for root in Path(tempfile.gettempdir()).glob("gpt149-root-*-*"):
        with contextlib.suppress(OSError, ValueError):
            try:
                os.kill(int(root.name.split("-")[2]), 0)
            except ProcessLookupError:
                root.rmdir()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Return the argument's name as the id of bytes, which may differ between workers. None: pytest's own id."""
    return argname if isinstance(val, bytes) else None


T = TypeVar("T")
Key = Callable[[T], Hashable]


def one_of_each(values: Iterable[T], key: Key[T], name: Any = None) -> list[ParameterSet]:
    """Return parameters for `parametrize`: the fast tier runs the first value of each key, the full tier all values.

    `key` maps a value to the behaviour that it tests, `name` to its test id. A tuple is several arguments of the test.
    """
    seen: set[Hashable] = set()
    found = []
    for value in values:
        marks = [pytest.mark.full] if key(value) in seen else []
        seen.add(key(value))
        arguments = value if isinstance(value, tuple) else (value,)
        found.append(pytest.param(*arguments, marks=marks, id=name(value) if name else None))
    return found


def some(values: Iterable[object], one_of: int) -> list[ParameterSet]:
    """Return parameters for `parametrize`: the full tier runs all values, the fast tier every `one_of`-th value."""
    found = []
    for at, value in enumerate(values):
        arguments = value if isinstance(value, tuple) else (value,)
        marks = [pytest.mark.full] if at % one_of else []
        found.append(pytest.param(*arguments, marks=marks, id=value if isinstance(value, str) else None))
    return found


def code_of(mutation: Mutation) -> Hashable:
    return mutation.codes[:1]


part_of = attrgetter("part")
Made = Sequence[Mutation]


def in_files(made: Made, key: Key[Mutation], most: int = 45, elsewhere: Made = ()) -> list[ParameterSet]:
    """Return parameters for `parametrize`, each a list of at most `most` kernels that are judged in one file.

    The full tier runs all kernels; the fast tier the first of each key, unless a kernel in `elsewhere` has the key.
    """
    tried = {key(mutation) for mutation in elsewhere}
    first = {key(mutation): mutation for mutation in reversed(made) if key(mutation) not in tried}
    chosen = [mutation for mutation in made if first.get(key(mutation)) is mutation]
    others = [mutation for mutation in made if first.get(key(mutation)) is not mutation]
    return [
        pytest.param(some[start : start + most], marks=marks, id=f"{name} from {start}")
        for name, some, marks in (("first", chosen, ()), ("others", others, pytest.mark.full))
        for start in range(0, len(some), most)
    ]


#: Variables that pytest sets for each test, and that torch sets when it first looks for a GPU or compiles.
SET_BY_OTHERS = {"PYTEST_CURRENT_TEST", "CUDA_MODULE_LOADING", "TORCHINDUCTOR_CACHE_DIR"}


def process_state() -> dict[str, object]:
    environment = {name: value for name, value in os.environ.items() if name not in SET_BY_OTHERS}
    handlers = {number.name: signal.getsignal(number) for number in signal.Signals}
    return {"environment": environment, "folder": os.getcwd(), "path": list(sys.path), "handlers": handlers}


@pytest.fixture(autouse=True)
def process_state_is_restored() -> Iterator[None]:
    """Fail a test that does not restore environment, working directory, import path and signal handlers."""
    before = process_state()
    yield
    assert process_state() == before


@pytest.fixture(autouse=True)
def failed_explanations() -> Iterator[list[Flag]]:
    """Fail a test in which an explanation raised an exception. A test that provokes one clears the yielded list."""
    failed: list[Flag] = []
    flags = explanation_errors.flags

    def recorded() -> list[Flag]:
        failed.extend(found := flags())
        return found

    with patch.object(explanation_errors, "flags", recorded):
        yield failed
    assert not failed


@pytest.fixture
def edited_builds() -> None:
    """Let this test search for an edit that makes a part right. Other tests skip the search, because it compiles."""


@pytest.fixture(autouse=True)
def few_builds(request: pytest.FixtureRequest) -> Iterator[None]:
    is_asked = "edited_builds" in request.fixturenames
    with patch.object(repair, "MOST_BUILDS", repair.MOST_BUILDS if is_asked else 0):
        yield


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Yield a zygote (which forks runners with torch) without a sandbox. Tests share it: its start imports torch."""
    with Zygote(at_once=False) as one:
        yield one


@pytest.fixture(scope="session")
def master() -> str:
    """Return the text of the assignment's master source, staff solution included."""
    return (ROOT / "module.cpp").read_text()


@pytest.fixture
def acting(tmp_path: Path) -> Class:
    return Class(tmp_path)


@pytest.fixture
def due_date(acting: Class) -> None:
    """Give the assignment a due date, and a penalty of 5 points for each late day."""
    late = "\nlate: {due: 2026-11-14T23:59:00-08:00, per_day: {points: 5}}\n"
    acting.config.write_text(acting.config.read_text() + late)


@pytest.fixture
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture
def few_probes(monkeypatch: Patch) -> None:
    """Allow only 4 calls for finding sizes at which a kernel is wrong. Tests of attention do not use this limit."""
    monkeypatch.setattr(size_probe, "MOST_CALLS", 4)


needs_delays = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has timers of single threads")


def insert_at_start(source: str, function: str, statements: str) -> str:
    """Put statements at the beginning of a function's body. Raises ValueError if the source lacks the function."""
    opened = source.index("{", source.index(f" {function}(")) + 1
    return f"{source[:opened]}\n    {statements}\n{source[opened:]}"


def keeping(source: str, *functions: str) -> str:
    """Return the source without the attention kernels that `functions` does not name: they need not be compiled."""
    for name in re.findall(r"^torch::Tensor (my\w+)\(", source, re.MULTILINE):
        if name not in functions:
            source = re.sub(rf"^torch::Tensor {name}\(.*?^}}\n", "", source, flags=re.DOTALL | re.MULTILINE)
            source = re.sub(rf'^ *m\.def\("{name}".*?;\n', "", source, flags=re.DOTALL | re.MULTILINE)
    return source


def lightly(text: str) -> str:
    """Return the C++ text with a pragma for -O1, after its headers, which may be precompiled. It must not be timed."""
    first = max((one.end() for one in re.finditer(r"^#include.*\n", text, re.MULTILINE)), default=0)
    return f'{text[:first]}_Pragma("GCC optimize(\\"O1\\")")\n{text[first:]}'


def write(folder: Path, text: str, name: str = "module.cpp") -> Path:
    source = folder / name
    source.write_text(text, encoding="utf-8")
    return source


def line_of(text: str, what: str) -> int:
    (found,) = (number for number, line in enumerate(text.split("\n"), 1) if what in line)
    return found


def refused(why: str, act: Callable[..., object], *given: Any, of: Any = UsageError, **named: Any) -> str:
    """Assert that a call raises an error of one line that matches the regular expression `why`. Return the line."""
    with pytest.raises(of, match=why or None) as error:
        act(*given, **named)
    assert "\n" not in str(error.value)
    return str(error.value)


def python(
    *words: Any, folder: Path = ROOT, text: bool = True, timeout_s: float = 120, code: Any = None, **more: Any
) -> subprocess.CompletedProcess[Any]:
    """Run Python with arguments `words` and environment variables `more`. `code`: required exit code (None: any)."""
    given = {**os.environ, **{name: str(value) for name, value in more.items()}}
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": text, "timeout": timeout_s}
    ended = subprocess.run([sys.executable, *map(str, words)], cwd=folder, env=given, **options)
    assert code in (None, ended.returncode), (ended.stdout[-3000:], ended.stderr[-3000:])
    return ended


grader = partial(python, "-m", "grader", timeout_s=2 * HANG_S, code=0)


def results_alone(
    of: Assignment, source: Path, parts: Iterable[Part], zygote: Zygote | None = None, **options: Any
) -> SubmissionResult:
    """Judge these parts of a file, without times and profiles unless the options ask for them."""
    wanted = Options(**{"timing": False, "profile": False, **options})
    return evaluate(of, source, tuple(parts), wanted, zygote=zygote)


def tiers() -> list[Sandbox]:
    found = []
    for tier in "ABCD":
        with contextlib.suppress(UsageError):
            found.append(choose(tier, trust=tier == "D"))
    return found
