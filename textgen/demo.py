"""`gpt149.py PART --inference`: reads options, builds module.cpp, generates text and prints a report.

This module imports torch, and modules that need torch, only when they are used, so that importing it is fast.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader.core.commandline import positive_number, whole_number
from grader.core.errors import EXIT_PASS, EXIT_SUBMISSION, UsageError
from grader.core.places import STUDENT_COMMAND
from textgen.textsetup import DEFAULT_WINDOW, TextOptions, TextSetup, fault_lines

if TYPE_CHECKING:
    from grader.assignment.records import Assignment, Part
    from grader.judge.bench import Bench
    from textgen.generate import Tally

MODELS = {"shakes128": 128, "shakes256": 256, "shakes1024": 1024, "shakes2048": 2048}
"""Length of a text in tokens, including the prompt, by the name of the model in the published kit."""
DEFAULT_PROMPT = "ACT 1, SCENE 1."
DEFAULT_CHUNK = 7
"""Number of keys in a chunk, the fastest that was measured. Shorter chunks need more copies of the newest key, longer
chunks compute more equal rows. With the copy, a chunk has eight keys."""
MOST_SAMPLES, LARGEST_WINDOW = 64, 4096
#: Options of the judged run that --inference refuses, because the sizes come from the model and the text's length.
NOT_HERE = {
    "N": "-N",
    "B": "-B",
    "H": "-H",
    "d": "-d",
    "sanitize": "--sanitize",
    "no_time": "--no-time",
    "json": "--json",
}


def _length(text: str) -> int:
    if text not in MODELS:
        raise UsageError(f"-m: there is no '{text}': choose {', '.join(MODELS)}")
    return MODELS[text]


def _prefill(text: str) -> str:
    if text not in ("prefix", "mask"):
        raise UsageError(f"--prefill takes prefix or mask, not '{text}'")
    return text


def _whole(flag: str, low: int, high: int) -> Callable[[str], int]:
    return lambda text: whole_number(text, flag, low, high)


#: Options with a value: flag, name of the value in the help, default, function that parses the value, help. The value
#: of `-m` is called `length` in the parsed arguments.
OPTIONS: tuple[tuple[str, str, Any, Callable[[str], Any], str], ...] = (
    ("-m", "MODEL", 128, _length, f"number of tokens in a text: {', '.join(MODELS)} (default: shakes128)"),
    ("--prompt", "TEXT", [DEFAULT_PROMPT], str,
     f"beginning of a text (default: {DEFAULT_PROMPT!r}); repeat --prompt for several texts"),
    ("--samples", "n", None, _whole("--samples", 1, MOST_SAMPLES), "texts at the same time, the batch B (default: 1)"),
    ("--temperature", "x", 0.8, lambda text: positive_number(text, "--temperature", 10.0, zero=True),
     "0 takes the likeliest token, 1 draws by the model's probabilities (default: 0.8)"),
    ("--top-k", "n", 0, _whole("--top-k", 1, 1 << 20), "draw only from the n likeliest tokens"),
    ("--window", "n", None, _whole("--window", 1, LARGEST_WINDOW),
     f"number of tokens that attention sees, the kernel's largest N (default: {DEFAULT_WINDOW})"),
    ("--chunk", "n", DEFAULT_CHUNK, _whole("--chunk", 0, LARGEST_WINDOW),
     f"keys in a chunk, an entry of the kernel's batch (default: {DEFAULT_CHUNK}); 0: all keys in one chunk"),
    ("--prefill", "prefix|mask", "prefix", _prefill,
     "send the prompt one prefix at a time, or in one call with a causal mask (default: prefix)"),
    ("--checkpoint", "FILE", None, Path, "another model: nanoGPT's ckpt.pt, GPT-2's or the kit's .safetensors"),
    ("--vocabulary", "FILE", None, Path, "the model's vocabulary (.tiktoken or .json), if not beside the checkpoint"),
    ("--figure", "FILE", None, Path, "for compare: draw tokens/s over the length of the context, as SVG"),
)  # fmt: skip


def _dest(flag: str) -> str:
    return "length" if flag == "-m" else flag.lstrip("-").replace("-", "_")


def add_options(parse: argparse.ArgumentParser) -> None:
    """Add the demo's options to the command line."""
    group = parse.add_argument_group("text generation (the kernel as the attention of a tiny GPT)")
    group.add_argument(
        "--inference", action="store_true", help="continue a text; this part's kernel computes all attention"
    )
    for flag, name, _, read, what in OPTIONS:
        action = "append" if flag == "--prompt" else "store"
        group.add_argument(flag, dest=_dest(flag), metavar=name, type=read, help=what, action=action)
    group.add_argument(
        "--trust-my-kernel", action="store_true", help="continue the text even if the kernel is wrong"
    )


def wanted(given: argparse.Namespace) -> bool:
    """Return True if the command line requests the demo. Raises UsageError for the demo's options without the demo."""
    if given.inference or given.test == "compare":
        return True
    for flag in (*(flag for flag, *_ in OPTIONS), "--trust-my-kernel"):
        if (value := getattr(given, _dest(flag))) is not None and value is not False:
            raise UsageError(f"{flag} needs --inference ({STUDENT_COMMAND} part4 --inference {flag} ...)")
    return False


def read_options(given: argparse.Namespace) -> TextOptions:
    """Check the options and return them. Raises UsageError for options that are invalid or contradict each other."""
    for name, flag in NOT_HERE.items():
        if getattr(given, f"size_{name}", None) or getattr(given, name, None):
            raise UsageError(
                f"{flag} does not go with text generation: sizes come from the model and the text"
            )
    chosen = {_dest(flag): getattr(given, _dest(flag)) for flag, *_ in OPTIONS}
    chosen |= {_dest(flag): usual for flag, _, usual, *_ in OPTIONS if chosen[_dest(flag)] is None}
    prompts, samples = chosen.pop("prompt"), chosen.pop("samples")
    if not all(prompts):
        raise UsageError("--prompt takes at least one character: the model needs a token to begin with")
    if len(prompts) > 1 and samples not in (None, len(prompts)):
        raise UsageError(
            f"--samples {samples} does not fit {len(prompts)} prompts: give one prompt, or one for each sample"
        )
    return TextOptions(
        prompts=tuple(prompts) if len(prompts) > 1 else tuple(prompts) * (samples or 1),
        seed=1 if given.seed is None else whole_number(given.seed, "--seed", 0, (1 << 60) - 1),
        trust=given.trust_my_kernel,
        **chosen,
    )


def run(
    given: argparse.Namespace, find_source: Callable[[Path | None, str], Path], defines: Mapping[str, str]
) -> int:
    """Run the demo as the command line says. Return 0, or 1 if the student's kernel is at fault.

    `find_source(module, name)` returns the path of the source from the value of --module and the assignment's file
    name. `defines` are macros. Raises UsageError for wrong options, KitError if the machine cannot run the kernel.
    """
    options = read_options(given)
    from grader.backends.torch.zygote import Zygote
    from grader.sandbox import OPEN, choose

    sandbox = OPEN if given.module is None else choose(trust=True)
    # Start the zygote (the process from which runners are forked) first: it imports torch while this process goes on.
    with Zygote(sandbox=sandbox) as zygote, ExitStack() as stack:
        from grader.assignment import loading

        course = loading.load(given.config)
        parts = _parts(course, given.test)
        shape = {
            name: whole_number(getattr(given, f"size_{name}"), flag, 1, course.maxima.get(name, 1 << 20))
            for name, flag in (("Br", "-br"), ("Bc", "-bc"), ("threads", "--threads"))
            if getattr(given, f"size_{name}", None) is not None
        }
        setup = TextSetup(course, options, zygote, stack)
        bench = setup.build(find_source(given.module, course.source), shape, defines)
        if bench is None:
            return EXIT_SUBMISSION
        setup.load()
        if given.test == "compare":
            from textgen import compare

            return compare.run(setup, bench, parts)
        return speak(setup, bench, parts[0])


def _parts(course: Assignment, test: str) -> tuple[Part, ...]:
    able = tuple(part for part in course.parts if part.oracle == "attention")
    if test == "compare":
        return able
    chosen = tuple(part for part in able if part.command == test)
    if not chosen:
        raise UsageError(f"'{test}' computes no attention; choose {', '.join(p.command for p in able)}")
    return chosen


def speak(setup: TextSetup, bench: Bench, part: Part) -> int:
    """Stream one part's text, then print its report. Return the exit code."""
    from grader.backends import faults
    from textgen.tokenizer import TextStream

    try:
        kernel = setup.kernel(bench, part)
    except faults.Faulty as fault:
        print(f"\n{part.id} cannot generate text: {fault.diagnosis.message}")
        return EXIT_SUBMISSION
    config = setup.loaded.model.config
    print(
        f"{part.id}: {part.title}. Model {setup.loaded.name}: {config.n_layer} layers, {config.n_head} heads, "
        f"d = {config.head_size}; {setup.options.length} tokens of text, window {setup.window}\n"
    )
    stream = TextStream(setup.loaded.words)
    _put(setup.options.prompts[0])
    tally = setup.generate(kernel, lambda tokens: _put(stream.push(tokens[0])))
    _put(stream.finish() + "\n")
    kernel.session.close()
    for k, row in enumerate(tally.tokens[1:].tolist(), 2):
        print(f"\n-- text {k} --\n{setup.loaded.words.decode(row)}")
    print("\n" + "\n".join(account(tally, setup, part)))
    if kernel.session.printed:
        from grader.report.terminal import printed_text

        print(f"the kernel printed:\n{printed_text(kernel.session.printed)}")
    return EXIT_PASS if tally.fault is None else EXIT_SUBMISSION


def _put(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def account(tally: Tally, setup: TextSetup, part: Part) -> Sequence[str]:
    """Return lines on the speed, on the kernel's share of the time, and on the comparison with PyTorch."""
    lines = []
    if tally.new_tokens and tally.decode_s:
        count = tally.new_tokens * len(tally.tokens)
        share = 100 * tally.kernel_s / tally.decode_s
        lines += [
            f"{count} tokens in {tally.decode_s:.2f} s: {count / tally.decode_s:.0f} tokens/s with {part.id}, "
            f"{count / tally.torch_s:.0f} with PyTorch on the same tokens",
            f"{share:.0f} % of the time in the kernel ({tally.kernel_calls} calls, "
            f"{1e3 * tally.kernel_s / tally.kernel_calls:.2f} ms each, including the transfer of the data), "
            f"{100 - share:.0f} % in the rest of the model",
        ]
    if tally.fault is not None:
        return [*lines, *fault_lines(tally, setup, part)]
    return [
        *lines,
        f"right: logits within {tally.logit_error:.1e} of causal PyTorch at every token (limit 1e-03); "
        f"PyTorch chose the same {tally.same_choices} of {tally.choices} tokens"
        + (
            f" (in {tally.near_ties} of the others, two tokens were almost equally likely)"
            if tally.near_ties
            else ""
        ),
    ]
