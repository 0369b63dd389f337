"""Generates a text token by token, with the kernel's attention in every layer, and compares it with PyTorch's.

Only the kernel's outputs determine the tokens. PyTorch's decoder gets the same tokens ("teacher forcing") and keeps its
own cache. So errors of the kernel do not spread to PyTorch's decoder, and the first attention output that differs shows
where the kernel failed. At the end a third computation, plain causal PyTorch over the whole text at once, must give the
same logits at every position.

A token is chosen from its logits by the inverse of the cumulative distribution, with a random source for each text. So
a text's tokens depend only on its own seed and logits, and one draw can be applied to two sets of logits. With
`torch.multinomial`, four texts in a batch would get other tokens than the same texts one by one.
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
    """Chosen tokens (B,) and their margins (B,): the smallest change that would choose another token. At temperature 0
    this is the difference of the two best logits, else the distance of the draw from the end of its token's
    interval."""

    tokens: Tensor
    margins: Tensor


class Sampler:
    """Chooses tokens. `temperature` 0 takes the best token; `top_k` limits the choice to the k best (0: to all)."""

    def __init__(self, texts: int, seed: int, temperature: float, top_k: int = 0) -> None:
        self.temperature, self.top_k = temperature, top_k
        self._sources = [torch.Generator().manual_seed(derive(seed, "text", k)) for k in range(texts)]

    def draw(self) -> Tensor:
        """Draw one number in [0, 1) for each text, (B,)."""
        return torch.stack(
            [torch.rand((), generator=source, dtype=torch.float64) for source in self._sources]
        )

    def choose(self, logits: Tensor, draw: Tensor) -> Choice:
        """Return the tokens that these draws (B,) pick from logits (B, V)."""
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
"""Tolerance of attention outputs, relative to their largest element, but at least to 1. Errors of honest float32
kernels are below 1 % of it."""
NEAR_TIE = 1e-3


@dataclass
class Tally:
    """Result of a run. Times are wall seconds: `decode_s` for all decoding with the kernel, of which `kernel_s` for
    waiting for the kernel, and `torch_s` for PyTorch's own decoding of the same tokens."""

    prompt_tokens: int
    tokens: Tensor
    """(B, T) all tokens so far, the prompt's included."""
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
        self.kernel, self.sampler, self.length, self.window = kernel, sampler, length, window
        self.reference = TorchAttention(window)
        batch = prompt.shape[0]
        self.mine = Decoder(self.model, kernel, batch, length, window)
        self.theirs = Decoder(self.model, self.reference, batch, length, window)
        self.tally = Tally(prompt.shape[1], prompt)

    def step(self, tokens: Tensor) -> Tensor:
        """Give tokens (B, T) to both decoders, compare their outputs, and choose the next tokens. Raises Broken."""
        tally, draw = self.tally, self.sampler.draw()
        started, kernel_before = time.perf_counter(), self.kernel.wall_s
        try:
            logits = self.mine.extend(tokens)
        finally:
            tally.kernel_calls = self.kernel.calls
        choice = self.choose(logits, draw)
        tally.decode_s += time.perf_counter() - started
        tally.kernel_s += self.kernel.wall_s - kernel_before
        started = time.perf_counter()
        expected = self.theirs.extend(tokens)
        expected_choice = self.choose(expected, draw)
        tally.torch_s += time.perf_counter() - started
        tally.largest_score = self.reference.largest_score
        if tally.fault is None:
            tally.fault = self.first_fault(logits, expected)
        self.count(choice, expected_choice)
        return choice.tokens

    def choose(self, logits: Tensor, draw: Tensor) -> Choice:
        # Tokens beyond the vocabulary are padding of the embedding and cannot be chosen.
        return self.sampler.choose(logits[:, : self.words], draw)

    def count(self, choice: Choice, expected: Choice) -> None:
        same = choice.tokens == expected.tokens
        self.tally.same_choices += int(same.sum())
        self.tally.choices += len(same)
        self.tally.near_ties += int((~same & (expected.margins <= NEAR_TIE)).sum())

    def first_fault(self, logits: Tensor, expected: Tensor) -> Fault | None:
        """Return the first fault of the last step, by token, then layer, then head; None if the kernel agrees with
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
        return self.blame(f"the logits are off by {error:.2g}, in small steps over many tokens")

    def blame(self, message: str) -> Fault:
        """Return a fault with `message` for an error spread over many outputs. It names the layer and head with the
        largest error of the last token."""
        errors = [
            (mine - theirs)[:, :, -1].abs().amax(dim=2)
            for mine, theirs in zip(self.mine.answers, self.theirs.answers, strict=True)
        ]
        worst = torch.stack(errors)  # (L, B, H)
        layer, sample, head = (int(x) for x in torch.unravel_index(worst.argmax(), worst.shape))
        return Fault(message, self.mine.position - 1, layer, head, sample)

    @torch.inference_mode()
    def check_whole(self) -> None:
        """Compare the logits at every position with those of plain causal PyTorch over the whole text at once."""
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
    """Return (token, head, sample, error) of the first token of (B, H, T, d) outputs that differs by more than
    `limit`."""
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
    """Continue the prompts (B, P) to `length` tokens each. Call `on_tokens` with each new token of all texts.

    Generation ends at the first fault. With `trust` it continues as long as the kernel returns outputs, and keeps the
    first fault. Failures of the kernel are recorded in the result, not raised.
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
