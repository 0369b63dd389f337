"""Tokens per second through the kernel: cached decoding against computing everything again for each token.

All ways call the same function in the same runner, in turn, at positions spread over a text of each length.

"published": for each token the model runs over the whole context, and PyTorch's masked attention produces the text.
Once a layer the kernel is called beside it on all rows, and its output is discarded. Two choices favour this way: the
output is not compared, and PyTorch's attention is its fused one. As in nanoGPT, the context is cut to the last
`window` tokens.

"cached" is the demo: its kernel's outputs produce the text. The target is compared with "published" at the same
window.

"again" (with --again, since it takes minutes at 1024) has no cache either, but the kernel's outputs produce the text:
one call a layer, the causal mask as further channels.

Times are wall clock, the pipe included. Each turn first computes one uncounted token at its place in the text, then a
few in a row, as a text does.
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

from grader.assignment import loading  # noqa: E402
from grader.backends.torch.torchbuild import build  # noqa: E402
from grader.backends.torch.zygote import Zygote  # noqa: E402
from grader.judge.bench import Bench, Options  # noqa: E402
from textgen import checkpoint  # noqa: E402
from textgen.decode import Decoder  # noqa: E402
from textgen.demo import DEFAULT_CHUNK  # noqa: E402
from textgen.kernel import StudentKernel  # noqa: E402
from textgen.model import GPT  # noqa: E402
from textgen.textsetup import DEFAULT_WINDOW, TILE  # noqa: E402

TARGET = 2.0
TOKENS = 4
"""Counted tokens of a turn, one after the other as in a text."""
AGAIN = "again"
WIDEST_NAME = len("published, window 1024")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", default="part1", choices=["part1", "part2", "part3", "part4"])
    parser.add_argument("--lengths", default="128,256,1024", help="of texts, in tokens (%(default)s)")
    parser.add_argument("--positions", type=int, default=4, help="measured in each text (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="in which the sides take turns (%(default)s)")
    parser.add_argument("--chunk", type=int, default=DEFAULT_CHUNK, help="as gpt149.py's (%(default)s)")
    parser.add_argument("--cores", type=int, default=1, help="for PyTorch in the published way (%(default)s)")
    parser.add_argument(
        "--again", action="store_true", help="also without a cache, the kernel's answers used"
    )
    parser.add_argument("--json", type=Path, help="write all figures here")
    return parser.parse_args()


class Side:
    """One way to the next token. `token(n)` computes it for a text of n tokens and returns wall seconds."""

    def __init__(self, name: str, window: int, kernel: StudentKernel, token: Callable[[int], None]) -> None:
        self.name, self.window, self.kernel, self._token = name, window, kernel, token

    def token(self, n: int) -> tuple[float, float]:
        """Wall seconds of all, and of them in the kernel."""
        in_kernel, started = self.kernel.wall_s, time.perf_counter()
        with torch.inference_mode():
            self._token(n)
        return time.perf_counter() - started, self.kernel.wall_s - in_kernel


def published(model: GPT, kernel: StudentKernel, tokens: torch.Tensor, window: int, threads: int) -> Side:
    def token(n: int) -> None:
        torch.set_num_threads(threads)
        x = model.embed(tokens[:, max(0, n - window) : n])
        for layer, block in enumerate(model.blocks):
            q, k, v = block.project(x, 0)
            kernel.answer(layer, n, q, k, v)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
            x = block.after(x, y)
        model.logits(x[:, -1])
        torch.set_num_threads(1)

    return Side(f"published, window {window}", window, kernel, token)


def cached(model: GPT, kernel: StudentKernel, tokens: torch.Tensor, window: int, chunk: int) -> Side:
    kernel.chunk = chunk
    decoder = Decoder(model, kernel, 1, tokens.shape[1] + 1, window)
    decoder.fill(torch.Generator().manual_seed(2), tokens.shape[1])

    def token(n: int) -> None:
        kernel.window, decoder.position = window, n - 1
        decoder.extend(tokens[:, n - 1 : n])

    return Side(f"cached, window {window}", window, kernel, token)


def again(model: GPT, kernel: StudentKernel, tokens: torch.Tensor) -> Side:
    length = tokens.shape[1]

    def token(n: int) -> None:
        kernel.window, kernel.prefill = length, "mask"
        Decoder(model, kernel, 1, n, length).extend(tokens[:, :n])
        kernel.prefill = "prefix"

    return Side(AGAIN, length, kernel, token)


def sides(model: GPT, kernel: StudentKernel, length: int, chunk: int, cores: int) -> list[Side]:
    """The published way and the demo, with the demo's window and, where the text is longer, with all of it."""
    tokens = torch.randint(model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(1))
    found = []
    for window in sorted({min(DEFAULT_WINDOW, length), length}):
        found.append(published(model, kernel, tokens, window, cores))
        found.append(cached(model, kernel, tokens, window, chunk))
    return found


def measure(
    all_sides: list[Side], length: int, positions: int, rounds: int
) -> dict[str, tuple[float, float]]:
    """Return, for each side, seconds a token, averaged over the text, and the kernel's share; medians of turns."""
    places = [min(length - TOKENS, max(1, round((k + 0.5) * length / positions))) for k in range(positions)]
    total = {side.name: 0.0 for side in all_sides}
    in_kernel = dict(total)
    for n in places:
        series: dict[str, list[tuple[float, float]]] = {side.name: [] for side in all_sides}
        for turn in range(rounds):
            for side in all_sides if turn % 2 else all_sides[::-1]:
                side.token(n)  # comes to this place from another one, which no text does: not counted
                series[side.name] += [side.token(n + k) for k in range(1, TOKENS + 1)]
        for name, times in series.items():
            total[name] += statistics.median(t for t, _ in times) / positions
            in_kernel[name] += statistics.median(t for _, t in times) / positions
    return {name: (total[name], in_kernel[name] / total[name]) for name in total}


def main() -> int:
    args = arguments()
    lengths = [int(text) for text in args.lengths.split(",")]
    course = loading.load(ROOT / "configs" / "gpt149.yaml")
    part = course.part(args.part)
    model = checkpoint.load().model
    torch.set_num_threads(1)
    config = model.config
    missed, record = False, {}
    print(f"{args.part}, {config.n_layer} layers, {config.n_head} heads, d = {config.head_size}")
    print(f"{'text':>6}  {'way':{WIDEST_NAME}}{'tokens/s':>9}{'/ published':>13}{'in the kernel':>15}")
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
        session = bench.student(part, threads=2, freeze=False)
        kernel = StudentKernel(session, part, bench.shape, DEFAULT_WINDOW, "prefix")
        for length in lengths:
            all_sides = sides(model, kernel, length, args.chunk, args.cores)
            if args.again:
                tokens = torch.zeros(1, length, dtype=torch.long)
                all_sides.append(again(model, kernel, tokens))
            found = measure(all_sides, length, args.positions, args.rounds)
            record[length] = found
            for side in all_sides:
                seconds, share = found[side.name]
                ratio = found[f"published, window {side.window}"][0] / seconds
                short = side.name.startswith("cached") and ratio < TARGET
                missed |= short
                print(
                    f"{length:6}  {side.name:{WIDEST_NAME}}{1 / seconds:9.1f}{ratio:12.2f}x{100 * share:13.0f} %"
                    + ("  MISSED" if short else ""),
                    flush=True,
                )
    if args.json:
        args.json.write_text(json.dumps(record, indent=1))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
