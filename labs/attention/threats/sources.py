"""Makes source files from rows of threats, judges them, and checks verdicts and flags.

A file has a prelude that all files share, one function for each row, and the PYBIND11_MODULE that exports them.
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
    """Required outcome of a row (an attempt or a control): the verdict, flags and texts that its result must have.

    Without `flags`, the part must have no flag that a person has to look at, unless `any_flag` is True.
    """

    #: Allowed verdicts.
    verdicts: tuple[str, ...]
    #: Codes of flags. The part must have at least one of them.
    flags: tuple[str, ...] = ()
    any_flag: bool = False
    #: Texts that must not occur in the JSON text of the part's result.
    silent: tuple[str, ...] = ()
    #: Text that must occur in the JSON text of the part's result.
    says: str = ""


@dataclass(frozen=True)
class Threat:
    """One attempt or control, a row of the tables. In its source texts, `{name}` stands for a value of `places`."""

    #: Kind of the attempt, such as "C1" (the package's docstring lists the letters); "" for a control.
    row: str
    name: str
    end: End
    #: Statements of the kernel. They may use the names that PRELUDE describes.
    body: str = ""
    #: Text before all functions.
    top: str = ""
    #: Statements at the end of the file's PYBIND11_MODULE.
    binds: str = ""
    #: Text of the whole file, in place of the one made from `body`, `top` and `binds`.
    source: str = ""
    #: The kernel is judged as this part of the assignment.
    part: str = "part1"
    #: True: the judge also measures the kernel's time.
    timed: bool = False
    #: Required outcome in tier D, where the compiler can read the judge's files; None: the same as `end`.
    open_end: End | None = None
    #: Required outcome if it is "unjudged": the machine lacks what the file needs. None: that is a fault of the kit.
    lacking_end: End | None = None
    #: Files beside module.cpp: text by name.
    files: Mapping[str, str] = field(default_factory=dict)
    #: Kind of forbidden functions that the row calls, or "". Only rows of one kind share a file, because the flag for
    #: such calls is for a whole file.
    calls: str = ""
    #: Limit of the build, in s.
    build_s: float = 60.0
    #: True: no other row is in the same file.
    alone: bool = False
    #: Another part of the assignment, which is in `source` under its own name and is judged first; "" for none.
    beside: str = ""
    #: Limit of the time to judge the file, in s; 0 for none.
    wall_s: float = 0.0
    #: True: the judge searches the kernel for data races.
    watched: bool = False

    def end_in(self, tier: str, verdict: str) -> End:
        """Return the required outcome of a part that got this verdict."""
        if verdict == "unjudged" and self.lacking_end is not None:
            return self.lacking_end
        return self.open_end if tier == "D" and self.open_end is not None else self.end

    @property
    def has_own_file(self) -> bool:
        return bool(self.alone or self.source or self.files)

    @property
    def depends_on_tier(self) -> bool:
        """Return True if the attempt's outcome depends on the sandbox's tier."""
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

// Rounds off the last `bits` bits of each mantissa: 13 to get half precision, 16 to get bfloat16.
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
    """One source file with one or more rows. Each row is judged as a part; `threats` maps the part's id to the row."""

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
    """Return source files that contain all rows. Rows that are judged with the same options may share a file."""
    files: dict[object, list[Threat]] = {}
    for row in rows:
        alike = (row.timed, row.calls, row.depends_on_tier, row.watched)
        files.setdefault((row.row, row.name) if row.has_own_file else alike, []).append(row)
    return [_submission(file) for file in files.values()]


def function(part_id: str) -> str:
    """Return the name of the kernel that is judged as this part."""
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


# ---- judge a file: write it to a folder, build it and run it like any submission, with short limits

SECRET = "SEEN-the-hidden-answers"
SHAPE = {"B": 1, "H": 2, "N": 128, "d": 32, "Br": 32, "Bc": 32}
#: Limits of a call: enough for a kernel of this size on a busy machine, and short because some threats reach them.
CALL_S, MEMORY_GIB = 3.0, 1.0
TIME_BUDGET_S = 10.0
CASES = 3
"""Number of cases: only a part's first ones (ramp, random values, a ragged shape with several batches) are judged."""


def places(folder: Path) -> dict[str, str]:
    """Return the values for `{name}` in the texts of rows, and write the `secret` file that no kernel may read.

    `reference` is the path of the reference library, `symbol` the name of one of its functions. `marker` is a name for
    files that a row tries to leave behind.
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
    """Return the text with each `{name}` replaced by its value, and each `{name:hidden}` by numbers: the value's bytes
    XOR 0x55. So a search of the object file for the value finds nothing."""
    for name, value in named.items():
        text = text.replace(f"{{{name}}}", value)
        hidden = ", ".join(str(byte ^ 0x55) for byte in [*value.encode(), 0])
        text = text.replace(f"{{{name}:hidden}}", hidden)
    return text


@functools.cache
def course() -> Assignment:
    return loading.load(PUBLIC_CONFIG)


def asked(threat: Threat, part_id: str) -> Part:
    """Return the assignment's part that a threat attacks, with the id `part_id` and the name of the threat's kernel."""
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
    """Judge a file in `folder`. `named` has the values from `places`; `confinement` has `evaluate`'s sandbox arguments.

    `table`: True to profile right kernels in a process with torch. A student's own run does this; the grading of a
    class does not.
    """
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


# ---- compare a row's result with its required outcome

LONGEST_FLAG = 1000
"""Limit on the characters of a flag's message, also for files with very long names."""


def flag_codes(result: SubmissionResult, part: PartResult) -> set[str]:
    """Return the codes of the flags that people have to look at: flags of the part, and flags of the whole file."""
    of_others = {flag for other in result.parts for flag in other.flags}
    of_file = [flag for flag in result.flags if flag not in of_others]
    return {flag.code for flag in (*of_file, *part.flags) if flag.level != "note"}


def faults(threat: Threat, tier: str, result: SubmissionResult, part: PartResult) -> list[str]:
    """Return the differences between a part's result and the row's required outcome, in words; [] without any."""
    end, found = threat.end_in(tier, part.verdict), []
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
    # A wrong part may earn points for its right cases, and a slow part the points for its time.
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
