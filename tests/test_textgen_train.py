"""A small training run: reproducible, it learns, and its files can be loaded. The comparison writes its figure."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from conftest import ROOT

import gpt149
from textgen import checkpoint, compare, corpus, train

SMALL = ("--steps", "25", "--corpus-chars", "20000", "--vocab-size", "300", "--n-embd", "32", "--n-head", "2")


def test_training_is_reproducible_and_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        assert train.main(["--out", str(tmp_path / name), *SMALL]) == 0
    assert "no model can get below" in capsys.readouterr().out
    loaded, again = (checkpoint.load(tmp_path / name / "plays.safetensors") for name in ("a", "b"))
    for mine, theirs in zip(loaded.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    material = train.gather(train.Training(corpus_chars=20_000, vocab_size=300), None)
    untrained = train.GPT(loaded.model.config)
    untrained.initialise()
    trained_loss, first_loss = (train.loss_per_char(m, material, 500) for m in (loaded.model, untrained))
    assert trained_loss < 0.8 * first_loss


def test_loss_with_a_sliding_window_is_that_of_the_whole_text() -> None:
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


def test_useless_corpora_and_a_torch_without_muon_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for content, message in ((b"", "has 0 characters"), (b"\xff" * 9000, "not UTF-8")):
        (tmp_path / "mine.txt").write_bytes(content)
        assert train.main(["--out", str(tmp_path), "--corpus", str(tmp_path / "mine.txt")]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    monkeypatch.delattr(torch.optim, "Muon")
    assert train.main(["--out", str(tmp_path), *SMALL]) == 3
    said = capsys.readouterr().err
    assert "torch 2.9" in said and said.count("\n") == 1


def test_all_parts_give_the_same_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two short contexts stand for the seven up to 1024. No curve ends early, however slow the machine is."""
    monkeypatch.setattr(compare, "CONTEXTS", (16, 32))
    monkeypatch.setattr(compare, "SLOWEST_TOKEN_S", math.inf)
    module, drawing = ROOT / "module.cpp", tmp_path / "speed.svg"
    assert gpt149.run(["compare", "--module", str(module), "--seed", "2", "--figure", str(drawing)]) == 0
    assert "-- part0, part1, part2, part3, part4 alike --" in capfd.readouterr().out
    assert drawing.read_text().count("<polyline") == 5


def test_figure_keeps_titles_apart() -> None:
    assert "a&lt;b" in compare.svg((16, 32), {"a<b": [100.0, 50.0], "c": [99.0, 49.9]})
    assert compare._spread([10.0, 11.0, 60.0]) == [10.0, 27.0, 60.0]
