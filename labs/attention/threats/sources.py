"""From rows to source files: the prelude that all share, one function for each row, and the table at the end."""

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
    """`verdicts` are the acceptable ones. If `flags` (codes) is not empty, one of them must be raised. Else the part
    must have no flag for people, unless `any_flag` allows any. `silent` are texts that must appear nowhere in the
    result. `says` is a text that must be in the kernel's output or in the diagnosis.
    """

    verdicts: tuple[str, ...]
    flags: tuple[str, ...] = ()
    any_flag: bool = False
    silent: tuple[str, ...] = ()
    says: str = ""


@dataclass(frozen=True)
class Threat:
    """One attempt. `row` is the kind of attempt, "" for a control.

    `body` are the statements of a kernel (see `sources.PRELUDE` for its names). `top` comes before all functions,
    `binds` after the file's other bindings; `source` replaces the whole file. `{name}` of `judging.places` (the
    reference library, a secret file, a name for leftovers) is filled in. It is judged as `part` of the assignment is;
    `timed` rows are measured as well. `open_end` is the end in tier D, where a compiler sees the judge's files. `files`
    lie beside module.cpp; `build_s` is what compilers may take. `calls` names what functions it calls that no kernel
    needs: such rows share files only among themselves, since an object is flagged as a whole. `alone` rows share with
    none. `beside` is a part of the file that is judged first, by its own name. `wall_s` is what judging the file may
    take, 0 for no limit. `watched` rows are searched for data races.
    """

    row: str
    name: str
    end: End
    body: str = ""
    top: str = ""
    binds: str = ""
    source: str = ""
    part: str = "part1"
    timed: bool = False
    open_end: End | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    calls: str = ""
    build_s: float = 60.0
    alone: bool = False
    beside: str = ""
    wall_s: float = 0.0
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


#: A body sees the tensors `QT KT VT` and `O` (zeros, the result), their data as `q k v o`, and `B H N d`.
#: `attention` is a right kernel, `attention_of` the same for one head, `rounded_to` takes precision away, `burn_ms`
#: uses CPU time.
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
    """One source file; each of its rows is a part, by the part's id. All of them are timed, or none."""

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
    """Return source files with every row, alone if it requires that, else with all others that are judged alike."""
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


# ---- judging one of the files: written to a folder, built and run as any submission is, with short limits

SECRET = "SEEN-the-hidden-answers"
SHAPE = {"B": 1, "H": 2, "N": 128, "d": 32, "Br": 32, "Bc": 32}
#: Limits of a call: enough for a kernel of this size on a busy machine, and small, since some threats use them up.
CALL_S, MEMORY_GIB = 3.0, 1.0
TIME_BUDGET_S = 10.0
CASES = 3
"""Cases for all threats: the ramp, random values, and a ragged shape with several batches. They expose every cheat."""


def places(folder: Path) -> dict[str, str]:
    """Return the values for names in rows: the reference library, a file of the judge's, and a folder that must stay
    empty.
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
    """Return the text with each `{name}` replaced by its value. `{name:hidden}` becomes the value's bytes as disguised
    numbers, so that a search of the object for the value finds nothing."""
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
    """Judge a file. With `table` as a student's run does, which profiles right kernels in a process with torch;
    without it as a class's run does. `confinement` are arguments of `evaluate` for the sandbox of the zygote."""
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
"""Characters of a flag's message: a few names, each of them short."""


def flag_codes(result: SubmissionResult, part: PartResult) -> set[str]:
    """Return the flags for people: the part's own and those of the file as a whole, not those of its other parts."""
    of_others = {flag for other in result.parts for flag in other.flags}
    of_file = [flag for flag in result.flags if flag not in of_others]
    return {flag.code for flag in (*of_file, *part.flags) if flag.level != "note"}


def faults(threat: Threat, tier: str, result: SubmissionResult, part: PartResult) -> list[str]:
    """Return the broken promises in words; empty when all is well."""
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
    # A wrong or slow part may earn a share of its points by its right cases.
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
