"""Tokens per second through the kernel: cached decoding against computing everything again for each token.

All ways call the same function in the same runner, in turn, at positions spread over a text of each length.
"published": the model runs over all tokens so far, PyTorch's masked attention carries the text, and the kernel is
called once a layer beside it on all rows, its answer thrown away. "again": no cache either, but the kernel's answers
carry the text: one call a layer, the causal mask as further channels. The target is held against "published". Times are
wall clock, the pipe included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from grader import assignment  # noqa: E402
from grader.bench import Bench, Options  # noqa: E402
from grader.build import build  # noqa: E402
from grader.zygote import Zygote  # noqa: E402
from textgen import checkpoint  # noqa: E402
from textgen.decode import Decoder  # noqa: E402
from textgen.demo import DEFAULT_WINDOW, TILE  # noqa: E402
from textgen.kernel import StudentKernel  # noqa: E402
from textgen.model import GPT  # noqa: E402

TARGET = 2.0
PUBLISHED, AGAIN = "published", "again"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", default="part1", choices=["part1", "part2", "part3", "part4"])
    parser.add_argument("--lengths", default="128,256,1024", help="of texts, in tokens (%(default)s)")
    parser.add_argument("--positions", type=int, default=4, help="measured in each text (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="in which the sides take turns (%(default)s)")
    parser.add_argument("--json", type=Path, help="write all figures here")
    return parser.parse_args()


class Side:
    """One way to the next token. `token(n)` computes it for a text of n tokens and returns wall seconds."""

    def __init__(self, name: str, kernel: StudentKernel, token: Callable[[int], None]) -> None:
        self.name, self.kernel, self._token = name, kernel, token

    def token(self, n: int) -> tuple[float, float]:
        """Wall seconds of all, and of them in the kernel."""
        in_kernel, started = self.kernel.wall_s, time.perf_counter()
        with torch.inference_mode():
            self._token(n)
        return time.perf_counter() - started, self.kernel.wall_s - in_kernel


def sides(model: GPT, kernel: StudentKernel, longest: int) -> list[Side]:
    tokens = torch.randint(model.config.vocab_size, (1, longest), generator=torch.Generator().manual_seed(1))

    def cached(window: int) -> Callable[[int], None]:
        decoder = Decoder(model, kernel, 1, longest + 1, window)
        decoder.fill(torch.Generator().manual_seed(2), longest)

        def token(n: int) -> None:
            kernel.window, decoder.position = window, n - 1
            decoder.extend(tokens[:, n - 1 : n])

        return token

    def published(n: int) -> None:
        x = model.embed(tokens[:, :n])
        for layer, block in enumerate(model.blocks):
            q, k, v = block.attn.project(block.ln_1(x), 0)
            kernel.answer(layer, n, q, k, v)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
            x = x + block.attn.merge(y)
            x = x + block.mlp(block.ln_2(x))
        model.logits(x[:, -1])

    def again(n: int) -> None:
        kernel.window, kernel.prefill = longest, "mask"
        Decoder(model, kernel, 1, n, longest).extend(tokens[:, :n])
        kernel.prefill = "prefix"

    return [
        Side(AGAIN, kernel, again),
        Side(PUBLISHED, kernel, published),
        Side(f"cached, window {DEFAULT_WINDOW}", kernel, cached(DEFAULT_WINDOW)),
        Side("cached, whole text", kernel, cached(longest)),
    ]


def measure(
    all_sides: list[Side], length: int, positions: int, rounds: int
) -> dict[str, tuple[float, float]]:
    """For each side seconds a token, averaged over the text, and the kernel's share; medians of interleaved rounds."""
    places = [max(1, round((k + 0.5) * length / positions)) for k in range(positions)]
    total = {side.name: 0.0 for side in all_sides}
    in_kernel = dict(total)
    for n in places:
        series: dict[str, list[tuple[float, float]]] = {side.name: [] for side in all_sides}
        for turn in range(rounds + 1):
            for side in all_sides if turn % 2 else all_sides[::-1]:
                if turn:
                    series[side.name].append(side.token(n))
                else:
                    side.token(n)  # warms caches and is not counted
        for name, times in series.items():
            total[name] += statistics.median(t for t, _ in times) / positions
            in_kernel[name] += statistics.median(t for _, t in times) / positions
    return {name: (total[name], in_kernel[name] / total[name]) for name in total}


def main() -> int:
    args = arguments()
    lengths = [int(text) for text in args.lengths.split(",")]
    course = assignment.load(ROOT / "configs" / "gpt149.yaml")
    part = course.part(args.part)
    model = checkpoint.load().model
    torch.set_num_threads(1)
    config = model.config
    missed, record = False, {}
    print(f"{args.part}, {config.n_layer} layers, {config.n_head} heads, d = {config.head_size}")
    print(f"{'text':>6}  {'way':22}{'tokens/s':>9}{'/ published':>12}{'/ again':>12}{'in the kernel':>15}")
    with Zygote() as zygote, ExitStack() as stack:
        built = build(ROOT / "module.cpp")
        shape = {
            "threads": 2,
            "Br": TILE,
            "Bc": TILE,
            "N": max(lengths),
            "H": config.n_head,
            "d": config.head_size + max(lengths),  # the mask as channels: the time limit grows with it
        }
        bench = Bench(course, ROOT / "module.cpp", Options(shape), lambda event: None, built, zygote, stack)
        kernel = StudentKernel(bench.student(part, threads=2), part, bench.shape, DEFAULT_WINDOW, "prefix")
        for length in lengths:
            found = measure(sides(model, kernel, length), length, args.positions, args.rounds)
            record[length] = found
            for name, (seconds, share) in found.items():
                ratio, over_again = found[PUBLISHED][0] / seconds, found[AGAIN][0] / seconds
                short = name.startswith("cached, window") and ratio < TARGET
                missed |= short
                speed = f"{1 / seconds:9.1f}{ratio:11.2f}x{over_again:11.2f}x"
                print(
                    f"{length:6}  {name:22}{speed}{100 * share:13.0f} %{'  MISSED' if short else ''}",
                    flush=True,
                )
    if args.json:
        args.json.write_text(json.dumps(record, indent=1))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
