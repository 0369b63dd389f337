"""Corpus, vocabulary and checkpoint files: our own are reproducible, foreign ones are data and never code."""

from __future__ import annotations

import base64
import json
import math
import pickle
from pathlib import Path

import pytest
import torch

from grader.base.errors import UsageError
from textgen import checkpoint, corpus, tensorfile, tokenizer
from textgen.model import GPT, Config

PLAYS = checkpoint.PLAYS
ACCENTS = "naïve — 日本 🙂 \x00\n\n  x"


# ---- corpus


def test_corpus_is_a_function_of_its_seed() -> None:
    play = corpus.write(20_000, 7)
    assert play == corpus.write(20_000, 7)
    assert play.text != corpus.write(20_000, 8).text
    assert len(play.text) >= 20_000
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


# ---- tokenizer


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
    assert len(words) == 300
    assert words.tokens == tokenizer.train(text, 300).tokens
    assert len(words.encode(text)) < 0.75 * len(text)
    path = tmp_path / "words.tiktoken"
    path.write_bytes(tokenizer.rank_lines(words.tokens))
    assert tokenizer.load(path).tokens == words.tokens
    # A file that changes is read anew: no copy of it is kept anywhere.
    other = tokenizer.train(text, 290)
    path.write_bytes(tokenizer.rank_lines(other.tokens))
    assert len(tokenizer.load(path)) == 290


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
    with pytest.raises(UsageError, match="has no 'x'"):
        letters.encode("ax")


BYTES = [bytes([byte]) for byte in range(256)]


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
    ],
)
def test_wrong_vocabulary_files_are_refused(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=message) as refused:
        tokenizer.load(tmp_path / name)
    assert "\n" not in str(refused.value)


# ---- safetensors


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
    tensorfile.write(path, example, {"why": "a test"})
    found, metadata = tensorfile.read(path)
    assert metadata == {"why": "a test"}
    assert {name: tensor.dtype for name, tensor in found.items()} == {
        name: tensor.dtype for name, tensor in example.items()
    }
    assert all(torch.equal(found[name], tensor) for name, tensor in example.items())
    assert list(tmp_path.iterdir()) == [path]


def raw(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(first: int, last: int, shape: object = (1,), dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "ends before its header"),
        (b"\x05\0\0", "ends before its header"),
        (raw(b"{}", length=1 << 62), "ends before its header"),
        (raw(b"{"), "not JSON"),
        (raw(b"[1]"), "no table"),
        (raw(b'{"a": {}, "a": {}}'), "not JSON"),
        (raw({"a": 1}), "not described"),
        (raw({"a": entry(0, 4, dtype="F33")}, b"1234"), "type 'F33'"),
        (raw({"a": entry(0, 4, shape=[-1])}, b"1234"), "are none|offsets that are none"),
        (raw({"a": entry(0, 4, shape=[1 << 40, 1 << 40])}, b"1234"), "needs"),
        (raw({"a": entry(0, 8)}, b"12345678"), "needs 4 bytes and has 8"),
        (raw({"a": entry(0, 4)}, b"12"), "ends before tensor 'a'"),
        (raw({"a": entry(0, 4), "b": entry(2, 6)}, b"123456"), "'b' overlaps"),
        (raw({"a": entry(0, 4), "b": entry(8, 12)}, b"1" * 12), "'b' comes after a gap"),
        (raw({"a": entry(0, 4)}, b"12345"), "1 bytes at its end"),
        (raw({"__metadata__": {"a": 1}}), "metadata are not texts"),
    ],
)
def test_unsound_safetensors_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "t.safetensors"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=message):
        tensorfile.read(path)


def test_a_truncated_checkpoint_is_refused(tmp_path: Path) -> None:
    data = PLAYS.read_bytes()
    path = tmp_path / "t.safetensors"
    for keep in (*range(12), 1000, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:keep])
        with pytest.raises(UsageError, match="downloaded completely"):
            tensorfile.read(path)


# ---- checkpoints


def test_the_shipped_checkpoint_records_how_it_was_made() -> None:
    _, metadata = tensorfile.read(PLAYS)
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


def words_file(folder: Path) -> Path:
    path = folder / "words.tiktoken"
    path.write_bytes(tokenizer.rank_lines(BYTES))
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
    tensorfile.write(tmp_path / "model.safetensors", weights, {"format": "pt"})
    (tmp_path / "config.json").write_text('{"n_head": 2}')
    loaded = checkpoint.load(tmp_path / "model.safetensors", words_file(tmp_path))
    assert same_function(loaded.model, model)


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
    with pytest.raises(UsageError, match=message) as refused:
        checkpoint.load(tmp_path / "ckpt.pt", words_file(tmp_path))
    assert not Path("opened").exists()
    assert "\n" not in str(refused.value)


def test_the_vocabulary_of_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not this model's vocabulary"):
        checkpoint.load(PLAYS, words_file(tmp_path))
    tokens = tokenizer.load(PLAYS.with_suffix(".tiktoken")).tokens
    other = tmp_path / "other.tiktoken"
    other.write_bytes(tokenizer.rank_lines([*tokens[:-2], tokens[-1], tokens[-2]]))
    with pytest.raises(UsageError, match="its tokens differ"):
        checkpoint.load(PLAYS, other)
    (tmp_path / "ckpt.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(UsageError, match="was not opened"):
        checkpoint.load(tmp_path / "ckpt.pt", other)
    with pytest.raises(UsageError, match="no such checkpoint"):
        checkpoint.load(tmp_path / "none.pt")
