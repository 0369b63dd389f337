"""Preparation for generating text: builds the kernel, loads the model, and converts the prompt to tokens."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from grader.core.errors import KitError, UsageError
from grader.core.places import STUDENT_PROGRAM

if TYPE_CHECKING:
    from torch import Tensor

    from grader.assignment.records import Assignment, Part
    from grader.backends.torch.zygote import Zygote
    from grader.judge.bench import Bench
    from textgen.checkpoint import Loaded
    from textgen.generate import Tally
    from textgen.kernel import Prefill, StudentKernel

DEFAULT_WINDOW = 256
TILE = 8
"""Default of Br and Bc for text generation. It is small, because a default chunk has eight keys."""


@dataclass(frozen=True)
class TextOptions:
    """Options of the command line. Checks that need the model come later. `trust`: True to continue after a fault."""

    prompts: tuple[str, ...]
    length: int
    seed: int
    temperature: float
    top_k: int
    window: int | None
    chunk: int
    prefill: Prefill
    checkpoint: Path | None
    vocabulary: Path | None
    figure: Path | None
    trust: bool


def _import_torch() -> None:
    """Import torch without the garbage collector, which would find nothing: this saves a tenth of the time."""
    gc.disable()
    import torch  # noqa: F401

    gc.freeze()
    gc.enable()


class TextSetup:
    """Builds the student's file, loads the model and the prompt, and starts runners."""

    def __init__(self, course: Assignment, options: TextOptions, zygote: Zygote, stack: ExitStack) -> None:
        self.course, self.options, self.zygote, self.stack = course, options, zygote, stack
        self.loaded: Loaded
        self.prompt: Tensor
        self.window = 0

    def build(self, source: Path, shape: Mapping[str, int], defines: Mapping[str, str]) -> Bench | None:
        """Compile the source. Return its Bench, or print the compiler's messages and return None if that fails.

        `shape` has sizes from the command line, `defines` macros. Raises KitError if this machine cannot compile.
        """
        from grader.backends.selection import Made
        from grader.backends.torch.torchbuild import build
        from grader.core import machine
        from grader.judge import events
        from grader.judge.bench import Bench, Options
        from grader.report.terminal import Terminal

        terminal = Terminal()
        terminal(events.BuildStarted(source))
        built = build(source, defines=defines, timeout_s=self.course.limits.build_s)
        terminal(events.Built(built))
        if built.waits_for:
            raise KitError(built.diagnostics)
        if not built.ok:
            print(built.diagnostics)
            return None
        # With more threads than cores, threads would wait for one another in each of the thousands of small calls.
        threads = min(self.course.defaults["threads"], len(machine.usable_cpus()) or os.cpu_count() or 1)
        small = {"threads": threads, **{name: TILE for name in ("Br", "Bc") if name in self.course.defaults}}
        options = Options(shape={**small, **shape}, defines=defines)
        return Bench(self.course, source, options, terminal, Made.of(built), self.zygote, self.stack)

    def load(self) -> None:
        """Load torch, the model and the prompt. Raises UsageError for an unusable checkpoint or prompt."""
        _import_torch()
        import torch

        from textgen import checkpoint

        options = self.options
        self.loaded = checkpoint.load(options.checkpoint or checkpoint.PLAYS, options.vocabulary)
        config = self.loaded.model.config
        if sum(parameter.numel() for parameter in self.loaded.model.parameters()) < 10_000_000:
            torch.set_num_threads(1)  # products of such a small model take less time than starting threads
        learned = config.positions == "learned"
        self.window = options.window or (config.block_size if learned else DEFAULT_WINDOW)
        if learned and options.length > config.block_size:
            raise UsageError(
                f"{self.loaded.name} has only {config.block_size} positions: {options.length} tokens are too many"
            )
        rows = [self.loaded.words.encode(prompt) for prompt in options.prompts]
        lengths = sorted({len(row) for row in rows})
        if len(lengths) > 1:
            raise UsageError(
                f"the prompts are {' and '.join(map(str, lengths))} tokens long; "
                "all prompts need the same number of tokens"
            )
        if lengths[0] >= options.length:
            raise UsageError(
                f"the prompt is {lengths[0]} tokens long, but the whole text only {options.length}: choose a longer -m"
            )
        self.prompt = torch.tensor(rows)

    def kernel(self, bench: Bench, part: Part) -> StudentKernel:
        """Start a runner, and return an object that calls the part's function in it.

        Raises Faulty if the function cannot be called, UsageError if its tensors would not fit into the memory limit.
        """
        from grader.backends import binding, faults
        from textgen.kernel import StudentKernel

        config = self.loaded.model.config
        sizes = {
            "B": len(self.prompt),
            "H": config.n_head,
            "N": min(self.window, self.options.length),
            "d": config.head_size + 1,  # keys cut into chunks have an additional channel, and a smaller N
        }
        if self.options.prefill == "mask":
            sizes["d"] += self.prompt.shape[1]
        bench = replace(bench, options=replace(bench.options, shape={**bench.options.shape, **sizes}))
        binding.refuse_oversize(part, bench.shape, self.course.limits.memory_gib)
        # Do not stop the runner between calls: no time is judged here, and a stop takes as long as a small call.
        session = bench.student(part, threads=bench.shape["threads"], freeze=False)
        if (unfit := bench.backend(part).unbound(part, session)) is not None:
            raise faults.Faulty("missing", unfit)
        shape = {name: bench.shape[name] for name in self.course.defaults}
        return StudentKernel(session, part, shape, self.window, self.options.prefill, self.options.chunk)

    def generate(
        self, kernel: StudentKernel, on_tokens: Callable[[list[int]], None] = lambda tokens: None
    ) -> Tally:
        from textgen.generate import Sampler, generate

        options = self.options
        sampler = Sampler(len(self.prompt), options.seed, options.temperature, options.top_k)
        return generate(
            self.loaded,
            kernel,
            self.prompt,
            options.length,
            sampler,
            self.window,
            on_tokens,
            trust=options.trust,
        )


def fault_lines(tally: Tally, setup: TextSetup, part: Part) -> Sequence[str]:
    """Return lines that say where the kernel's output first differs from PyTorch's, and what to do next."""
    fault = tally.fault
    assert fault is not None
    place = fault.where(len(tally.tokens))
    row = tally.tokens[fault.sample or 0].tolist()
    word = (
        f" ({setup.loaded.words.decode(row[fault.token : fault.token + 1])!r})"
        if fault.token < len(row)
        else ""
    )
    if fault.broken:
        return [f"{part.id} failed at {place}: {fault.message}"]
    lines = [f"{part.id} differs from causal PyTorch at {place}{word}, counted from 0: {fault.message}"]
    if tally.largest_score > 80:
        lines.append(
            f"(a score reached {tally.largest_score:.0f}; exp() of float overflows at 88: subtract the row's maximum)"
        )
    if not setup.options.trust:
        lines.append(
            f"The text up to there is right. `{STUDENT_PROGRAM} {part.id}` looks for the bug; "
            "--trust-my-kernel continues the text."
        )
    return lines
