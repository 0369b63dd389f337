"""Replies of a runner must have the requested kind and size; all printed text is made harmless by the printer."""

import ast
import io
import json
import re
import sys
from dataclasses import replace
from typing import Any

import pytest
from conftest import ROOT, python, refused
from hypothesis import given, strategies

from grader.core import commandline, harmless, imports
from grader.core.arrays import np
from grader.core.quantities import whole
from grader.core.results import Diagnosis, Flag, PartResult, Score, SubmissionResult
from grader.report import result_json, terminal
from grader.report.progress import Progress
from grader.runner import calls, frames
from grader.study import laboratory

REQUEST = calls.Request("attention", [], [np.ones(2, np.float32)], (2, 3))
NO_SCORE = Score((), 0.0, 0, 0.0, 0.0, 0.0)
REPLY = {"status": "ok", "kind": 2, "dtype": 6, "shape": [2, 3]}
TABLE = calls.Request("read", [], [np.ones(2, np.float32), np.ones((3, 4))], (3,), op="table")
NUMBERS = {"kind": 1, "dtype": 7, "shape": [3]}
WRONG = [{"dtype": 15}, {"dtype": 6}, {"shape": [2]}, {"shape": [3, 1]}, {"withheld": True}, {"payload": 31}]
#: Modules that run beside student code. They only write to pipes, which the judge does not trust.
BACKENDS = r"torch\.forkserver|gpu\.(devicerunner|kernelfiles|tensormemory)"
RUNNERS = re.compile(rf"grader\.(runner\.runner|backends\.({BACKENDS})|sandbox\.lock)")


def understood(payload: bytearray | None = None, request: calls.Request = REQUEST, **more: Any) -> calls.Call:
    return calls.understood({**REPLY, **more}, payload or bytearray(32), request, 1.0, 1.0)


def test_a_reply_is_parsed() -> None:
    call = understood(profile=[["aten::zeros", 1, 2.5, 3, 64, 64]], profiled_wall_s=0.5)
    assert (call.status, call.kind, call.dtype, call.shape) == ("ok", "a tensor", "float32", (2, 3))
    assert call.output.shape == (2, 3) and call.changed_inputs == (0,)
    assert (call.profile[0].name, call.profile[0].calls, call.profiled_wall_s) == ("aten::zeros", 3, 0.5)
    assert understood(dtype=99).dtype == "type 99"
    assert call.trace == "" and call.outside == () and understood(outside=[3, 7]).outside == (3, 7)
    assert understood(trace="lost").trace == "lost"


@pytest.mark.parametrize(("code", "size"), [(15, 2), (0, 1), (5, 2), (7, 8)])
def test_inputs_are_found_behind_an_output_of_any_type(code: int, size: int) -> None:
    """The inputs after an output in a reply are found even if NumPy lacks its type (bfloat16) or its size is odd."""
    sent, known = [np.array([1.5, 2.5], np.float32), np.arange(3)], code != 15
    for spoilt in (False, True):
        payload = bytearray(5 * size) + b"".join(each.tobytes() for each in sent)
        payload[-1] ^= spoilt
        call = understood(payload, replace(REQUEST, inputs=sent), dtype=code, shape=[5])
        assert call.shape == (5,) and (call.output is not None) == known
        assert call.changed_inputs == ((1,) if spoilt else ())
        assert call.echoes[0].tolist() == [1.5, 2.5] and len(call.echoes) == 2


@pytest.mark.parametrize("changed", [
    {"dtype": " 99 \n"}, {"dtype": "٩٩"}, {"dtype": 6.0}, {"dtype": True}, {"dtype": 10**400}, {"kind": "2"},
    {"shape": "23"}, {"shape": {"2": 3}}, {"shape": [2.0, 3]}, {"shape": [2, -3]}, {"shape": [1] * 9},
    {"profile": [["aten::zeros", "1", 2, 3, 4, 5]]}, {"profile": [["x", 1, 2, 3, 4, 5]] * 2000},
    {"profile": {"x": 1}}, {"profiled_wall_s": float("nan")}, {"shape": [float("inf")]},
    *({"outside": lines} for lines in (["7"], [-1], [1.5], [True], 7, [1] * 21, [[]], None)),
    *({"trace": trace} for trace in (7, ["a"], "\u20ac", "a" * (calls.MOST_TRACE + 1))),
])  # fmt: skip
def test_a_reply_with_a_wrong_number_is_refused(changed: dict[str, Any]) -> None:
    refused("", understood, **changed, of=frames.RunnerDied)


@pytest.mark.parametrize("changed", WRONG, ids=str)
def test_a_table_reply_of_another_type_or_size_is_refused(changed: dict[str, Any]) -> None:
    changed = {**NUMBERS, **changed}
    assert understood(bytearray(32), TABLE, **NUMBERS).output.tolist() == [0.0] * 3
    refused("", understood, bytearray(changed.pop("payload", 32)), TABLE, **changed, of=frames.RunnerDied)


def test_requested_inputs_come_back_and_texts_are_cut_or_refused() -> None:
    assert len(calls.understood(REPLY, bytearray(32), REQUEST, 1.0, 1.0, echo=True).echoes) == 1
    refused("", calls.understood, REPLY, bytearray(31), REQUEST, 1.0, 1.0, echo=True, of=frames.RunnerDied)
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    assert understood(status="exception", message=nested).message == ""
    assert understood(status="exception", message="\x1b" * 5000).message == "?" * 1000
    assert calls.offered({"functions": [["f", "T(T)"], ["g" * 1000, "T"]]}) == {"f": "T(T)"}
    for nonsense in (None, {"f": "T"}, [["f"]], [["f", nested]], ["ab"], [["f", "T"]] * 5000):
        refused("", calls.offered, {"functions": nonsense}, of=frames.RunnerDied)


def result(text: str) -> SubmissionResult:
    part = PartResult("p", "t", "crash", 1.0, diagnosis=Diagnosis("x", text), output=text)
    return SubmissionResult("a", "b", "c", {}, {}, {}, (part,) * 6, flags=(Flag("code", text, "review"),))


def test_a_result_file_has_a_size_limit_and_names_omissions() -> None:
    honest = result("o" * 60_000)
    assert result_json.from_dict(result_json.to_dict(honest, NO_SCORE)) == honest
    for text in ("é" * 500_000, "\x00" * 300_000, "o" * 5_000_000):
        values = result_json.to_dict(result(text), NO_SCORE)
        assert len(json.dumps(values, indent=2)) <= result_json.LARGEST_BYTES
        kept, _, left = values["parts"][0]["output"].partition("... ")
        assert len(kept) > 50 and left == f"{len(text) - len(kept)} more characters"
        assert result_json.from_dict(values).parts[0].output == f"{kept}... {left}"


#: Text that sets a title, erases, fakes, hides or reverses text; C1 controls, DEL, and a surrogate without its pair.
HOSTILE = "\x1b]0;owned\x07\r\x1b[2Kbob complete\x1b[8m\x9b2J\x7f\u202egrade\u2066\u2028\ud800"
OURS = re.compile("|".join(map(re.escape, harmless.CONTROLS.values())))
#: Sequences that the library rich writes: colours, cursor movements, and switches of cursor and modes.
RICHS = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[hl]|\?7[hl]|[0-9]*[ABCDEFGJK])|\r")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def obeyed(text: str) -> list[str]:
    """Return the characters that a terminal would execute in place of showing them."""
    return [char for char in text if char not in "\n\t" and harmless.harmless(char) != char]


@given(strategies.text(strategies.characters(codec=None), max_size=80))
def test_harmless_text_keeps_its_length_and_everything_that_is_only_shown(text: str) -> None:
    text = text.replace("\r\n", "\n")
    made = harmless.harmless(text)
    made.encode("utf-8")
    assert len(made) == len(text) and harmless.harmless(made) == made
    for before, after in zip(text, made, strict=True):
        assert after == before or (after == "?" and not before.isprintable())
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", made)


def test_names_of_all_scripts_stay_and_a_value_within_a_message_is_one_short_line() -> None:
    names = ("Zoë Çelik", "أحمد بن محمد", "می\u200cخواهم", "क्\u200dष", "日本 太郎", "👩\u200d💻", "a\u00a0b")
    assert [harmless.harmless(name) for name in names] == [*names]
    assert harmless.one_line("a\nb\tc\x1b[31m") == "a b c?[31m"
    assert harmless.one_line("x" * 10**6) == "x" * 79 + "…"
    assert harmless.one_line(" " * 10**6 + "x", 10).endswith("…")


def test_all_text_that_a_command_prints_is_harmless() -> None:
    program = f"""
import sys, warnings
from grader.core import commandline
from grader.core.errors import UsageError
HOSTILE = {HOSTILE!r}
def run(arguments):
    print(HOSTILE); sys.stdout.write(HOSTILE); sys.stdout.writelines([HOSTILE]); print(HOSTILE, file=sys.stderr)
    warnings.warn(HOSTILE)
    if arguments[0] == "usage":
        raise UsageError(HOSTILE + "x" * 10**6)
    if arguments[0] == "parse":
        commandline.Parser(prog=HOSTILE).parse_args([HOSTILE])
    raise ValueError(HOSTILE)
commandline.main("grader", run)
"""
    for kind, code in (("usage", 2), ("parse", 2), ("fault", 3)):
        ended = python("-c", program, kind, text=False, code=code)
        for text in (ended.stdout.decode(), ended.stderr.decode()):
            assert "bob complete" in text and not obeyed(text), (kind, obeyed(text))
        assert len(ended.stderr) < 20_000, "an error message is short"


def test_all_modules_print_through_harmless() -> None:
    """Only `harmless` contains escape sequences, and all modules print through its streams, which remove others."""
    behind = re.compile(r"__std(out|err)__|std(out|err)\.buffer|os\.write\([12],|_beneath")
    escape = re.compile(r"\\(x1b|0?33|u001b|N\{esc)|\x1b", re.IGNORECASE)
    for name, path in imports.modules(ROOT).items():
        # The threats' texts are submissions, which are never printed.
        if name == "grader.core.harmless" or RUNNERS.fullmatch(name) or ".threats." in name:
            continue
        source = path.read_text()
        assert not behind.search(source), name
        assert name == "grader.report.progress" or "unguarded" not in source, name
        if escape.search(source):
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    assert "\x1b" not in node.value and "\r\x1b" not in node.value, (name, node.lineno)


def test_only_verdicts_on_a_terminal_have_colours() -> None:
    screen, file = Screen(), io.StringIO()
    for verdict in ("pass", "slow", "wrong"):
        part = PartResult("part1", f"Naive{HOSTILE}", verdict, 10.0, output=HOSTILE)
        for stream in (screen, file):
            terminal.Terminal(stream).verdict(part, 0.0)
    text = screen.getvalue()
    assert text.count("\x1b[1;32mPASS\x1b[0m") == 1 and text.count("\x1b[1;31mWRONG RESULT\x1b[0m") == 1
    assert OURS.sub("", text) == file.getvalue() and not obeyed(file.getvalue())
    assert "WRONG RESULT  0 of 10 points\n" in file.getvalue()


def test_the_fault_of_a_twin_part_is_printed_once() -> None:
    fault = Diagnosis("wrong_values", "Expected 1, got 2.")
    stream = io.StringIO()
    shown = terminal.Terminal(stream)
    of_code = dict.fromkeys(("conv2d", "conv2d_threads", "other"), fault.code)
    for part_id, code in {**of_code, "conv2d_race": "race"}.items():
        shown.function = part_id.partition("2d")[0]
        shown.verdict(PartResult(part_id, "A part", "crash", 1.0, diagnosis=replace(fault, code=code)), 0.0)
    assert stream.getvalue().count(fault.message) == 3
    assert "the same fault as in conv2d, which calls the same function" in stream.getvalue()


def test_the_live_table_removes_escape_sequences_from_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    screen = Screen()
    with Progress(2, screen) as progress:
        progress.phase(f"ann{HOSTILE}", f"part1{HOSTILE}")
        progress.live.refresh()
        progress.finished(f"ann{HOSTILE}", {}, "", f"broken{HOSTILE}")
        progress.again(f"bert{HOSTILE}", HOSTILE)
    text = screen.getvalue()
    assert "ann?]0;owned" in text and "\x1b[" in text, "rich still draws"
    assert "\x1b[8m" not in text and not obeyed(RICHS.sub("", text)), obeyed(RICHS.sub("", text))
    assert "\r\x1b[2Kbob" not in text


def test_the_overwritten_progress_line_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", harmless.guarded(screen))
    laboratory.show_progress(f"2 of 5 {HOSTILE}")
    laboratory.show_progress("3 of 5")
    written = screen.getvalue()
    assert written.count("\r\x1b[K") == 2 and written.endswith("\r\x1b[K3 of 5")
    assert not obeyed(written.replace("\r\x1b[K", ""))


def test_integers_are_short_and_have_only_digits() -> None:
    """Python raises ValueError for numbers of more than 4300 digits, so the reader must refuse long numbers first."""
    assert (whole("0"), whole("0042"), whole("9" * 19)) == (0, 42, int("9" * 19))
    for text in ("", "-1", "+1", " 1", "1_000", "1.0", "\u0663", "\u00b2", "9" * 20, "9" * 10_000):
        assert whole(text) is None
    for text in ("9" * 5000, "65", "-1", "\u0663"):
        refused("from 0 to 64", commandline.whole_number, text, "-N", 0, 64)
