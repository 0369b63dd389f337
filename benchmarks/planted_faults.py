"""Plants faults in a copy of the kit, one at a time, and reports the tier of the test suite that catches each.

A fault is a small edit of the code that changes a behaviour which a test should state. First the fast tier runs
(`not full`), then the full tier; in each, the test files that most likely catch the fault (its near files) run first.
If neither tier catches a fault, the behaviour has no test. Aim: the fast tier catches 85 % of the faults, and both
tiers together all of them.

Copies. Each worker has its own copy of the files that git tracks or does not ignore. Before the tests of each fault,
the copy's build cache is replaced by hard links to the cache of a run without a fault. This is safe, because the kit
writes cache entries by rename. Nothing is written into the checkout.

Control. Before the first fault, the near files run without a fault. A test that fails then is named and left out. A
failure of a test in another file counts only if the test passes in the same copy after the fault is removed.

Exit code: 0 if the aims are met, 1 if not, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
FAST_AIM_PERCENT = 85.0
TIERS = {"fast": "not full", "full": "full"}
"""Marker expression of each tier, in the order in which tiers run."""
RUN_LIMIT_S = 3600.0
"""Time limit for a run of the suite. A fault that exceeds it counts as caught."""
ALL_PASSED, SOME_FAILED, INTERRUPTED, NOTHING_TO_RUN = 0, 1, 2, 5
"""Exit codes of pytest. It ends with INTERRUPTED if tests cannot be collected, for example after a failed import."""
FAILED_LINE = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
CACHE = Path("build", "test-cache")
"""Build cache of the tests, as tests/conftest.py sets it."""


@dataclass(frozen=True)
class Fault:
    """One edit: `new` replaces `old`, which occurs exactly once in `file`."""

    name: str
    file: str
    old: str
    new: str
    near: str
    """Test files that most likely catch the fault: names in tests/ without suffix, separated by blanks."""
    changes: str
    """Behaviour that the edit changes."""
    needs: str = ""
    """Python module that the tests of this behaviour need."""

    @property
    def near_files(self) -> tuple[str, ...]:
        return tuple(f"tests/{name}.py" for name in self.near.split())


@dataclass(frozen=True)
class Outcome:
    """Result for one fault. `caught_by` is a tier or "nothing", `test` is the first test that failed."""

    fault: str
    caught_by: str
    test: str
    seconds: float


# fmt: off
FAULTS = (
    # results
    Fault("tolerance_tenfold", "grader/explain/comparison.py",
          "right = error <= expected.tolerance", "right = error <= 10 * expected.tolerance",
          "test_oracle test_softmax wrong/test_family", "an error of five tolerances passes"),
    Fault("nan_accepted", "grader/explain/comparison.py",
          "right = error <= expected.tolerance", "right = ~(error > expected.tolerance)",
          "test_oracle test_verdicts", "an output of NaN passes"),
    Fault("hidden_cases_skipped", "grader/judge/correctness.py",
          "[Step(case) for case in self.part.cases if case.hidden]", "[]",
          "test_case_order test_ledger test_score", "no hidden case is called"),
    Fault("overwritten_inputs_pass", "grader/judge/marker.py",
          "refused = run.misfit if run.outputs is None else self.overwritten(run)", "refused = run.misfit",
          "wrong/test_family test_verdicts test_labs", "a kernel may write to its inputs"),
    Fault("case_seed_constant", "grader/assignment/inputs.py",
          "lab.make_inputs(distribution, shape, seed)", "lab.make_inputs(distribution, shape, 149)",
          "test_assignment test_reference", "cases of one shape and distribution have equal inputs"),
    Fault("race_delays_off", "grader/runner/session.py",
          'DELAYS * (delays and self.shares_work)', '0',
          "races/test_races test_native_runner", "threads are not delayed, so a race on one core passes"),
    Fault("suspects_exchanged", "labs/attention/suspects/formula.py",
          'row("maximum_only_above", "maximum_only_above",', 'row("maximum_only_above", "maximum_only_in_sum",',
          "test_diagnose wrong/test_family", "a bug is reported under another one's code"),
    Fault("sanitizer_line_off_by_one", "grader/backends/native/sanitize.py",
          'frames = [_frame(int(match["line"]), ', 'frames = [_frame(int(match["line"]) + 1, ',
          "test_sanitize test_closer", "a report of a sanitizer names the line below the fault"),
    Fault("interpreter_guard_off", "grader/backends/gpu/tensormemory.py",
          "    with contextlib.suppress(ImportError, AttributeError):\n", "    if not students:\n",
          "test_gpu_student", "Triton's interpreter reads and writes outside of tensors", needs="triton"),
    # time
    Fault("runner_not_stopped", "grader/runner/session.py",
          "            stop_threads(self.pid)\n", "            pass\n",
          "test_payloads test_native_runner test_integrity", "a runner may work between timed calls"),
    Fault("interval_end_off_by_one", "grader/judge/timing/intervals.py",
          "ordered[rank - 1], ordered[-rank])", "ordered[min(rank, len(ordered) - 1)], ordered[-rank])",
          "test_measure", "the interval's lower end is one order statistic too high"),
    Fault("fitness_check_off", "grader/judge/timing/measure.py",
          "    fit = is_fit(view.self_ratios())\n", "    fit = True\n",
          "test_measure", "a machine on which the reference differs from itself gives the verdict 'slow'"),
    Fault("timed_outputs_unchecked", "grader/judge/timing/rounds.py",
          "if self.is_right(run, SAMPLED_REFERENCE_ROWS if is_reference else SAMPLED_ROWS):",
          "if run.outputs is not None:",
          "test_threats", "a kernel may return anything while it is timed"),
    Fault("timed_inputs_repeat", "grader/judge/timing/rounds.py",
          'seed = derive(self.seed, "inputs", self.calls)', 'seed = derive(self.seed, "inputs")',
          "test_assignment test_reference", "a kernel may return what it stored in an earlier call"),
    # containment
    Fault("native_runner_opens_files", "grader/sandbox/seccomp.py",
          'NATIVE_ALLOWED = """\nread 0 63,', 'NATIVE_ALLOWED = """\nopen 2 -, openat 257 56, read 0 63,',
          "test_seccomp test_native_sandbox", "a native runner may open files by name"),
    Fault("landlock_off", "grader/sandbox/lock.py",
          'check(system_call(LANDLOCK_RESTRICT, ruleset, 0), "landlock")', "pass",
          "test_sandbox", "in tier B a runner sees every file"),
    Fault("memory_limit_off", "grader/backends/native/nativehost.py",
          "limits.memory_bytes + PROGRAM_BYTES if limits.memory_bytes is not None else 0", "0",
          "test_native_sandbox", "a native runner may take all memory"),
    Fault("orphans_not_swept", "grader/backends/torch/forkserver.py",
          "        if time.monotonic() > deadline:\n", "        if strays:\n",
          "test_sandbox test_native_runner", "processes that a runner started live on after it"),
    Fault("compiler_group_survives", "grader/sandbox/command.py",
          "os.killpg(process.pid, signal.SIGKILL)", "os.kill(process.pid, signal.SIGKILL)",
          "test_sandbox test_build", "children of a compiler live on after its time limit"),
    Fault("compiler_environment_kept", "grader/backends/native/compilers.py",
          '{name: os.environ[name] for name in ENVIRONMENT if name in os.environ}\n    return run_limited(',
          'dict(os.environ)\n    return run_limited(',
          "test_build", "CPATH changes the compiled object but not its cache key"),
    Fault("unread_lists_of_a_build", "grader/backends/native/stages.py",
          "        if not below:\n", "        if not known:\n",
          "test_threats", "a source may include any file of the machine in its object"),
    # flags for points without work
    Fault("same_work_unflagged", "grader/judge/part.py",
          "        self.look_for_other_work()\n", "",
          "test_same_work", "one loop registered as all parts gets no flag"),
    Fault("launches_unasked", "grader/backends/gpu/operators.py",
          "    if not checks.holds(replay.case, replay.inputs, call):\n",
          "    if not part.device:\n",
          "test_python_evidence", "a file in which NumPy does the work gets no flag", needs="triton"),
    # submissions and results
    Fault("archive_leads_outside", "grader/submission/archive/records.py",
          ' or ".." in parts or ', " or ",
          "test_submission", "an archive with '..' in a path is read"),
    Fault("submission_links_followed", "grader/submission/nodes.py",
          "                    kind = _kind(entry.stat(follow_symlinks=False).st_mode)\n"
          "                    found.append(DiskNode(self.base, (*self.steps, entry.name), entry.name, kind))\n",
          "                    at = DiskNode.at(Path(self.base, *self.steps, entry.name))\n"
          "                    found.append(DiskNode(at.base, at.steps, entry.name, at.kind))\n",
          "test_submission", "a link in a submission can point to a file of the staff or of another student"),
    Fault("result_links_followed", "grader/core/plainfile.py",
          "_FILE = os.O_NOFOLLOW | ", "_FILE = ",
          "test_hostile_outfolder", "a link in a results folder redirects reads and writes"),
    Fault("ledger_not_synced", "grader/staff/classroom/ledger.py",
          "        os.fsync(self._fd)\n", "        pass\n",
          "test_ledger", "a power cut loses a result that was reported as finished"),
    Fault("result_file_not_synced", "grader/core/plainfile.py",
          "                os.fsync(file.fileno())\n", "                pass\n",
          "test_ledger test_hostile_outfolder", "a power cut leaves an empty result.json with a ledger line"),
    Fault("resume_grades_again", "grader/staff/classroom/planning.py",
          "if record is not None and not reason:", "if record is not None and not reason and not wanted.resume:",
          "test_classroom test_ledger", "--resume judges finished submissions again"),
    Fault("review_flag_lost", "grader/report/result_json.py",
          "return [_plain(item) for item in value]",
          'return [_plain(item) for item in value if getattr(item, "level", "") != "review"]',
          "test_ledger test_replies test_classroom", "result.json lacks the flags that a person should look at"),
    Fault("failure_exits_0", "grader/core/results.py",
          'return EXIT_KIT if verdicts <= {"pass", "unjudged"} else EXIT_SUBMISSION',
          'return EXIT_KIT if verdicts <= {"pass", "unjudged"} else EXIT_PASS',
          "test_verdicts", "the exit code of a wrong submission is 0"),
    Fault("incomplete_class_exits_0", "grader/staff/running.py",
          "return EXIT_PASS if graded == len(asked) else EXIT_KIT", "return EXIT_PASS",
          "test_verdicts test_classroom", "the exit code is 0 where submissions have no verdict"),
    # points and reports
    Fault("grace_ignored", "grader/score.py",
          "(late_s - rule.grace_s)", "(late_s)",
          "test_score", "a submission within the grace is charged a day"),
    Fault("points_rounded_up", "grader/score.py",
          "return round(points + 1e-9, 2)", "return math.ceil(points * 100 - 1e-6) / 100",
          "test_score", "a third of a point counts 0.34"),
    Fault("unjudged_counts_as_zero", "grader/score.py",
          '        if part.id not in results or results[part.id].verdict == "unjudged":\n'
          "            pending.append(part.id)\n"
          '        if part.id in results and results[part.id].verdict == "unjudged":\n'
          "            waiting.append(part.id)\n",
          "        if part.id not in results:\n            pending.append(part.id)\n",
          "test_verdicts test_score", "a part that the machine could not judge is graded with 0 points"),
    Fault("formula_guard_off", "grader/report/grades_csv.py",
          """return "'" + kept if text.startswith(_FORMULA_STARTS) or kept.startswith(_FORMULA_STARTS) else kept""",
          "return kept",
          "test_report_csv", "a name that begins with '=' is run by a spreadsheet"),
    Fault("csv_cells_not_quoted", "grader/report/grades_csv.py",
          """return '"' + text.replace('"', '""') + '"' if _TO_QUOTE.search(text) else text""", "return text",
          "test_report_csv", "a comma in a name moves all later cells of its row"),
    Fault("html_not_escaped", "grader/report/html.py",
          "autoescape=True", "autoescape=False",
          "test_report_html", "HTML in a name becomes part of the page"),
    Fault("hidden_cases_shown", "grader/report/student.py",
          "        for k, case in enumerate(part.cases)\n        if not case.hidden\n",
          "        for k, case in enumerate(part.cases)\n",
          "test_report_csv test_platforms_results",
          "feedback shows a student the names and sizes of hidden cases"),
    # staff
    Fault("release_with_hidden_cases", "grader/staff/release/contents.py",
          'files[f"configs/{CONFIG}"] = _file(kit.public)', 'files[f"configs/{CONFIG}"] = _file(kit.config)',
          "test_release", "the handout contains the hidden cases and their seeds"),
    Fault("forged_result_kept", "grader/staff/platforms/classroom50.py",
          "checkout = Path.cwd()\n    for name in WRITTEN:", "checkout = Path.cwd()\n    for name in ():",
          "test_platforms_runs", "if the kit cannot start, a result.json that a student handed in remains"),
    Fault("wheel_without_configs", "setup.py",
          'FOLDERS = ("configs", ', "FOLDERS = (",
          "test_install", "an installed kit has no assignment"),
    Fault("leak_search_off", "grader/staff/release/making.py",
          "found = strangers(files, kit) + leaks(files, secrets(kit))", "found = strangers(files, kit)",
          "test_release", "a handout with a line of the solution is written"),
    Fault("unknown_key_accepted", "grader/assignment/yamlnode.py",
          """raise at_key.fail(f"unknown key '{at_key.shown().strip(chr(39))}' in {keys.what}{hint}")""",
          "continue",
          "test_assignment", "a misspelt key in an assignment is ignored silently"),
    Fault("starter_counts_as_likeness", "grader/staff/similarity/likeness.py",
          "every[name] = prints(found, functions(source), theirs)",
          "every[name] = prints(found, functions(source), frozenset())",
          "likeness/test_similar", "text of the starter makes all submissions alike"),
)
# fmt: on


# ---- copies


class Copy:
    """One worker's copy of the kit in `root`, with the tests and their build cache."""

    def __init__(self, root: Path) -> None:
        self.root = root
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            with contextlib.suppress(FileNotFoundError):  # deleted, but git still tracks it
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name, follow_symlinks=False)
        dropped = ("PYTEST_ADDOPTS", "GPT149_CACHE", "PYTHONDONTWRITEBYTECODE")
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        self.environment = {**kept, "PYTHONPATH": str(root), "COLUMNS": "250"}
        # Python uses stored bytecode if the source's size and time (in whole seconds) are unchanged. So each edit sets
        # a different time.
        self.stamps = itertools.count(int(time.time()))
        self.left_out = ["tests/test_without_torch.py::test_faults_to_plant_are_still_in_the_code"]
        """Ids of tests that fail without a fault, and of the test that fails for any fault, because it reads FAULTS."""
        asked = "import grader; print(grader.__file__)"
        for place in (root, root.parent):
            run = [sys.executable, "-c", asked]
            imported = subprocess.check_output(run, cwd=place, env=self.environment, text=True)
            assert Path(imported.strip()) == root / "grader" / "__init__.py", f"imports {imported.strip()}"

    def write(self, file: str, text: str) -> None:
        path, stamp = self.root / file, next(self.stamps)
        path.write_text(text, encoding="utf-8")
        os.utime(path, (stamp, stamp))

    def link_cache(self, cache: Path) -> None:
        """Replace this copy's build cache by hard links to the files of `cache`."""
        shutil.rmtree(self.root / CACHE, ignore_errors=True)
        shutil.copytree(cache, self.root / CACHE, symlinks=True, copy_function=os.link)

    def first_failure(self, marker: str, *arguments: str) -> str:
        """Run pytest up to the first failure. Return this test's id; "" if all pass. Raises RuntimeError."""
        return next(iter(self.failures(marker, "-x", *arguments)), "")

    def failures(self, marker: str, *arguments: str) -> list[str]:
        """Run pytest with a marker expression. Return ids of tests that fail. Raises RuntimeError if pytest breaks."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--randomly-seed=1"]
        child = subprocess.Popen(
            [*command, *(f"--deselect={test}" for test in self.left_out), "-m", marker, *arguments],
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = child.communicate(timeout=RUN_LIMIT_S)
        except subprocess.TimeoutExpired:
            return [f"(no end within {RUN_LIMIT_S:.0f} s)"]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if child.returncode in (ALL_PASSED, NOTHING_TO_RUN):
            return []
        failed = FAILED_LINE.findall(output)
        if child.returncode not in (SOME_FAILED, INTERRUPTED) or not failed:
            raise RuntimeError(f"pytest ended with {child.returncode}:\n{output[-3000:]}")
        return failed


def near_files(faults: Iterable[Fault]) -> list[str]:
    """Return the near test files of these faults that exist, each once."""
    named = dict.fromkeys(file for fault in faults for file in fault.near_files)
    return [file for file in named if (ROOT / file).is_file()]


def run_fault(copy: Copy, fault: Fault, cache: Path, tiers: Sequence[str], *, near_only: bool) -> Outcome:
    """Plant a fault, run the tiers until a test fails, and remove the fault. `near_only`: True for near files alone."""
    started = time.monotonic()
    text, near = (copy.root / fault.file).read_text(encoding="utf-8"), near_files([fault])
    stages = [(tier, ["-n", "0", *near]) for tier in tiers if near]
    if not near_only:
        rest = ["-n", "2", *(f"--ignore={file}" for file in near)]
        stages = [stage for tier in tiers for stage in (*(s for s in stages if s[0] == tier), (tier, rest))]
    caught_by, test = "nothing", ""
    for tier, arguments in stages:
        copy.link_cache(cache)
        copy.write(fault.file, text.replace(fault.old, fault.new))
        try:
            test = copy.first_failure(TIERS[tier], *arguments)
        finally:
            copy.write(fault.file, text)
        # The control run had only near files. So repeat a failed test of another file without the fault.
        if test and tuple(arguments[:2]) == ("-n", "2") and "::" in test:
            copy.link_cache(cache)
            test = "" if copy.first_failure(TIERS[tier], "-n", "0", test) else test
        if test:
            caught_by = tier
            break
    return Outcome(fault.name, caught_by, test, round(time.monotonic() - started, 1))


# ---- command line


def chosen_faults(parser: argparse.ArgumentParser, names: Sequence[str]) -> list[Fault]:
    """Return the faults of these names; without names, all. Exit with a usage error if one does not fit the code."""
    if unknown := sorted(set(names) - {fault.name for fault in FAULTS}):
        parser.error(f"no such fault: {', '.join(unknown)} (--list shows them)")
    faults = [fault for fault in FAULTS if not names or fault.name in names]
    for fault in faults:
        count = (ROOT / fault.file).read_text(encoding="utf-8").count(fault.old)
        if count != 1:
            parser.error(f"{fault.name}: found {count} times in {fault.file}, not once: {fault.old!r}")
        for file in sorted(set(fault.near_files) - set(near_files([fault]))):
            print(f"note: {fault.name}: there is no {file}", file=sys.stderr)
    return faults


def summary(outcomes: Sequence[Outcome], tiers: Sequence[str]) -> tuple[str, bool]:
    """Return the line that is printed last, and True if the aims of the tiers that ran are met."""
    total = len(outcomes)
    fast = sum(outcome.caught_by == "fast" for outcome in outcomes)
    caught = sum(outcome.caught_by != "nothing" for outcome in outcomes)
    percent = 100 * fast / max(total, 1)
    line = f"fast {fast} of {total} ({percent:.0f} %)"
    if len(tiers) == 1:
        return line, percent >= FAST_AIM_PERCENT
    return f"{line}, all {caught} of {total}", percent >= FAST_AIM_PERCENT and caught == total


def print_rows(rows: Iterable[Sequence[str]]) -> None:
    """Print rows as a table: pad each cell to the width of its column."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], help="plant only these faults")
    parser.add_argument("--list", action="store_true", help="print the faults and plant none")
    parser.add_argument(
        "--near-only", action="store_true", help="run only the near test files, as a quick check"
    )
    parser.add_argument("--tier", choices=["fast", "all"], default="all", help="tiers to run (%(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="faults to try at the same time (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes here")
    given = parser.parse_args()
    faults = chosen_faults(parser, given.only)
    if given.list:
        print_rows((f.name, f.file, f.changes) for f in faults)
        return 0
    lacking = [f for f in faults if f.needs and importlib.util.find_spec(f.needs) is None]
    for fault in lacking:
        print(f"note: {fault.name} is not tried: {fault.needs} is not installed", file=sys.stderr)
    faults = [fault for fault in faults if fault not in lacking]
    tiers = ["fast"] if given.tier == "fast" else list(TIERS)
    with tempfile.TemporaryDirectory(prefix="planted-") as scratch:
        # Compilers and runners may have other user ids, which must be able to read the copies.
        Path(scratch).chmod(0o755)
        copies = [Copy(Path(scratch, f"copy{k}")) for k in range(max(1, given.workers))]
        if (ROOT / CACHE).is_dir():
            shutil.copytree(ROOT / CACHE, copies[0].root / CACHE, symlinks=True)
        control = TIERS["fast"] if given.tier == "fast" else ""
        for broken in copies[0].failures(control, "-n", str(2 * len(copies)), *near_files(faults)):
            print(f"note: {broken} fails without a fault and is left out", file=sys.stderr)
            for copy in copies:
                copy.left_out.append(broken)
        cache = Path(scratch, "cache")
        (copies[0].root / CACHE).mkdir(parents=True, exist_ok=True)
        (copies[0].root / CACHE).rename(cache)
        free: SimpleQueue[Copy] = SimpleQueue()
        for copy in copies:
            free.put(copy)

        def run(fault: Fault) -> Outcome:
            copy = free.get()
            try:
                outcome = run_fault(copy, fault, cache, tiers, near_only=given.near_only)
            finally:
                free.put(copy)
            print(
                f"{outcome.fault}: {outcome.caught_by}, {outcome.seconds:.0f} s", file=sys.stderr, flush=True
            )
            return outcome

        with ThreadPoolExecutor(len(copies)) as pool:
            outcomes = list(pool.map(run, faults))
    line, met = summary(outcomes, tiers)
    print_rows((o.fault, o.caught_by, f"{o.seconds:.0f} s", o.test) for o in outcomes)
    print(f"\n{line}")
    if given.json:
        found = {"summary": line, "aims_met": met, "outcomes": [asdict(outcome) for outcome in outcomes]}
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
