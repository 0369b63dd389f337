"""Corpus, vocabulary, checkpoints and training are reproducible. Code in other people's checkpoints never runs."""

import base64
import json
import math
import pickle
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from conftest import ASSIGNMENT, ROOT, Capture, Patch, one_of_each, put, refused
from torch import Tensor

import gpt149
from grader.backends.torch.zygote import Zygote
from grader.core.arrays import np
from grader.runner.calls import Request
from module_ref_stub import library_path
from textgen import checkpoint, compare, corpus, demo, tokenizer, train
from textgen.generate import LOGIT_LIMIT, NEAR_TIE, Sampler, Tally, generate
from textgen.kernel import Decoder, Prefill, StudentKernel, TorchAttention, in_chunks, merge
from textgen.model import GPT, Config

PLAYS, TENSORS = checkpoint.PLAYS, "t.safetensors"
ACCENTS = "naïve — 日本 🙂 \x00\n\n  x"
BYTES, CUT = [bytes([byte]) for byte in range(256)], PLAYS.read_bytes()[:-1]
SIZES = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 32, "bias": True, "vocab_size": 256}
SMALL = ("--steps", "25", "--corpus-chars", "20000", "--vocab-size", "300", "--n-embd", "32", "--n-head", "2")
SHAPE = {**ASSIGNMENT.defaults, "threads": 2, "Br": 24, "Bc": 40}
OPENING = "ACT 3, SCENE 2. Tower, midnight.\n\n[Enter BAKER and ABBESS with the mirror.]\n\nBAKER:\n" * 3
MERGED = [(3, 1, 3), (17, 16, 32), (26, 3, 26), (100, 16, 40), (257, 32, 257)]


def test_corpus_is_a_function_of_its_seed_and_counts_its_random_choices() -> None:
    play = corpus.write(20_000, 7)
    assert play == corpus.write(20_000, 7)
    assert play.text != corpus.write(20_000, 8).text and len(play.text) >= 20_000
    assert play.text.count("[Enter ") == play.text.count("SCENE ") > 10
    dice = corpus.Dice(1)
    dice.pick("abcd")
    dice.sample("abc", 2)
    assert dice.nats == pytest.approx(math.log(4 * 3 * 2))
    hits = sum(dice.chance(0.25) for _ in range(2000))
    assert dice.nats == pytest.approx(math.log(24) - hits * math.log(0.25) - (2000 - hits) * math.log(0.75))
    assert 400 < hits < 600


def test_speakers_and_the_thing_of_the_scene_are_consistent() -> None:
    """In each scene, every speaker has entered, and the person of whom they speak has not."""
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
    # A character whose bytes are in several tokens is printed when its last byte has arrived.
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
    # A changed file is read again, because the reader keeps no copy.
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
        "b": torch.tensor([1.5, -2.0], dtype=torch.float16), "c": torch.tensor(7, dtype=torch.int64),
        "d": torch.ones(3, dtype=torch.bool), "e": torch.empty(0, 4),
        "f": torch.tensor([0.5], dtype=torch.bfloat16),
    }  # fmt: skip
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


@pytest.mark.parametrize(("name", "data", "message"), [
    ("v.tiktoken", b"no ranks here\n", ":1: a line of a .tiktoken file is 'base64 number'"),
    ("v.tiktoken", b"YQ== 0\nYQ== 1\n", ":2: .* twice"),
    ("v.tiktoken", tokenizer.rank_lines(BYTES[:255]), "lacks 1 of the 256 one-byte"),
    ("v.tiktoken", base64.b64encode(b"a") + b" 7\n", "not numbered from 0"),
    ("v.tiktoken", b"", "lacks 256"),
    ("v.json", b"[1, 2]", "maps each token"),
    ("v.json", b'{"a": 0, "b": 2}', "not numbered"),
    ("v.json", b'{"a": 0, "\\ud800": 1}', "half a character"),
    ("v.json", b"[" * 100_000, "not JSON"),
    ("v.pkl", pickle.dumps({"a": 0}), "pickles are never opened"),
    *((TENSORS, data, "ends before its header") for data in (b"", b"\x05\0\0")),
    (TENSORS, raw(b"{}", length=1 << 62), "ends before its header"),
    (TENSORS, raw(b"{"), "not JSON"),
    (TENSORS, raw(b"[1]"), "not a table"),
    (TENSORS, raw(b'{"a": {}, "a": {}}'), "not JSON"),
    (TENSORS, raw({"a": 1}), "not described"),
    (TENSORS, raw({"a": entry(0, 4, dtype="F33")}, b"1234"), "type 'F33'"),
    (TENSORS, raw({"a": entry(0, 4, shape=[-1])}, b"1234"), "invalid shape or invalid offsets"),
    (TENSORS, raw({"a": entry(0, 4, shape=[1 << 40, 1 << 40])}, b"1234"), "needs"),
    (TENSORS, raw({"a": entry(0, 8)}, b"12345678"), "needs 4 bytes, but has 8"),
    (TENSORS, raw({"a": entry(0, 4)}, b"12"), "ends before tensor 'a'"),
    (TENSORS, raw({"a": entry(0, 4), "b": entry(2, 6)}, b"123456"), "'b' overlaps"),
    (TENSORS, raw({"a": entry(0, 4), "b": entry(8, 12)}, b"1" * 12), "'b' comes after a gap"),
    (TENSORS, raw({"a": entry(0, 4)}, b"12345"), "1 bytes at its end"),
    (TENSORS, raw({"__metadata__": {"a": 1}}), "values that are not text"),
    *[(TENSORS, CUT[:n], "downloaded completely") for n in (*range(12), 1000, len(CUT) // 2, len(CUT))],
])  # fmt: skip
def test_unsound_files_are_refused(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    refused(message, checkpoint.read if name == TENSORS else tokenizer.load, tmp_path / name)


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
    return put(folder, {"words.tiktoken": tokenizer.rank_lines(tokens)}) / "words.tiktoken"


def same_function(ours: GPT, model: GPT) -> bool:
    tokens = torch.arange(12).reshape(2, 6)
    return torch.allclose(ours(tokens), model(tokens), atol=1e-6)


@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
def test_nanogpt_checkpoints_are_loaded(tmp_path: Path, prefix: str) -> None:
    model = small()
    weights = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    weights[prefix + "lm_head.weight"] = weights[prefix + "transformer.wte.weight"]
    weights[prefix + "transformer.h.0.attn.bias"] = torch.ones(1, 1, 32, 32).tril()
    torch.save({**nanogpt(dropout=0.0), "model": weights, "iter_num": 5}, tmp_path / "ckpt.pt")
    assert same_function(checkpoint.load(tmp_path / "ckpt.pt", words_file(tmp_path)).model, model)


def test_a_gpt2_checkpoint_is_loaded(tmp_path: Path) -> None:
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


def test_hostile_and_unfit_checkpoints_are_refused(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    for content, message in (
        (Malicious(), "could run code"),
        ({"model": {}, "model_args": {"n_layer": Malicious()}}, "could run code"),
        *(({"model": 5, "model_args": {}}, "a table of tensors"), ([1, 2], "not a checkpoint of nanoGPT")),
        *((nanogpt(n_layer=10**9), "n_layer should be"), (nanogpt(n_layer=3), "lacks transformer.h.2")),
        *((nanogpt(n_head=3), "do not divide"), (nanogpt(vocab_size=300), "sizes need|vocabulary")),
        (nanogpt(n_embd=8), "sizes need"),
    ):
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


@pytest.mark.full
def test_training_is_reproducible_and_learns(tmp_path: Path, capsys: Capture) -> None:
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


@pytest.mark.full
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


def test_unfit_corpora_and_torch_are_refused(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    for content, message in ((b"", "has 0 characters"), (b"\xff" * 9000, "not UTF-8")):
        (tmp_path / "mine.txt").write_bytes(content)
        assert train.main(["--out", str(tmp_path), "--corpus", str(tmp_path / "mine.txt")]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    monkeypatch.delattr(torch.optim, "Muon")
    assert train.main(["--out", str(tmp_path), *SMALL]) == 3
    said = capsys.readouterr().err
    assert "torch 2.9" in said and said.count("\n") == 1


@pytest.mark.full  # in the fast tier, another test compares each part with torch
def test_all_parts_generate_the_same_text(tmp_path: Path, monkeypatch: Patch, capfd: Capture) -> None:
    """To save time, only two short contexts are timed. An infinite limit keeps slow machines from ending a curve."""
    monkeypatch.setattr(compare, "CONTEXTS", (16, 32))
    monkeypatch.setattr(compare, "SLOWEST_TOKEN_S", math.inf)
    module, drawing = ROOT / "module.cpp", tmp_path / "speed.svg"
    assert gpt149.run(["compare", "--module", str(module), "--seed", "2", "--figure", str(drawing)]) == 0
    assert "-- part0, part1, part2, part3, part4: the same text --" in capfd.readouterr().out
    assert "<svg" in drawing.read_text()


@dataclass
class Stage:
    """The model, a zygote that starts runners, and a library of wrong kernels with the reference's C interface."""

    plays: checkpoint.Loaded
    zygote: Zygote
    wrong_library: Path

    def prompt(self, tokens: int, texts: int = 1) -> Tensor:
        return torch.tensor([self.plays.words.encode(OPENING)[:tokens]] * texts)

    def speak(
        self, function: str, prompt: Tensor, new: int, *, part: str = "part1", temperature: float = 0.8,
        window: int = 256, prefill: Prefill = "prefix", chunk: int = demo.DEFAULT_CHUNK, trust: bool = False,
    ) -> Tally:  # fmt: skip
        library = library_path() if function.startswith("gpt149_ref") else self.wrong_library
        with self.zygote.spawn("raw", library, threads=2) as session:
            asked = replace(ASSIGNMENT.part(part), function=function)
            kernel = StudentKernel(session, asked, SHAPE, window, prefill, chunk)
            sampler = Sampler(len(prompt), 5, temperature)
            return generate(self.plays, kernel, prompt, prompt.shape[1] + new, sampler, window, trust=trust)

    def by_torch(self, prompt: Tensor, new: int, temperature: float = 0.8, window: int = 256) -> Tensor:
        """Return the prompt and `new` tokens, (B, length + new). For each token, PyTorch computes the whole text."""
        sampler, tokens = Sampler(len(prompt), 5, temperature), prompt
        with torch.inference_mode():
            for _ in range(new):
                logits = self.plays.model(tokens, window)[:, -1, : len(self.plays.words)]
                tokens = torch.cat((tokens, sampler.choose(logits, sampler.draw()).tokens[:, None]), dim=1)
        return tokens


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> Stage:
    wrong_library = tmp_path_factory.mktemp("wrong") / "wrong.so"
    source = ROOT / "tests" / "sources" / "wrong_attention.cpp"
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-o", wrong_library, source], check=True)
    return Stage(checkpoint.load(), zygote, wrong_library)


RIGHT = (
    ("part1", 1, 64, 0.0), ("part1", 4, 1, 0.8), ("part2", 1, 1, 0.8), ("part2", 4, 16, 0.0),
    ("part3", 1, 16, 0.8), ("part3", 4, 1, 0.0), ("part4", 1, 1, 0.0), ("part4", 4, 16, 0.8),
)  # fmt: skip


@pytest.mark.parametrize(("part", "texts", "length", "heat"), one_of_each(RIGHT, lambda each: each[0]))
def test_right_kernels_write_as_torch(stage: Stage, part: str, texts: int, length: int, heat: float) -> None:
    prompt = stage.prompt(length, texts)
    tally = stage.speak(ASSIGNMENT.part(part).reference, prompt, 12, part=part, temperature=heat)
    assert tally.fault is None and tally.logit_error <= LOGIT_LIMIT, tally.fault
    assert tally.kernel_calls == stage.plays.model.config.n_layer * (length + 11)
    assert tally.near_ties or torch.equal(tally.tokens, stage.by_torch(prompt, 12, heat))


def test_a_window_slides_over_a_longer_text_and_a_mask_takes_one_call_a_layer(stage: Stage) -> None:
    prompt = stage.prompt(20)
    tally = stage.speak("gpt149_ref_naive", prompt, 30, window=12)
    assert tally.fault is None, tally.fault
    assert torch.equal(tally.tokens, stage.by_torch(prompt, 30, window=12))
    for window in (256, 9):
        tally = stage.speak("gpt149_ref_naive", stage.prompt(24, 2), 3, prefill="mask", window=window)
        assert tally.fault is None, tally.fault
        assert tally.kernel_calls == stage.plays.model.config.n_layer * (1 + 2)


#: By bug: the token, layer and head at which the demo must report it (head None: the kernel returned no output).
LOCATED = {"no_normalisation": (0, 0, 0), "dropped_tail": (0, 0, 0), "head_0_copied": (0, 0, 1)}
LOCATED |= {"mean_of_v": (1, 0, 0), "last_row_only": (1, 0, 0), "crash": (1, 0, None)}
FAULTS = {"last_row_only": "rows of the output differ", "crash": "SIGSEGV"}


@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize("bug", LOCATED)
def test_a_wrong_kernel_is_located_by_token_layer_and_head(stage: Stage, bug: str, chunk: int) -> None:
    fault = stage.speak(bug, stage.prompt(1), 20, chunk=chunk).fault
    assert fault is not None and FAULTS.get(bug, "off by") in fault.message
    assert (fault.token, fault.layer, fault.head) == LOCATED[bug]


def test_a_copy_of_batch_0_shows_once_texts_differ_or_keys_are_in_chunks(stage: Stage) -> None:
    cut = stage.speak("batch_0_copied", stage.prompt(4), 40, chunk=6).fault
    assert cut is not None and (cut.token, cut.layer, cut.sample) == (6, 0, 0)
    tally = stage.speak("batch_0_copied", stage.prompt(4, 3), 40, chunk=0)
    fault, tokens = tally.fault, tally.tokens
    assert fault is not None and (fault.layer, fault.head) == (0, 0) and fault.sample in (1, 2)
    assert not torch.equal(tokens[0, : fault.token + 1], tokens[fault.sample, : fault.token + 1])
    assert len({tuple(row) for row in tokens[:, : fault.token].tolist()}) == 1


def test_the_kernel_decides_the_text(stage: Stage) -> None:
    """Zeros in place of attention change the text. With `trust`, the text continues in spite of a wrong kernel."""
    right = stage.speak("right", stage.prompt(6), 40)
    wrong = stage.speak("zeros", stage.prompt(6), 40, trust=True)
    assert right.fault is None
    assert wrong.fault is not None and not wrong.fault.broken
    assert wrong.tokens.shape == right.tokens.shape and not torch.equal(wrong.tokens, right.tokens)
    assert wrong.same_choices < wrong.choices


def course_style(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return attention in float32 without subtracting the row's maximum, as students write it."""
    weights = (q @ k.transpose(2, 3)).exp()
    return (weights @ v) / weights.sum(dim=3, keepdim=True)


@pytest.mark.parametrize(("keys", "most", "window"), MERGED)
@pytest.mark.parametrize(("shift", "spread"), [(0.0, 1.0), (25.0, 4.0), (-25.0, 4.0)])
def test_merged_chunks_hold_all_keys(keys: int, most: int, window: int, shift: float, spread: float) -> None:
    source = torch.Generator().manual_seed(keys)
    q = torch.randn(2, 3, 1, 8, generator=source)
    scores = shift + spread * torch.randn(2, 3, keys, 1, generator=source)
    k = q * scores / (q * q).sum(dim=3, keepdim=True)
    v = torch.randn(2, 3, keys, 8, generator=source)
    for end in [most + 1, *range(max(most + 1, keys - window - most), keys + 1)]:
        keys_seen, values_seen = (each[:, :, max(0, end - window) : end] for each in (k, v))
        answers = course_style(*in_chunks(q, keys_seen, values_seen, most))
        assert answers.shape[2] == most + 1
        assert torch.allclose(answers, answers[:, :, :1].expand_as(answers), atol=1e-5)
        merged = merge(answers[:, :, :1], keys_seen.shape[2], most)
        weights = (q.double() @ keys_seen.double().transpose(2, 3)).softmax(dim=3)
        assert torch.allclose(merged.double(), weights @ values_seen.double(), atol=2e-5)


def test_scores_too_far_apart_for_float_take_one_call(stage: Stage) -> None:
    q, v = torch.ones(1, 1, 1, 4), torch.randn(1, 1, 10, 4, generator=torch.Generator().manual_seed(3))
    k = torch.full((1, 1, 10, 4), 10.0)
    k[:, :, -1] = -15.0  # the newest key's score is 100 below the others
    with stage.zygote.spawn("raw", stage.wrong_library, threads=1) as session:
        right = replace(ASSIGNMENT.part("part1"), function="right")
        kernel = StudentKernel(session, right, SHAPE, 64, "prefix", 4)
        answer = kernel(0, 9, q, k, v)
    assert kernel.calls == 2 and torch.allclose(answer, TorchAttention(64)(0, 9, q, k, v), atol=1e-5)


def test_a_repeated_call_has_new_inputs_and_zeroed_workspaces(stage: Stage) -> None:
    add = Request("torch.add", [{"input": 0}, {"zeros": [2]}], [np.ones(2, np.float32)])
    fill = Request("torch.Tensor.add_", [{"zeros": [2]}, {"input": 0}], [np.ones(2, np.float32)])
    with stage.zygote.spawn("torch", "", threads=1, freeze=False) as session:
        for request in (add, fill):
            for value in (1.0, 2.0, 3.0):
                call = session.call(replace(request, inputs=[np.full(2, value, np.float32)]))
                assert call.status == "ok", call
                assert call.output.tolist() == [value, value]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("positions", ["rotary", "learned"])
@pytest.mark.parametrize("window", [40, 7])
def test_decoding_with_a_cache_gives_logits_of_whole_texts(positions: str, window: int, bias: bool) -> None:
    torch.manual_seed(2)
    model = GPT(Config(50, 40, 2, 2, 16, bias, positions)).eval()  # type: ignore[arg-type]
    model.initialise()
    for parameter in model.parameters():
        parameter.data = 4.0 * parameter.data + (0.1 if parameter.dim() == 1 else 0.0)
    tokens = torch.randint(50, (3, 40), generator=torch.Generator().manual_seed(1))
    expected = model(tokens, window)
    decoder = Decoder(model, TorchAttention(window), 3, 40, window)
    assert torch.allclose(decoder.extend(tokens[:, :13]), expected[:, 12], atol=1e-5)
    for t in range(13, 30):
        assert torch.allclose(decoder.extend(tokens[:, t : t + 1]), expected[:, t], atol=1e-5)
    assert torch.allclose(decoder.extend(tokens[:, 30:]), expected[:, 39], atol=1e-5)


def test_sampling_follows_the_probabilities_alone_and_in_a_batch() -> None:
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(4))
    together, alone = Sampler(4, 9, 1.0, top_k=5), Sampler(1, 9, 1.0, top_k=5)
    for _ in range(20):
        four, one = together.choose(logits, together.draw()), alone.choose(logits[:1], alone.draw())
        assert four.tokens[0] == one.tokens[0]
        assert all(token in logits[k].topk(5).indices for k, token in enumerate(four.tokens))
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()
    sampler, seen = Sampler(1, 3, 1.0), torch.zeros(4)
    for _ in range(4000):
        seen[sampler.choose(logits, sampler.draw()).tokens] += 1
    assert torch.allclose(seen / 4000, logits.exp()[0], atol=0.03)
    greedy = Sampler(1, 3, 0.0).choose(logits, sampler.draw())
    assert greedy.tokens.tolist() == [3] and float(greedy.margins) > NEAR_TIE


def inference(part: str, *arguments: str) -> int:
    return gpt149.run([part, "--inference", *arguments, "--module", str(ROOT / "module.cpp")])


@pytest.mark.full
def test_the_master_generates_text_from_the_command_line(capfd: Capture) -> None:
    assert inference("part4", "-m", "shakes128", "--samples", "2", "--seed", "4") == 0
    text = capfd.readouterr().out
    assert text.count("ACT 1, SCENE 1.") >= 2 and "-- text 2 --" in text
    assert "of causal PyTorch at every token" in text and "% of the time in the kernel" in text


def test_an_unfit_option_is_refused_in_one_line(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cut.safetensors").write_bytes(checkpoint.PLAYS.read_bytes()[:1000])
    options = {"-m shakes99": "there is no 'shakes99': choose shakes128", "-N 64": "-N does not go with"}
    options |= {"--samples 65": "--samples takes", "--temperature nan": "--temperature takes"}
    options |= {f"--chunk {chunk}": "--chunk takes a whole number from 0" for chunk in ("-3", "4097", "many")}
    options |= {"--prompt ": "at least one character", "--checkpoint cut.safetensors": "ends before"}
    options["--prompt a --prompt b --samples 3"] = "does not fit 2 prompts"
    for line, message in options.items():
        refused(message, inference, "part1", *line.split(" "))
    refused("prompts need the same", inference, "part1", "--prompt", "[Enter", "--prompt", "BAKER: I saw")
    refused("choose a longer -m", inference, "part1", "--prompt", "the mirror " * 100)
    # Generating a text needs --inference and a part that computes attention.
    refused("-m needs --inference", gpt149.run, ["part4", "-m", "shakes128"])
    refused("computes no attention; choose", inference, "4Daccess")
