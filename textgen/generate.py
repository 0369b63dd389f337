"""Generates texts token by token with the student's attention kernel in every layer, and compares it with PyTorch.

Only the kernel's outputs determine the tokens. A second decoder, which uses PyTorch's attention, gets the same tokens
("teacher forcing") and has its own cache. So the kernel's errors do not affect the second decoder, and the first
attention output that differs shows where the kernel failed. At the end a third computation, plain causal PyTorch over
the whole text at once, must give the same logits at every position.

A token is chosen from the logits by the inverse of the cumulative distribution, with a random source for each text. So
a text's tokens depend only on its seed and logits, and the same random number can be applied to both decoders' logits.
With `torch.multinomial`, four texts in a batch would get other tokens than the same texts one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from grader.core.draws import derive
from textgen.checkpoint import Loaded
from textgen.kernel import Broken, Decoder, Fault, StudentKernel, TorchAttention


@dataclass(frozen=True)
class Choice:
    """Chosen tokens (B,) and their margins (B,). A margin is the smallest change that would choose another token.

    At temperature 0 it is the difference of the two largest logits. Otherwise it is the distance of the random number
    from the nearer end of the token's interval in the cumulative distribution.
    """

    tokens: Tensor
    margins: Tensor


class Sampler:
    """Chooses tokens. `temperature` 0 takes the likeliest token; `top_k` > 0 limits the choice to the k likeliest."""

    def __init__(self, texts: int, seed: int, temperature: float, top_k: int = 0) -> None:
        self.temperature, self.top_k = temperature, top_k
        self._sources = [torch.Generator().manual_seed(derive(seed, "text", k)) for k in range(texts)]

    def draw(self) -> Tensor:
        """Return one random number in [0, 1) for each text, (B,)."""
        return torch.stack(
            [torch.rand((), generator=source, dtype=torch.float64) for source in self._sources]
        )

    def choose(self, logits: Tensor, draw: Tensor) -> Choice:
        """Return the tokens that the random numbers `draw` (B,), from 0 to 1, choose from logits (B, V)."""
        if self.temperature == 0.0:
            best = logits.topk(2, dim=1)
            return Choice(best.indices[:, 0], best.values[:, 0] - best.values[:, 1])
        scaled = logits.double() / self.temperature
        if 0 < self.top_k < logits.shape[1]:
            least = scaled.topk(self.top_k, dim=1).values[:, -1:]
            scaled = scaled.masked_fill(scaled < least, float("-inf"))
        ends = scaled.softmax(dim=1).cumsum(dim=1)
        # Logits of a broken kernel may be NaN. The search then returns an index beyond the last token.
        tokens = torch.searchsorted(ends, draw[:, None], right=True)[:, 0].clamp_(max=logits.shape[1] - 1)
        upper = ends.gather(1, tokens[:, None])[:, 0]
        lower = ends.gather(1, (tokens[:, None] - 1).clamp_(min=0))[:, 0] * (tokens > 0)
        return Choice(tokens, torch.minimum(draw - lower, upper - draw))


LOGIT_LIMIT = 1e-3
ANSWER_LIMIT = 1e-3
"""Tolerance of attention outputs, relative to the larger of 1 and their largest element. Errors of right float32
kernels are below 1 % of this tolerance."""
NEAR_TIE = 1e-3


@dataclass
class Tally:
    """Result of a run, with wall-clock times in seconds.

    `decode_s` is the time of decoding with the kernel, including `kernel_s`, the time of the kernel's calls. `torch_s`
    is the time of decoding the same tokens with PyTorch.
    """

    prompt_tokens: int
    tokens: Tensor
    """(B, T) all tokens so far, including the prompt's."""
    fault: Fault | None = None
    logit_error: float = 0.0
    same_choices: int = 0
    choices: int = 0
    near_ties: int = 0
    decode_s: float = 0.0
    kernel_s: float = 0.0
    torch_s: float = 0.0
    kernel_calls: int = 0
    largest_score: float = 0.0

    @property
    def new_tokens(self) -> int:
        """Return the number of generated tokens of one text."""
        return self.tokens.shape[1] - self.prompt_tokens


class Run:
    """State of one run of `generate`: both decoders, the sampler and the results so far."""

    def __init__(
        self,
        loaded: Loaded,
        kernel: StudentKernel,
        prompt: Tensor,
        length: int,
        sampler: Sampler,
        window: int,
    ) -> None:
        self.model, self.words = loaded.model, len(loaded.words)
        self.kernel, self.sampler, self.window = kernel, sampler, window
        self.reference = TorchAttention(window)
        batch = prompt.shape[0]
        self.mine = Decoder(self.model, kernel, batch, length, window)
        self.theirs = Decoder(self.model, self.reference, batch, length, window)
        self.tally = Tally(prompt.shape[1], prompt)

    def step(self, tokens: Tensor) -> Tensor:
        """Decode tokens (B, T) with both decoders and compare them. Return the next tokens (B,), chosen by the kernel.

        Raises Broken if a call of the kernel fails.
        """
        tally, draw = self.tally, self.sampler.draw()
        started, kernel_before = time.perf_counter(), self.kernel.wall_s
        try:
            logits = self.mine.extend(tokens)
        finally:
            tally.kernel_calls = self.kernel.calls
        # Tokens beyond the vocabulary are padding of the embedding and cannot be chosen.
        choice = self.sampler.choose(logits[:, : self.words], draw)
        tally.decode_s += time.perf_counter() - started
        tally.kernel_s += self.kernel.wall_s - kernel_before
        started = time.perf_counter()
        expected = self.theirs.extend(tokens)
        expected_choice = self.sampler.choose(expected[:, : self.words], draw)
        tally.torch_s += time.perf_counter() - started
        tally.largest_score = self.reference.largest_score
        if tally.fault is None:
            tally.fault = self.first_fault(logits, expected)
        same = choice.tokens == expected_choice.tokens
        tally.same_choices += int(same.sum())
        tally.choices += len(same)
        tally.near_ties += int((~same & (expected_choice.margins <= NEAR_TIE)).sum())
        return choice.tokens

    def first_fault(self, logits: Tensor, expected: Tensor) -> Fault | None:
        """Return the first fault of the last step in the order of tokens, then layers; None if the kernel agrees with
        PyTorch."""
        start = self.mine.position - self.mine.answers[0].shape[2]
        places = [
            Fault(f"its attention is off by {error:.2g}", start + token, layer, head, sample)
            for layer, (mine, theirs) in enumerate(zip(self.mine.answers, self.theirs.answers, strict=True))
            for token, head, sample, error in _left(
                mine, theirs, ANSWER_LIMIT * max(1.0, float(theirs.abs().max()))
            )
        ]
        if self.kernel.disagreement is not None:
            places.insert(0, self.kernel.disagreement)
        if places:
            return min(places, key=lambda fault: (fault.token, fault.layer))
        error = float((logits - expected).abs().max())
        self.tally.logit_error = max(self.tally.logit_error, error)
        if error <= LOGIT_LIMIT:
            return None
        return self.blame(f"the logits are off by {error:.2g}, from small errors in many tokens")

    def blame(self, message: str) -> Fault:
        """Return a fault with `message` for an error that is spread over many outputs.

        The fault's place is the layer and head whose attention has the largest error at the last token.
        """
        errors = [
            (mine - theirs)[:, :, -1].abs().amax(dim=2)
            for mine, theirs in zip(self.mine.answers, self.theirs.answers, strict=True)
        ]
        worst = torch.stack(errors)  # (L, B, H)
        layer, sample, head = (int(x) for x in torch.unravel_index(worst.argmax(), worst.shape))
        return Fault(message, self.mine.position - 1, layer, head, sample)

    @torch.inference_mode()
    def check_whole(self) -> None:
        """Compare the logits at every position with those of plain causal PyTorch over the whole text at once.

        Record the largest error, and a fault if the error is too large.
        """
        tally, end = self.tally, self.mine.position
        expected = self.model.stream(tally.tokens[:, :end], self.window)
        for first in range(0, end, 128):
            rows = slice(first, min(first + 128, end))
            apart = (
                self.model.logits(self.mine.streams[:, rows]) - self.model.logits(expected[:, rows])
            ).abs()
            tally.logit_error = max(tally.logit_error, float(apart.max()))
            wrong = ~(apart.amax(dim=(0, 2)) <= LOGIT_LIMIT)
            if tally.fault is None and bool(wrong.any()):
                fault = self.blame(f"the logits are off by {float(apart.max()):.2g} from causal PyTorch's")
                token = first + int(wrong.nonzero()[0])
                tally.fault = Fault(fault.message, token, fault.layer, fault.head, fault.sample)


def _left(mine: Tensor, theirs: Tensor, limit: float) -> list[tuple[int, int, int, float]]:
    """Return [(token, head, sample, error)] for the first token at which outputs (B, H, T, d) differ by over `limit`.

    Return [] if the outputs agree at every token.
    """
    apart = (mine - theirs).abs().amax(dim=3)  # (B, H, T)
    wrong = ~(apart <= limit)  # written so that NaN counts as wrong
    if not bool(wrong.any()):
        return []
    token = int(wrong.any(dim=0).any(dim=0).nonzero()[0])
    head, sample = (int(x) for x in wrong[:, :, token].t().nonzero()[0])
    return [(token, head, sample, float(apart[sample, head, token]))]


def generate(
    loaded: Loaded,
    kernel: StudentKernel,
    prompt: Tensor,
    length: int,
    sampler: Sampler,
    window: int,
    on_tokens: Callable[[list[int]], None] = lambda tokens: None,
    trust: bool = False,
) -> Tally:
    """Continue each of the prompts (B, P) to `length` tokens. After each step, pass the B new tokens to `on_tokens`.

    Generation ends at the first fault. With `trust` it continues as long as the kernel returns outputs. The result has
    the first fault; failures of the kernel are not raised.
    """
    run = Run(loaded, kernel, prompt, length, sampler, window)
    tally = run.tally
    new = prompt
    while tally.tokens.shape[1] < length:
        try:
            chosen = run.step(new)
        except Broken as end:
            tally.fault = tally.fault or end.fault
            break
        if tally.fault is not None and not trust:
            break
        new = chosen[:, None]
        tally.tokens = torch.cat((tally.tokens, new), dim=1)
        on_tokens(chosen.tolist())
    if tally.fault is None and run.mine.position:
        run.check_whole()
    return tally
