"""The model through a kernel: right ones give PyTorch's text, wrong ones are located by token, layer and head."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from conftest import ASSIGNMENT, ROOT, one_of_each, refused
from torch import Tensor

import gpt149
from grader.backends.torch.zygote import Zygote
from grader.core.arrays import np
from grader.runner.calls import Request
from module_ref_stub import library_path
from textgen import checkpoint
from textgen.demo import DEFAULT_CHUNK
from textgen.generate import LOGIT_LIMIT, NEAR_TIE, Sampler, Tally, generate
from textgen.kernel import Chunks, Decoder, Prefill, StudentKernel, TorchAttention
from textgen.model import GPT, Config

SHAPE = {**ASSIGNMENT.defaults, "threads": 2, "Br": 24, "Bc": 40}
OPENING = "ACT 3, SCENE 2. Tower, midnight.\n\n[Enter BAKER and ABBESS with the mirror.]\n\nBAKER:\n" * 3


@dataclass
class Stage:
    """The model, and kernels that it speaks through. Each is one function of a library with the reference's ABI."""

    plays: checkpoint.Loaded
    zygote: Zygote
    wrong_library: Path

    def prompt(self, tokens: int, texts: int = 1) -> Tensor:
        return torch.tensor([self.plays.words.encode(OPENING)[:tokens]] * texts)

    def speak(
        self, function: str, prompt: Tensor, new: int, *, part: str = "part1", temperature: float = 0.8,
        window: int = 256, prefill: Prefill = "prefix", chunk: int = DEFAULT_CHUNK, trust: bool = False,
    ) -> Tally:  # fmt: skip
        library = library_path() if function.startswith("gpt149_ref") else self.wrong_library
        with self.zygote.spawn("raw", library, threads=2) as session:
            asked = replace(ASSIGNMENT.part(part), function=function)
            kernel = StudentKernel(session, asked, SHAPE, window, prefill, chunk)
            sampler = Sampler(len(prompt), 5, temperature)
            return generate(self.plays, kernel, prompt, prompt.shape[1] + new, sampler, window, trust=trust)

    def by_torch(self, prompt: Tensor, new: int, temperature: float = 0.8, window: int = 256) -> Tensor:
        """Continue by plain causal PyTorch, with everything computed again for each token: (B, length)."""
        sampler, tokens = Sampler(len(prompt), 5, temperature), prompt
        with torch.inference_mode():
            for _ in range(new):
                logits = self.plays.model(tokens, window)[:, -1, : len(self.plays.words)]
                chosen = sampler.choose(logits, sampler.draw()).tokens
                tokens = torch.cat((tokens, chosen[:, None]), dim=1)
        return tokens


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    wrong_library = tmp_path_factory.mktemp("wrong") / "wrong.so"
    source = ROOT / "tests" / "sources" / "wrong_attention.cpp"
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-o", wrong_library, source], check=True)
    with Zygote() as zygote:
        yield Stage(checkpoint.load(), zygote, wrong_library)


RIGHT = (
    ("part1", 1, 64, 0.0), ("part1", 4, 1, 0.8), ("part2", 1, 1, 0.8), ("part2", 4, 16, 0.0),
    ("part3", 1, 16, 0.8), ("part3", 4, 1, 0.0), ("part4", 1, 1, 0.0), ("part4", 4, 16, 0.8),
)  # fmt: skip


@pytest.mark.parametrize(("part", "texts", "length", "heat"), one_of_each(RIGHT, lambda each: each[0]))
def test_right_kernels_speak_as_torch(stage: Stage, part: str, texts: int, length: int, heat: float) -> None:
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


@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize(
    ("bug", "token", "head", "message"),
    [
        ("no_normalisation", 0, 0, "off by"),
        ("dropped_tail", 0, 0, "off by"),
        ("head_0_copied", 0, 1, "off by"),
        ("mean_of_v", 1, 0, "off by"),
        ("last_row_only", 1, 0, "rows of the output differ"),
        ("crash", 1, None, "SIGSEGV"),
    ],
)
def test_a_wrong_kernel_is_located_by_token_layer_and_head(
    stage: Stage, bug: str, token: int, head: int | None, message: str, chunk: int
) -> None:
    fault = stage.speak(bug, stage.prompt(1), 20, chunk=chunk).fault
    assert fault is not None and message in fault.message
    assert (fault.token, fault.layer, fault.head) == (token, 0, head)


def test_batch_0_copied_shows_once_texts_differ_or_keys_are_cut_up(stage: Stage) -> None:
    cut = stage.speak("batch_0_copied", stage.prompt(4), 40, chunk=6).fault
    assert cut is not None and (cut.token, cut.layer, cut.sample) == (6, 0, 0)
    tally = stage.speak("batch_0_copied", stage.prompt(4, 3), 40, chunk=0)
    fault, tokens = tally.fault, tally.tokens
    assert fault is not None and (fault.layer, fault.head) == (0, 0) and fault.sample in (1, 2)
    assert not torch.equal(tokens[0, : fault.token + 1], tokens[fault.sample, : fault.token + 1])
    assert len({tuple(row) for row in tokens[:, : fault.token].tolist()}) == 1


def test_kernel_drives_the_text(stage: Stage) -> None:
    """Zeros in place of attention change the text; a trusted kernel goes on to its end."""
    right = stage.speak("right", stage.prompt(6), 40)
    wrong = stage.speak("zeros", stage.prompt(6), 40, trust=True)
    assert right.fault is None
    assert wrong.fault is not None and not wrong.fault.broken
    assert wrong.tokens.shape == right.tokens.shape and not torch.equal(wrong.tokens, right.tokens)
    assert wrong.same_choices < wrong.choices


def course_style(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return attention in float32, its exp() without the row's maximum subtracted, as students write it."""
    weights = (q @ k.transpose(2, 3)).exp()
    return (weights @ v) / weights.sum(dim=3, keepdim=True)


@pytest.mark.parametrize(
    ("keys", "most", "window"), [(3, 1, 3), (17, 16, 32), (26, 3, 26), (100, 16, 40), (257, 32, 257)]
)
@pytest.mark.parametrize(("shift", "spread"), [(0.0, 1.0), (25.0, 4.0), (-25.0, 4.0)])
def test_merged_chunks_hold_all_keys(keys: int, most: int, window: int, shift: float, spread: float) -> None:
    """Begun in the middle, after a jump, and token by token until the window has slid over its own beginning."""
    source = torch.Generator().manual_seed(keys)
    q = torch.randn(2, 3, 1, 8, generator=source)
    scores = shift + spread * torch.randn(2, 3, keys, 1, generator=source)
    k = q * scores / (q * q).sum(dim=3, keepdim=True)
    v = torch.randn(2, 3, keys, 8, generator=source)
    cut = Chunks(2, 3, 8, window, most)
    for end in [most + 1, *range(max(most + 1, keys - window - most), keys + 1)]:
        keys_seen, values_seen = (each[:, :, max(0, end - window) : end] for each in (k, v))
        answers = course_style(*cut.follow(q, keys_seen, values_seen, end))
        assert answers.shape[2] == most + 1
        assert torch.allclose(answers, answers[:, :, :1].expand_as(answers), atol=1e-5)
        merged = cut.merge(answers[:, :, :1])
        weights = (q.double() @ keys_seen.double().transpose(2, 3)).softmax(dim=3)
        assert merged is not None
        assert torch.allclose(merged.double(), weights @ values_seen.double(), atol=2e-5)


def test_scores_too_far_apart_for_float_take_one_call(stage: Stage) -> None:
    q, v = torch.ones(1, 1, 1, 4), torch.randn(1, 1, 10, 4, generator=torch.Generator().manual_seed(3))
    k = torch.full((1, 1, 10, 4), 10.0)
    k[:, :, -1] = -15.0  # the newest key's score is 100 below the others
    with stage.zygote.spawn("raw", stage.wrong_library, threads=1) as session:
        right = replace(ASSIGNMENT.part("part1"), function="right")
        kernel = StudentKernel(session, right, SHAPE, 64, "prefix", 4)
        answer = kernel(0, 9, q, k, v, Chunks(1, 1, 4, 64, 4))
    assert kernel.calls == 2
    assert torch.allclose(answer, TorchAttention(64)(0, 9, q, k, v), atol=1e-5)


def test_a_kept_call_has_fresh_inputs_and_zeros(stage: Stage) -> None:
    """A token is cheap because the runner repeats a call in the memory of the one before."""
    add = Request("torch.add", [{"input": 0}, {"zeros": [2]}], [np.ones(2, np.float32)])
    fill = Request("torch.Tensor.add_", [{"zeros": [2]}, {"input": 0}], [np.ones(2, np.float32)])
    with stage.zygote.spawn("torch", "", threads=1, freeze=False) as session:
        for request in (add, fill):
            for value in (1.0, 2.0, 3.0):
                call = session.call(replace(request, inputs=[np.full(2, value, np.float32)]))
                assert call.status == "ok", call
                assert call.output.tolist() == [value, value]


def random_model(positions: str, bias: bool = False) -> GPT:
    torch.manual_seed(2)
    model = GPT(Config(50, 40, 2, 2, 16, bias, positions))  # type: ignore[arg-type]
    model.initialise()
    for parameter in model.parameters():
        parameter.data = 4.0 * parameter.data + (0.1 if parameter.dim() == 1 else 0.0)
    return model.eval()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("positions", ["rotary", "learned"])
@pytest.mark.parametrize("window", [40, 7])
def test_cache_gives_the_logits_of_the_whole(positions: str, window: int, bias: bool) -> None:
    model = random_model(positions, bias)
    tokens = torch.randint(50, (3, 40), generator=torch.Generator().manual_seed(1))
    expected = model(tokens, window)
    decoder = Decoder(model, TorchAttention(window), 3, 40, window)
    assert torch.allclose(decoder.extend(tokens[:, :13]), expected[:, 12], atol=1e-5)
    for t in range(13, 30):
        assert torch.allclose(decoder.extend(tokens[:, t : t + 1]), expected[:, t], atol=1e-5)
    assert torch.allclose(decoder.extend(tokens[:, 30:]), expected[:, 39], atol=1e-5)


def test_rotary_positions_are_distances() -> None:
    rotary = random_model("rotary").blocks[0].rotary
    q, k = torch.randn(2, 1, 1, 1, 8).unbind()
    near, far, nearer = ((rotary(q, to) * rotary(k, at)).sum() for to, at in ((5, 3), (2005, 2003), (5, 4)))
    assert torch.allclose(near, far, atol=1e-4) and not torch.allclose(near, nearer, atol=1e-3)


def test_sampling_follows_the_odds_and_is_alike_alone_and_beside_others() -> None:
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


def test_module_talks_from_the_command_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert inference("part4", "-m", "shakes128", "--samples", "2", "--seed", "4") == 0
    text = capfd.readouterr().out
    assert text.count("ACT 1, SCENE 1.") >= 2 and "-- text 2 --" in text
    assert "of causal PyTorch at every token" in text and "% of the time in the kernel" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-m", "shakes99"), "there is no 'shakes99': choose shakes128"),
        (("--prompt", ""), "at least one character"),
        (("-N", "64"), "-N does not go with"),
        (("--samples", "65"), "--samples takes"),
        (("--temperature", "nan"), "--temperature takes"),
        *[(("--chunk", chunk), "--chunk takes a whole number from 0") for chunk in ("-3", "4097", "many")],
        (("--prompt", "a", "--prompt", "b", "--samples", "3"), "does not go with 2 prompts"),
        (("--prompt", "[Enter", "--prompt", "BAKER: I saw"), "begin equally long"),
        (("--prompt", "the mirror " * 100), "take a longer -m"),
        (("--checkpoint", "cut.safetensors"), "ends before"),
    ],
)
def test_an_unfit_option_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cut.safetensors").write_bytes(checkpoint.PLAYS.read_bytes()[:1000])
    refused(message, inference, "part1", *arguments)


def test_a_text_takes_inference_and_a_part_that_is_attention() -> None:
    refused("-m belongs to --inference", gpt149.run, ["part4", "-m", "shakes128"])
    refused("is no attention", inference, "4Daccess")
