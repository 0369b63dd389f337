"""Makes source files from rows of threats, judges them, and checks how they ended.

A file has a prelude that all files share, one function for each row, and the binding table.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from grader import score
from grader.assignment import loading
from grader.assignment.records import Assignment, Part
from grader.backends.torch.zygote import Zygote
from grader.core.places import PUBLIC_CONFIG
from grader.core.results import PartResult, SubmissionResult
from grader.judge.bench import Options
from grader.judge.evaluate import evaluate
from grader.study import watch_races


@dataclass(frozen=True)
class End:
    """Required end of a row: its verdict, flags and texts.

    Without `flags`, the part must have no flag for people, unless `any_flag` allows all.
    """

    #: The row must end in one of these verdicts.
    verdicts: tuple[str, ...]
    #: Codes of flags, of which the part must have one.
    flags: tuple[str, ...] = ()
    any_flag: bool = False
    #: Texts that must not be in the result.
    silent: tuple[str, ...] = ()
    #: Text that must be in the result.
    says: str = ""


@dataclass(frozen=True)
class Threat:
    """One attempt or control. In its texts, `{name}` is replaced by the values of `places`."""

    #: The kind of attempt, such as "C1"; "" for a control.
    row: str
    name: str
    end: End
    #: Statements of the kernel; PRELUDE has the names that they may use.
    body: str = ""
    #: Text before all functions.
    top: str = ""
    #: Text after the file's other bindings.
    binds: str = ""
    #: Replaces the whole file.
    source: str = ""
    #: The kernel is judged as this part of the assignment.
    part: str = "part1"
    timed: bool = False
    #: Required end in tier D, where a compiler sees the judge's files; None if it is `end`.
    open_end: End | None = None
    #: Files beside module.cpp.
    files: Mapping[str, str] = field(default_factory=dict)
    #: Kind of functions that the row calls and no kernel needs. Rows of one kind share files, because an object is
    #: flagged as a whole.
    calls: str = ""
    #: Limit of the build, in s.
    build_s: float = 60.0
    #: The row shares its file with no other.
    alone: bool = False
    #: A further part of the file, judged first under its own name.
    beside: str = ""
    #: Limit of the time to judge the file, in s; 0 for none.
    wall_s: float = 0.0
    #: The kernel is searched for data races.
    watched: bool = False

    def end_in(self, tier: str) -> End:
        return self.open_end if tier == "D" and self.open_end is not None else self.end

    @property
    def has_own_file(self) -> bool:
        return bool(self.alone or self.source or self.files)

    @property
    def depends_on_tier(self) -> bool:
        """Return True if only a sandbox stops the attempt."""
        return self.row >= "C" or self.open_end is not None


#: Start of each file. A row's body may use the tensors `QT KT VT` and `O` (zeros, the result), and the sizes `B H N d`.
#: `q k v o` are the tensors' data. `attention` is a right kernel, `attention_of` the same for one head, `rounded_to`
#: rounds numbers to fewer bits, `burn_ms` uses CPU time.
PRELUDE = """
#include <torch/extension.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <omp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

__attribute__((noinline))
static void attention_of(const float *q, const float *k, const float *v, float *o, int N, int d) {
    std::vector<float> s(N);
    for (int i = 0; i < N; i++) {
        float sum = 0;
        for (int j = 0; j < N; j++) {
            float dot = 0;
            for (int c = 0; c < d; c++) dot += q[i * d + c] * k[j * d + c];
            sum += s[j] = std::exp(dot);
        }
        for (int c = 0; c < d; c++) o[i * d + c] = 0;
        for (int j = 0; j < N; j++)
            for (int c = 0; c < d; c++) o[i * d + c] += s[j] / sum * v[j * d + c];
    }
}

[[maybe_unused]] __attribute__((noinline))
static void attention(const float *q, const float *k, const float *v, float *o, int heads, int N, int d) {
    for (int p = 0; p < heads; p++)
        attention_of(q + p * N * d, k + p * N * d, v + p * N * d, o + p * N * d, N, d);
}

// Numbers with so many bits of the mantissa fewer: 13 leave those of half precision, 16 those of bfloat16.
[[maybe_unused]] static torch::Tensor rounded_to(const torch::Tensor &given, int bits) {
    torch::Tensor made = given.clone();
    float *numbers = made.data_ptr<float>();
    for (int64_t e = 0; e < made.numel(); e++) {
        uint32_t word;
        std::memcpy(&word, &numbers[e], 4);
        word = (word + (1u << (bits - 1))) >> bits << bits;
        std::memcpy(&numbers[e], &word, 4);
    }
    return made;
}

[[maybe_unused]] static void burn_ms(double ms) {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    double until = now.tv_sec * 1e3 + now.tv_nsec * 1e-6 + ms;
    do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    while (now.tv_sec * 1e3 + now.tv_nsec * 1e-6 < until);
}
"""

_TENSORS = ", ".join(f"torch::Tensor {name}" for name in ("QT", "KT", "VT", "workspace"))


@dataclass(frozen=True)
class Submission:
    """One source file. `threats` has its rows by the id of the part that each row is; all rows are timed, or none."""

    threats: Mapping[str, Threat]
    text: str

    @property
    def first(self) -> Threat:
        return next(iter(self.threats.values()))

    @property
    def name(self) -> str:
        first = f"{self.first.row} {self.first.name}".strip()
        return first if len(self.threats) == 1 else f"{first}, and {len(self.threats) - 1} more"


def submissions(rows: Iterable[Threat]) -> list[Submission]:
    """Return source files that contain all rows. Rows that are judged in the same way share a file, unless `alone`."""
    files: dict[object, list[Threat]] = {}
    for row in rows:
        alike = (row.timed, row.calls, row.depends_on_tier, row.watched)
        files.setdefault((row.row, row.name) if row.has_own_file else alike, []).append(row)
    return [_submission(file) for file in files.values()]


def function(part_id: str) -> str:
    """Return the name of a row's kernel."""
    return f"kernel_{part_id}"


def _submission(rows: list[Threat]) -> Submission:
    placed = {f"row{k}": row for k, row in enumerate(rows)}
    if rows[0].source:
        return Submission(placed, rows[0].source)
    tops = "".join(row.top for row in rows)
    kernels = "".join(_kernel(part_id, row) for part_id, row in placed.items())
    table = "".join(f'    m.def("{function(part_id)}", &{function(part_id)});\n' for part_id in placed)
    table += "".join(row.binds for row in rows)
    bindings = f"\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{\n{table}}}\n"
    return Submission(placed, PRELUDE + tops + kernels + bindings)


def _kernel(part_id: str, row: Threat) -> str:
    return f"""
// {row.row} {row.name}
torch::Tensor {function(part_id)}({_TENSORS}, int B, int H, int N, int d) {{
    torch::Tensor O = at::zeros({{B, H, N, d}}, at::kFloat);
    [[maybe_unused]] float *q = QT.data_ptr<float>(), *k = KT.data_ptr<float>(), *v = VT.data_ptr<float>();
    [[maybe_unused]] float *o = O.data_ptr<float>();
    {row.body.strip()}
    return O;
}}
"""


# ---- judging a file: it is written to a folder, built and run like any submission, with short limits

SECRET = "SEEN-the-hidden-answers"
SHAPE = {"B": 1, "H": 2, "N": 128, "d": 32, "Br": 32, "Bc": 32}
#: Limits of a call: enough for a kernel of this size on a busy machine. They are short: some threats reach them.
CALL_S, MEMORY_GIB = 3.0, 1.0
TIME_BUDGET_S = 10.0
CASES = 3
"""The first cases of a part: the ramp, random values, and a ragged shape with several batches. They suffice here."""


def places(folder: Path) -> dict[str, str]:
    """Return the values for `{name}` in the texts of rows, and write the secret file that no kernel may read.

    `reference` is the path of the reference library, `symbol` a function of it. `marker` is the name of files that a
    row tries to leave behind.
    """
    from module_ref_stub import library_path

    secret = folder / "secret" / "hidden.txt"
    secret.parent.mkdir(mode=0o700, exist_ok=True)
    secret.write_text(SECRET)
    secret.chmod(0o600)
    return {
        "reference": str(library_path()),
        "symbol": "gpt149_ref_naive",
        "secret": str(secret),
        "marker": f"gpt149-threat-{folder.parent.name}-{folder.name}",
    }


def filled(text: str, named: Mapping[str, str]) -> str:
    """Return the text with each `{name}` replaced by its value, and `{name:hidden}` by its bytes as disguised numbers.
    A search of the object for the value then finds nothing."""
    for name, value in named.items():
        text = text.replace(f"{{{name}}}", value)
        hidden = ", ".join(str(byte ^ 0x55) for byte in [*value.encode(), 0])
        text = text.replace(f"{{{name}:hidden}}", hidden)
    return text


@functools.cache
def course() -> Assignment:
    return loading.load(PUBLIC_CONFIG)


def asked(threat: Threat, part_id: str) -> Part:
    """Return the part that a threat attacks, under the id that it has in its file."""
    part = course().part(threat.part)
    return replace(part, id=part_id, function=function(part_id), cases=part.cases[:CASES])


def judge(
    submission: Submission,
    folder: Path,
    named: Mapping[str, str],
    zygote: Zygote,
    *,
    table: bool = True,
    **confinement: object,
) -> SubmissionResult:
    """Judge a file in `folder`. With `table`, right kernels are profiled in a process with torch, as in a student's
    own run; a class's run does not. `named`: values from `places`. `confinement`: `evaluate`'s sandbox arguments."""
    first = submission.first
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "module.cpp"
    source.write_text(filled(submission.text, named))
    for name, text in first.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    limits = replace(course().limits, call_s=CALL_S, build_s=first.build_s, memory_gib=MEMORY_GIB)
    options = Options(
        shape=SHAPE,
        timing=first.timed,
        profile=table,
        seed=149,
        time_budget_s=TIME_BUDGET_S,
        watch_races=watch_races if first.watched else None,
    )
    parts = [asked(threat, part_id) for part_id, threat in submission.threats.items()]
    if first.beside:
        part = course().part(first.beside)
        parts.insert(0, replace(part, cases=part.cases[:CASES]))
    limited = replace(course(), limits=limits)
    result = evaluate(limited, source, tuple(parts), options, zygote=zygote, **confinement)  # type: ignore[arg-type]
    return replace(result, parts=tuple(part for part in result.parts if part.id in submission.threats))


# ---- check that a row ended as it must

LONGEST_FLAG = 1000
"""Most characters of a flag's message: a file with long names must not make it long."""


def flag_codes(result: SubmissionResult, part: PartResult) -> set[str]:
    """Return the codes of the flags that people have to look at: the part's, and those of the file as a whole."""
    of_others = {flag for other in result.parts for flag in other.flags}
    of_file = [flag for flag in result.flags if flag not in of_others]
    return {flag.code for flag in (*of_file, *part.flags) if flag.level != "note"}


def faults(threat: Threat, tier: str, result: SubmissionResult, part: PartResult) -> list[str]:
    """Return how a part's result differs from the row's required end, in words; [] if it does not."""
    end, found = threat.end_in(tier), []
    if part.verdict not in end.verdicts:
        found.append(f"ended as {part.verdict}, not {' or '.join(end.verdicts)}: {part.diagnosis}")
    if part.verdict == "rejected" and not any(flag.level == "rejected" for flag in part.flags):
        found.append("rejected without a flag that says why")
    raised = flag_codes(result, part)
    if end.flags and not raised & set(end.flags):
        found.append(f"no flag {' or '.join(end.flags)}, but {sorted(raised) or 'none'}")
    if not end.flags and not end.any_flag and raised:
        found.append(
            f"flagged though nothing is wrong with it: {[str(flag) for flag in (*result.flags, *part.flags)]}"
        )
    # A wrong or slow part may earn some of its points, for its right cases.
    points, _ = score.part_points(asked(threat, part.id), part)
    if points > (0 if part.verdict not in ("pass", "slow", "wrong") else part.max_points):
        found.append(f"earned {points} points with {part.verdict}")
    if part.verdict in ("slow", "wrong") and points >= part.max_points:
        found.append(f"earned all its points with {part.verdict}")
    found += [
        f"a flag of {len(flag.message)} characters: {flag.message[:80]}..."
        for flag in (*result.flags, *part.flags)
        if len(flag.message) > LONGEST_FLAG
    ]
    report = json.dumps(asdict(part), default=str, ensure_ascii=False)
    found += [f"'{text}' is in the result" for text in end.silent if text in report]
    if end.says and end.says not in report:
        found.append(f"'{end.says}' is not in the result: {part.output!r} {part.diagnosis}")
    return found
