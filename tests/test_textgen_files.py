"""Corpus, vocabulary, checkpoints and training: ours are reproducible, and foreign files are never code."""

import base64
import json
import math
import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from conftest import ROOT, refused

import gpt149
from textgen import checkpoint, compare, corpus, tokenizer, train
from textgen.model import GPT, Config

PLAYS, TENSORS = checkpoint.PLAYS, "t.safetensors"
ACCENTS = "naïve — 日本 🙂 \x00\n\n  x"


def test_corpus_is_a_function_of_its_seed() -> None:
    play = corpus.write(20_000, 7)
    assert play == corpus.write(20_000, 7)
    assert play.text != corpus.write(20_000, 8).text and len(play.text) >= 20_000
    assert play.text.count("[Enter ") == play.text.count("SCENE ") > 10


def test_corpus_counts_the_information_of_its_throws() -> None:
    dice = corpus.Dice(1)
    dice.pick("abcd")
    dice.sample("abc", 2)
    assert dice.nats == pytest.approx(math.log(4 * 3 * 2))
    hits = sum(dice.chance(0.25) for _ in range(2000))
    expected = math.log(24) - hits * math.log(0.25) - (2000 - hits) * math.log(0.75)
    assert dice.nats == pytest.approx(expected)
    assert 400 < hits < 600


def test_speakers_and_the_thing_of_the_scene_are_consistent() -> None:
    """Speakers have entered the scene. Persons that they speak of have not."""
    for scene in corpus.write(60_000, 3).text.split("[Enter ")[1:]:
        entrance, _, rest = scene.partition("]")
        speakers = {line.rstrip(":").partition(" [")[0] for line in rest.splitlines() if line.endswith(":")}
        assert all(speaker in entrance for speaker in speakers), scene
        absent = [p.name for p in corpus.COMPANY if f"the {p.name.lower()} " in rest.lower()]
        assert all(name not in entrance for name in absent), scene


def test_own_vocabulary_round_trips_any_text() -> None:
    words = tokenizer.load(PLAYS.with_suffix(".tiktoken"))
    for text in (ACCENTS, corpus.write(2_000, 5).text):
        assert words.decode(words.encode(text)) == text
    assert words.encode("<|endoftext|>") != []
    # Characters that span tokens come out whole.
    stream = tokenizer.TextStream(words)
    assert "".join([stream.push(token) for token in words.encode(ACCENTS)]) == ACCENTS
    stream.push(words.encode("🙂")[0])
    assert stream.finish() == "�"


def test_trained_vocabulary_depends_on_the_text_alone(tmp_path: Path) -> None:
    text = corpus.write(30_000, 2).text
    words = tokenizer.train(text, 300)
    assert len(words) == 300 and words.tokens == tokenizer.train(text, 300).tokens
    assert len(words.encode(text)) < 0.75 * len(text)
    assert tokenizer.load(words_file(tmp_path, words.tokens)).tokens == words.tokens
    # A file that changes is read anew: no copy of it is kept anywhere.
    assert len(tokenizer.load(words_file(tmp_path, tokenizer.train(text, 290).tokens))) == 290


def test_vocabularies_of_other_models_are_read(tmp_path: Path) -> None:
    gpt2 = {character: byte for byte, character in enumerate(tokenizer._BYTE_OF)}
    gpt2 |= {"Ġt": 256, "he": 257, "Ġthe": 258, tokenizer.SPECIAL: 259}
    (tmp_path / "vocab.json").write_text(json.dumps(gpt2))
    words = tokenizer.load(tmp_path / "vocab.json")
    assert words.decode(words.encode(" the" + ACCENTS)) == " the" + ACCENTS
    assert words.encode(" the")[0] in (256, 258)
    (tmp_path / "meta.json").write_text(json.dumps({"stoi": {"\n": 0, "a": 1, "é": 2}}))
    letters = tokenizer.load(tmp_path / "meta.json")
    assert letters.encode("aé\n") == [1, 2, 0]
    refused("has no 'x'", letters.encode, "ax")


def test_tensors_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    example = {
        "a": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "b": torch.tensor([1.5, -2.0], dtype=torch.float16),
        "c": torch.tensor(7, dtype=torch.int64),
        "d": torch.ones(3, dtype=torch.bool),
        "e": torch.empty(0, 4),
        "f": torch.tensor([0.5], dtype=torch.bfloat16),
    }
    checkpoint.write(path, example, {"why": "a test"})
    found, metadata = checkpoint.read(path)
    assert metadata == {"why": "a test"} and found.keys() == example.keys()
    for name, tensor in example.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name
    assert list(tmp_path.iterdir()) == [path]


def raw(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(first: int, last: int, shape: object = (1,), dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


BYTES, CUT = [bytes([byte]) for byte in range(256)], PLAYS.read_bytes()[:-1]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("v.tiktoken", b"no ranks here\n", ":1: not 'base64 number'"),
        ("v.tiktoken", b"YQ== 0\nYQ== 1\n", ":2: .* twice"),
        ("v.tiktoken", tokenizer.rank_lines(BYTES[:255]), "lacks 1 of the 256"),
        ("v.tiktoken", base64.b64encode(b"a") + b" 7\n", "not numbered from 0"),
        ("v.tiktoken", b"", "lacks 256"),
        ("v.json", b"[1, 2]", "maps each token"),
        ("v.json", b'{"a": 0, "b": 2}', "not numbered"),
        ("v.json", b'{"a": 0, "\\ud800": 1}', "half a character"),
        ("v.json", b"[" * 100_000, "not JSON"),
        ("v.pkl", pickle.dumps({"a": 0}), "a pickle is never opened"),
        *((TENSORS, data, "ends before its header") for data in (b"", b"\x05\0\0")),
        (TENSORS, raw(b"{}", length=1 << 62), "ends before its header"),
        (TENSORS, raw(b"{"), "not JSON"),
        (TENSORS, raw(b"[1]"), "no table"),
        (TENSORS, raw(b'{"a": {}, "a": {}}'), "not JSON"),
        (TENSORS, raw({"a": 1}), "not described"),
        (TENSORS, raw({"a": entry(0, 4, dtype="F33")}, b"1234"), "type 'F33'"),
        (TENSORS, raw({"a": entry(0, 4, shape=[-1])}, b"1234"), "are none|offsets that are none"),
        (TENSORS, raw({"a": entry(0, 4, shape=[1 << 40, 1 << 40])}, b"1234"), "needs"),
        (TENSORS, raw({"a": entry(0, 8)}, b"12345678"), "needs 4 bytes and has 8"),
        (TENSORS, raw({"a": entry(0, 4)}, b"12"), "ends before tensor 'a'"),
        (TENSORS, raw({"a": entry(0, 4), "b": entry(2, 6)}, b"123456"), "'b' overlaps"),
        (TENSORS, raw({"a": entry(0, 4), "b": entry(8, 12)}, b"1" * 12), "'b' comes after a gap"),
        (TENSORS, raw({"a": entry(0, 4)}, b"12345"), "1 bytes at its end"),
        (TENSORS, raw({"__metadata__": {"a": 1}}), "metadata are not texts"),
        *[(TENSORS, CUT[:n], "downloaded completely") for n in (*range(12), 1000, len(CUT) // 2, len(CUT))],
    ],
)
def test_unsound_files_are_refused(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    refused(message, checkpoint.read if name == TENSORS else tokenizer.load, tmp_path / name)


def test_the_shipped_checkpoint_records_how_it_was_made() -> None:
    _, metadata = checkpoint.read(PLAYS)
    assert metadata["command"].startswith("python -m textgen.train --out ")
    assert json.loads(metadata["recipe"])["seed"] >= 0
    assert float(metadata["held_out_nats_per_char"]) <= 1.10 * float(metadata["floor_nats_per_char"])


SIZES = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 32, "bias": True, "vocab_size": 256}


def small(**changes: object) -> GPT:
    torch.manual_seed(3)
    model = GPT(Config(**{**SIZES, "positions": "learned", **changes}))  # type: ignore[arg-type]
    model.initialise()
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return model.eval()


def nanogpt(**changes: object) -> dict[str, object]:
    return {"model": small().state_dict(), "model_args": {**SIZES, **changes}}


def words_file(folder: Path, tokens: Sequence[bytes] = BYTES) -> Path:
    path = folder / "words.tiktoken"
    path.write_bytes(tokenizer.rank_lines(tokens))
    return path


def same_function(ours: GPT, model: GPT) -> bool:
    tokens = torch.arange(12).reshape(2, 6)
    return torch.allclose(ours(tokens), model(tokens), atol=1e-6)


@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
def test_nanogpt_checkpoints_fit(tmp_path: Path, prefix: str) -> None:
    model = small()
    weights = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    weights[prefix + "lm_head.weight"] = weights[prefix + "transformer.wte.weight"]
    weights[prefix + "transformer.h.0.attn.bias"] = torch.ones(1, 1, 32, 32).tril()
    content = {"model": weights, "model_args": {**SIZES, "dropout": 0.0}, "iter_num": 5}
    torch.save(content, tmp_path / "ckpt.pt")
    assert same_function(checkpoint.load(tmp_path / "ckpt.pt", words_file(tmp_path)).model, model)


def test_gpt2_fits(tmp_path: Path) -> None:
    """GPT-2 has the published names, transposed linear maps and GELU by tanh."""
    model = small(gelu="tanh")
    weights = {"h.0.attn.bias": torch.ones(1, 1, 32, 32)}
    for name, tensor in model.state_dict().items():
        turned = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
        weights[name.removeprefix("transformer.")] = tensor.t().contiguous() if turned else tensor
    checkpoint.write(tmp_path / "model.safetensors", weights, {"format": "pt"})
    (tmp_path / "config.json").write_text('{"n_head": 2}')
    assert same_function(checkpoint.load(tmp_path / "model.safetensors", words_file(tmp_path)).model, model)


class Malicious:
    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path("opened"),)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (Malicious(), "could run code"),
        ({"model": {}, "model_args": {"n_layer": Malicious()}}, "could run code"),
        ({"model": 5, "model_args": {}}, "no table of tensors"),
        ([1, 2], "no checkpoint of nanoGPT"),
        (nanogpt(n_layer=10**9), "n_layer should be"),
        (nanogpt(n_layer=3), "lacks transformer.h.2"),
        (nanogpt(n_head=3), "do not divide"),
        (nanogpt(vocab_size=300), "asks? for|vocabulary"),
        (nanogpt(n_embd=8), "sizes ask for"),
    ],
)
def test_hostile_and_unfit_checkpoints_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: object, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(content, tmp_path / "ckpt.pt")
    refused(message, checkpoint.load, tmp_path / "ckpt.pt", words_file(tmp_path))
    assert not Path("opened").exists()


def test_the_vocabulary_of_another_model_is_refused(tmp_path: Path) -> None:
    tokens = tokenizer.load(PLAYS.with_suffix(".tiktoken")).tokens
    other = words_file(tmp_path, [*tokens[:-2], tokens[-1], tokens[-2]])
    refused("its tokens differ", checkpoint.load, PLAYS, other)
    (tmp_path / "ckpt.pt").write_bytes(b"not a checkpoint")
    refused("was not opened", checkpoint.load, tmp_path / "ckpt.pt", other)
    refused("no such checkpoint", checkpoint.load, tmp_path / "none.pt")
    refused("not this model's vocabulary", checkpoint.load, PLAYS, words_file(tmp_path))


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


@pytest.mark.full  # Each part by itself speaks as torch in test_textgen_kernel.py.
def test_all_parts_give_the_same_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two short contexts stand for the seven up to 1024. No curve ends early, however slow the machine is."""
    monkeypatch.setattr(compare, "CONTEXTS", (16, 32))
    monkeypatch.setattr(compare, "SLOWEST_TOKEN_S", math.inf)
    module, drawing = ROOT / "module.cpp", tmp_path / "speed.svg"
    assert gpt149.run(["compare", "--module", str(module), "--seed", "2", "--figure", str(drawing)]) == 0
    assert "-- part0, part1, part2, part3, part4 alike --" in capfd.readouterr().out
    assert "<svg" in drawing.read_text()
