"""Trains the demo's model from random weights: `python -m textgen.train --out FOLDER`, some minutes on one core.

The same command and seed give the same corpus and the same first weights on any machine; trained weights differ by
rounding. The results are plays.safetensors (float16, with the command in its metadata) and plays.tiktoken.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from grader.core import commandline
from grader.core.errors import EXIT_KIT, EXIT_USAGE, KitError, UsageError
from textgen import checkpoint, corpus, tokenizer
from textgen.corpus import Corpus
from textgen.model import GPT, Config

HELD_OUT_SEED_OFFSET = 1_000_003
SHORTEST_CORPUS_CHARS, LARGEST_CORPUS_BYTES = 5_000, 1 << 30


@dataclass(frozen=True)
class Training:
    """Settings that determine the trained weights. Lengths are in tokens, unless the name has another unit."""

    corpus_chars: int = 12_000_000
    held_out_chars: int = 60_000
    vocab_size: int = 896
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 128
    block_size: int = 256
    batch: int = 8
    steps: int = 1600
    warmup_steps: int = 40
    matrix_rate: float = 0.003
    """Learning rate of Muon, for the matrices of the layers; `other_rate` is AdamW's, for all other parameters."""
    other_rate: float = 0.016
    last_share: float = 0.05
    """Share of the learning rates at the last step."""
    weight_decay: float = 0.05
    seed: int = 1


@dataclass(frozen=True)
class Material:
    """Training and held-out data, as text and as tokens (T,) of the vocabulary `words`."""

    training: Corpus
    held_out: Corpus
    words: tokenizer.Tokenizer
    training_tokens: Tensor
    held_out_tokens: Tensor


def gather(recipe: Training, file: Path | None) -> Material:
    """Return the training and held-out data: generated plays, or the text of `file`.

    The last twentieth of the file is held out. Raises UsageError if the file cannot be read or is too short.
    """
    if file is None:
        training = corpus.write(recipe.corpus_chars, recipe.seed)
        held_out = corpus.write(recipe.held_out_chars, recipe.seed + HELD_OUT_SEED_OFFSET)
    else:
        text = read_text(file)
        cut = len(text) - len(text) // 20
        training, held_out = Corpus(text[:cut], None), Corpus(text[cut:], None)
    words = tokenizer.train(training.text[:400_000], recipe.vocab_size)
    return Material(
        training,
        held_out,
        words,
        torch.tensor(words.encode(training.text)),
        torch.tensor(words.encode(held_out.text)),
    )


def read_text(file: Path) -> str:
    text = commandline.read_text(file, LARGEST_CORPUS_BYTES, no="corpus", advice="save it as UTF-8")
    if len(text) < SHORTEST_CORPUS_CHARS:
        raise UsageError(
            f"the corpus {file} has {len(text)} characters; at least {SHORTEST_CORPUS_CHARS} are needed to learn from"
        )
    return text


@torch.no_grad()
def loss_per_char(model: GPT, material: Material, most_tokens: int | None = None) -> float:
    """Return the held-out loss in nats per character, over the first `most_tokens` tokens (by default all).

    As in the demo, every token attends to at most `block_size` tokens: the text is one long sequence with a sliding
    window. The loss is computed in pieces, each preceded by all tokens on which its results depend.
    """
    window = model.config.block_size
    tokens = material.held_out_tokens[: (most_tokens or len(material.held_out_tokens)) + 1]
    # A token's output depends on at most one window of earlier tokens per layer.
    reach = min(window * model.config.n_layer, len(tokens))
    nats, counted, piece = 0.0, 0, 4 * window
    for begin in range(0, len(tokens) - 1, piece):
        first = max(0, begin - reach)
        x = tokens[first : begin + piece + 1]
        losses = F.cross_entropy(model(x[None, :-1], window)[0], x[1:], reduction="none")
        nats += float(losses[begin - first :].double().sum())
        counted += len(losses) - (begin - first)
    chars = len(material.words.decode(tokens[1:].tolist()))
    assert counted == len(tokens) - 1
    return nats / chars


def batch_of(tokens: Tensor, recipe: Training, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return random pieces of the tokens as inputs, and the tokens after each as targets; both (batch, block_size)."""
    first = torch.randint(len(tokens) - recipe.block_size, (recipe.batch,), generator=generator)
    rows = first[:, None] + torch.arange(recipe.block_size + 1)
    stretch = tokens[rows]
    return stretch[:, :-1], stretch[:, 1:]


def share_of_rate(recipe: Training, step: int) -> float:
    """Return the factor of the learning rates at a step: it rises linearly to 1, then falls like half a cosine."""
    if step < recipe.warmup_steps:
        return (step + 1) / recipe.warmup_steps
    done = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    return recipe.last_share + (1.0 - recipe.last_share) * 0.5 * (1.0 + math.cos(math.pi * done))


def train(recipe: Training, material: Material, every: int = 100) -> GPT:
    """Return a trained model. Every `every` steps and at the end, print the held-out loss and a sample text.

    For a generated text, also print the excess of the loss over the text's information content.
    """
    torch.manual_seed(recipe.seed)
    config = Config(len(material.words), recipe.block_size, recipe.n_layer, recipe.n_head, recipe.n_embd)
    model = GPT(config)
    model.initialise()
    optimizers = optimizers_of(model, recipe)
    rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    generator = torch.Generator().manual_seed(recipe.seed)
    started = time.monotonic()
    for step in range(recipe.steps):
        share = share_of_rate(recipe, step)
        for optimizer, highest in zip(optimizers, rates, strict=True):
            for group, rate in zip(optimizer.param_groups, highest, strict=True):
                group["lr"] = rate * share
        x, y = batch_of(material.training_tokens, recipe, generator)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        if (step + 1) % every == 0 or step + 1 == recipe.steps:
            report(step + 1, time.monotonic() - started, model, material)
    return model.eval()


def optimizers_of(model: GPT, recipe: Training) -> list[torch.optim.Optimizer]:
    """Return the optimizers: Muon (Keller Jordan et al. 2024) for the layers' matrices, AdamW for all other parameters.

    The excess of a loss is its difference from the corpus's information content. After the same number of tokens, the
    excess with Muon was a third to a half of the excess with AdamW alone.
    """
    inner = [p for p in model.blocks.parameters() if p.dim() == 2]
    outer = [p for p in model.parameters() if p.dim() == 2 and all(p is not q for q in inner)]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    adamw = torch.optim.AdamW(
        [{"params": outer, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=recipe.other_rate,
        betas=(0.9, 0.95),
        fused=True,
    )
    # "original" (Muon's first version): matrices with more rows than columns get larger steps, so that the outputs of
    # all matrices change by a similar amount.
    muon = torch.optim.Muon(
        inner, lr=recipe.matrix_rate, weight_decay=recipe.weight_decay, adjust_lr_fn="original"
    )
    return [muon, adamw]


def report(step: int, seconds: float, model: GPT, material: Material) -> None:
    nats, floor = loss_per_char(model, material, 8192), material.held_out.nats_per_char
    against = f", {100 * (nats / floor - 1):.1f} % above the floor {floor:.4f}" if floor else ""
    print(
        f"step {step:5d}  {seconds:5.0f} s  held out {nats:.4f} nats/char{against}   {sample(model, material)!r}",
        flush=True,
    )


@torch.no_grad()
def sample(model: GPT, material: Material, length: int = 24) -> str:
    """Return the most likely `length` tokens after the first 32 held-out tokens, as text, to show progress."""
    tokens = material.held_out_tokens[None, :32]
    for _ in range(length):
        tokens = torch.cat((tokens, model(tokens)[:, -1:].argmax(-1)), dim=1)
    return material.words.decode(tokens[0, 32:].tolist())


def save(folder: Path, recipe: Training, model: GPT, material: Material, facts: dict[str, Any]) -> None:
    """Write the model in float16 to plays.safetensors, with `facts` as metadata, and its tokens to plays.tiktoken."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plays.tiktoken").write_bytes(tokenizer.rank_lines(material.words.tokens))
    metadata = {
        "format": "gpt149 textgen 1",
        "config": asdict(model.config),
        "vocabulary_sha256": material.words.fingerprint,
        "recipe": asdict(recipe),
        **facts,
    }
    tensors = {name: tensor.half() for name, tensor in model.state_dict().items()}
    checkpoint.write(
        folder / "plays.safetensors",
        tensors,
        {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()},
    )


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m textgen.train", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder of the results")
    parser.add_argument(
        "--corpus",
        type=Path,
        metavar="FILE",
        help="UTF-8 text to train on (default: scenes of theatre plays that textgen generates)",
    )
    for name, kind, what in (
        ("steps", int, "optimizer steps"), ("seed", int, "seed of corpus, first weights and batches"),
        ("batch", int, "pieces of text in a step"), ("matrix-rate", float, "Muon's learning rate"),
        ("other-rate", float, "AdamW's learning rate"), ("weight-decay", float, "weight decay of all matrices"),
        ("vocab-size", int, "tokens, including the 256 bytes"),
        ("corpus-chars", int, "characters of the generated text"), ("n-layer", int, "layers"), ("n-head", int, "heads"),
        ("n-embd", int, "channels"), ("block-size", int, "tokens of context"),
    ):  # fmt: skip
        default = getattr(Training, name.replace("-", "_"))
        parser.add_argument(f"--{name}", type=kind, default=default, metavar="n", help=f"{what} ({default})")
    return parser


def main(arguments: list[str]) -> int:
    given = vars(options().parse_args(arguments))
    folder, file = given.pop("out"), given.pop("corpus")
    torch.set_num_threads(1)  # the model is small, and one thread rounds the same way every time
    try:
        if not hasattr(torch.optim, "Muon"):
            raise KitError(f"training needs torch 2.9 or later, which has Muon; this is {torch.__version__}")
        recipe = Training(**given)
        material = gather(recipe, file)
    except (KitError, UsageError) as error:
        print(f"textgen.train: {error}", file=sys.stderr)
        return EXIT_KIT if isinstance(error, KitError) else EXIT_USAGE
    floor = material.held_out.nats_per_char
    chars, count = len(material.training.text), len(material.training_tokens)
    print(
        f"{chars} characters, {count} tokens of {len(material.words)} kinds"
        + (f"; no model can get below {floor:.4f} nats/char" if floor else "")
    )
    started = time.monotonic()
    model = train(recipe, material)
    seconds = time.monotonic() - started
    nats = loss_per_char(model, material)
    print(f"loss on all held-out text: {nats:.4f} nats/char, after {seconds:.0f} s of training")
    command = "python -m textgen.train " + " ".join(arguments)
    save(folder, recipe, model, material, {
        "command": command, "held_out_nats_per_char": nats, "floor_nats_per_char": floor,
        "torch": torch.__version__, "seconds": round(seconds),
    })  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
