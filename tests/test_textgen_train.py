"""Training in small: reproducible, it learns, and what it saves can be loaded; comparison writes its figure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT

from textgen import checkpoint, corpus, figure, train

SMALL = ("--steps", "25", "--corpus-chars", "20000", "--vocab-size", "300", "--n-embd", "32", "--n-head", "2")


def test_training_is_reproducible_and_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        assert train.main(["--out", str(tmp_path / name), *SMALL]) == 0
    first, second = ((tmp_path / name / "plays.safetensors").read_bytes() for name in ("a", "b"))
    said = capsys.readouterr().out
    assert "no model can get below" in said
    loaded = checkpoint.load(tmp_path / "a" / "plays.safetensors")
    again = checkpoint.load(tmp_path / "b" / "plays.safetensors")
    for mine, theirs in zip(loaded.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert len(first) == len(second)
    material = train.gather(train.Training(corpus_chars=20_000, vocab_size=300), None)
    untrained = train.GPT(loaded.model.config)
    untrained.initialise()
    assert train.loss_per_char(loaded.model, material, 500) < 0.8 * train.loss_per_char(
        untrained, material, 500
    )


def test_loss_with_a_sliding_window_is_that_of_the_whole_text() -> None:
    """Worked off in overlapping pieces, the loss is the one of a single pass."""
    loaded = checkpoint.load()
    text = corpus.write(12_000, 77)
    tokens = torch.tensor(loaded.words.encode(text.text))
    material = train.Material(text, text, loaded.words, tokens, tokens)
    with torch.inference_mode():
        logits = loaded.model(tokens[None, :-1], loaded.model.config.block_size)[0]
        nats = torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="sum")
    chars = len(loaded.words.decode(tokens[1:].tolist()))
    assert len(tokens) > 4 * loaded.model.config.block_size
    assert train.loss_per_char(loaded.model, material) == pytest.approx(float(nats) / chars, rel=1e-4)
    assert train.loss_per_char(loaded.model, material) < 1.10 * (text.nats_per_char or 0.0)


@pytest.mark.parametrize(("content", "says"), [(b"", "has 0 characters"), (b"\xff" * 9000, "not UTF-8")])
def test_useless_corpora_are_told(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "mine.txt").write_bytes(content)
    command = [
        sys.executable,
        "-m",
        "textgen.train",
        "--out",
        str(tmp_path),
        "--corpus",
        str(tmp_path / "mine.txt"),
    ]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 2
    assert says in run.stderr
    assert run.stderr.count("\n") == 1


def test_a_torch_without_muon_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(torch.optim, "Muon")
    assert train.main(["--out", str(tmp_path), *SMALL]) == 3
    said = capsys.readouterr().err
    assert "torch 2.9" in said and said.count("\n") == 1


def test_parts_say_the_same_text_side_by_side(tmp_path: Path) -> None:
    drawing = tmp_path / "speed.svg"
    # The command with two short contexts in place of seven up to 1024: what is drawn is not what is tested here.
    short = "from textgen import compare; compare.CONTEXTS = (16, 32); import gpt149; raise SystemExit(gpt149.run({}))"
    arguments = ["compare", "--module", "module.cpp", "--seed", "2", "--figure", str(drawing)]
    command = [sys.executable, "-c", short.format(arguments)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "-- part0, part1, part2, part3, part4 alike --" in run.stdout
    assert drawing.read_text().count("<polyline") == 5


def test_figure_keeps_titles_apart() -> None:
    drawn = figure.speeds((16, 32), {"a<b": [100.0, 50.0], "c": [99.0, 49.9]})
    assert "a&lt;b" in drawn
    assert figure._spread([10.0, 11.0, 60.0]) == [10.0, 27.0, 60.0]
