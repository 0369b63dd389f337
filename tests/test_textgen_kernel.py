"""The model through a kernel: right ones say what PyTorch says, wrong ones are told by token, layer and head."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from torch import Tensor

from grader.assignment import loading
from grader.base.arrays import np
from grader.run.calls import Request
from grader.run.zygote import Zygote
from module_ref_stub import library_path
from textgen import checkpoint, chunks
from textgen.decode import Decoder
from textgen.demo import DEFAULT_CHUNK
from textgen.generate import LOGIT_LIMIT, NEAR_TIE, Tally, continued_by_torch, generate
from textgen.kernel import Prefill, StudentKernel, TorchAttention
from textgen.model import GPT, Config
from textgen.sampling import Sampler

COURSE = loading.load(ROOT / "configs" / "gpt149.yaml")
SHAPE = {**COURSE.defaults, "threads": 2, "Br": 24, "Bc": 40}
OPENING = "ACT 3, SCENE 2. Tower, midnight.\n\n[Enter BAKER and ABBESS with the mirror.]\n\nBAKER:\n" * 3


@pytest.fixture(scope="module")
def plays() -> checkpoint.Loaded:
    torch.set_num_threads(1)
    return checkpoint.load()


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as started:
        yield started


@pytest.fixture(scope="module")
def wrong_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wrong") / "wrong.so"
    source = ROOT / "tests" / "sources" / "wrong_attention.cpp"
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-o", str(path), str(source)], check=True)
    return path


Speak = Callable[..., Tally]


@pytest.fixture
def speak(plays: checkpoint.Loaded, zygote: Zygote) -> Iterator[Speak]:
    """Generate with one function of a library that has the reference's ABI."""
    opened: list[StudentKernel] = []

    def run(
        function: str,
        prompt: Tensor,
        new: int,
        *,
        part: str = "part1",
        library: Path | None = None,
        temperature: float = 0.8,
        window: int = 256,
        prefill: Prefill = "prefix",
        chunk: int = DEFAULT_CHUNK,
        trust: bool = False,
    ) -> Tally:
        session = zygote.spawn("raw", library or library_path(), threads=2)
        asked = replace(COURSE.part(part), function=function)
        opened.append(StudentKernel(session, asked, SHAPE, window, prefill, chunk))
        sampler = Sampler(len(prompt), 5, temperature)
        return generate(plays, opened[-1], prompt, prompt.shape[1] + new, sampler, window, trust=trust)

    yield run
    for kernel in opened:
        kernel.session.close()


def prompt_of(plays: checkpoint.Loaded, tokens: int, texts: int = 1) -> Tensor:
    return torch.tensor([plays.words.encode(OPENING)[:tokens]] * texts)


# ---- right kernels


@pytest.mark.parametrize(
    ("part", "texts", "length", "temperature"),
    [
        ("part1", 1, 64, 0.0), ("part1", 4, 1, 0.8), ("part2", 1, 1, 0.8), ("part2", 4, 16, 0.0),
        ("part3", 1, 16, 0.8), ("part3", 4, 1, 0.0), ("part4", 1, 1, 0.0), ("part4", 4, 16, 0.8),
    ],
)  # fmt: skip
def test_right_kernels_say_what_pytorch_says(
    plays: checkpoint.Loaded, speak: Speak, part: str, texts: int, length: int, temperature: float
) -> None:
    reference = COURSE.part(part).reference
    assert reference is not None
    prompt = prompt_of(plays, length, texts)
    tally = speak(reference, prompt, 12, part=part, temperature=temperature)
    assert tally.fault is None, tally.fault
    assert tally.logit_error <= LOGIT_LIMIT
    assert tally.kernel_calls == plays.model.config.n_layer * (length + 11)
    sampler = Sampler(texts, 5, temperature)
    expected = continued_by_torch(plays.model, len(plays.words), prompt, length + 12, sampler, 256)
    assert tally.near_ties or torch.equal(tally.tokens, expected)


def test_window_slides_over_a_text_longer_than_it(plays: checkpoint.Loaded, speak: Speak) -> None:
    tally = speak("gpt149_ref_naive", prompt_of(plays, 20), 30, window=12)
    assert tally.fault is None, tally.fault
    expected = continued_by_torch(
        plays.model, len(plays.words), prompt_of(plays, 20), 50, Sampler(1, 5, 0.8), 12
    )
    assert torch.equal(tally.tokens, expected)


def test_mask_as_channels_takes_one_call_a_layer(plays: checkpoint.Loaded, speak: Speak) -> None:
    for window in (256, 9):
        tally = speak("gpt149_ref_naive", prompt_of(plays, 24, 2), 3, prefill="mask", window=window)
        assert tally.fault is None, tally.fault
        assert tally.kernel_calls == plays.model.config.n_layer * (1 + 2)


# ---- wrong kernels


@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize(
    ("bug", "first_token", "says"),
    [
        ("no_normalisation", 0, "off by"),
        ("dropped_tail", 0, "off by"),
        ("head_0_copied", 0, "off by"),
        ("mean_of_v", 1, "off by"),
        ("last_row_only", 1, "rows of the output differ"),
        ("crash", 1, "SIGSEGV"),
    ],
)
def test_wrong_kernels_are_told_by_token_layer_and_head(
    plays: checkpoint.Loaded,
    speak: Speak,
    wrong_library: Path,
    chunk: int,
    bug: str,
    first_token: int,
    says: str,
) -> None:
    tally = speak(bug, prompt_of(plays, 1), 20, library=wrong_library, chunk=chunk)
    assert tally.fault is not None
    assert says in tally.fault.message
    assert (tally.fault.token, tally.fault.layer) == (first_token, 0)
    assert tally.fault.head == {"head_0_copied": 1, "crash": None}.get(bug, 0)


def test_batch_0_copied_is_told_once_the_texts_differ(
    plays: checkpoint.Loaded, speak: Speak, wrong_library: Path
) -> None:
    tally = speak("batch_0_copied", prompt_of(plays, 4, 3), 40, library=wrong_library, chunk=0)
    assert tally.fault is not None
    assert (tally.fault.layer, tally.fault.head) == (0, 0)
    place = tally.fault.token
    assert tally.fault.sample in (1, 2)
    assert not torch.equal(tally.tokens[0, : place + 1], tally.tokens[tally.fault.sample, : place + 1])
    assert len({tuple(row) for row in tally.tokens[:, :place].tolist()}) == 1


def test_batch_0_copied_is_told_of_one_text_once_its_keys_are_cut_up(
    plays: checkpoint.Loaded, speak: Speak, wrong_library: Path
) -> None:
    tally = speak("batch_0_copied", prompt_of(plays, 4), 12, library=wrong_library, chunk=6)
    assert tally.fault is not None
    assert (tally.fault.token, tally.fault.layer, tally.fault.sample) == (6, 0, 0)


def test_kernel_drives_the_text(plays: checkpoint.Loaded, speak: Speak, wrong_library: Path) -> None:
    """Zeros in place of attention change what is said; trusted, it says it to the end."""
    right = speak("right", prompt_of(plays, 6), 40, library=wrong_library)
    wrong = speak("zeros", prompt_of(plays, 6), 40, library=wrong_library, trust=True)
    assert right.fault is None
    assert wrong.fault is not None and not wrong.fault.broken
    assert wrong.tokens.shape == right.tokens.shape
    assert not torch.equal(wrong.tokens, right.tokens)
    assert wrong.same_choices < wrong.choices


# ---- keys cut into chunks


def course_style(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As students write it: exp() without subtracting the row's maximum, in float32."""
    weights = (q @ k.transpose(2, 3)).exp()
    return (weights @ v) / weights.sum(dim=3, keepdim=True)


@pytest.mark.parametrize(
    ("keys", "most", "window"), [(3, 1, 3), (17, 16, 32), (26, 3, 26), (100, 16, 40), (257, 32, 257)]
)
@pytest.mark.parametrize(("shift", "spread"), [(0.0, 1.0), (25.0, 4.0), (-25.0, 4.0)])
def test_chunks_come_to_the_attention_over_all_keys(
    keys: int, most: int, window: int, shift: float, spread: float
) -> None:
    """Begun in the middle, after a jump, and token by token until the window has slid over its own beginning."""
    source = torch.Generator().manual_seed(keys)
    q = torch.randn(2, 3, 1, 8, generator=source)
    scores = shift + spread * torch.randn(2, 3, keys, 1, generator=source)
    k = q * scores / (q * q).sum(dim=3, keepdim=True)
    v = torch.randn(2, 3, keys, 8, generator=source)
    cut = chunks.Chunks(2, 3, 8, window, most)
    for end in [most + 1, *range(max(most + 1, keys - window - most), keys + 1)]:
        near = slice(max(0, end - window), end)
        answers = course_style(*cut.follow(q, k[:, :, near], v[:, :, near], end))
        assert answers.shape[2] == most + 1
        assert torch.allclose(answers, answers[:, :, :1].expand_as(answers), atol=1e-5)
        merged = cut.merge(answers[:, :, :1])
        expected = (q.double() @ k[:, :, near].double().transpose(2, 3)).softmax(dim=3) @ v[
            :, :, near
        ].double()
        assert merged is not None
        assert torch.allclose(merged.double(), expected, atol=2e-5)


def test_scores_further_apart_than_float_can_tell_are_asked_for_at_once(
    zygote: Zygote, wrong_library: Path
) -> None:
    source = torch.Generator().manual_seed(3)
    q, v = torch.ones(1, 1, 1, 4), torch.randn(1, 1, 10, 4, generator=source)
    k = torch.full((1, 1, 10, 4), 10.0)
    k[:, :, -1] = -15.0  # the newest key's score is 100 below the others
    with zygote.spawn("raw", wrong_library, threads=1) as session:
        kernel = StudentKernel(
            session, replace(COURSE.part("part1"), function="right"), SHAPE, 64, "prefix", 4
        )
        answer = kernel(0, 9, q, k, v, chunks.Chunks(1, 1, 4, 64, 4))
    assert kernel.calls == 2
    assert torch.allclose(answer, TorchAttention(64)(0, 9, q, k, v), atol=1e-5)


def test_a_kept_call_has_fresh_inputs_and_zeros(zygote: Zygote) -> None:
    """What makes a token cheap: the runner repeats a call in the memory of the one before."""
    add = Request("torch.add", [{"input": 0}, {"zeros": [2]}], [np.ones(2, np.float32)])
    fill = Request("torch.Tensor.add_", [{"zeros": [2]}, {"input": 0}], [np.ones(2, np.float32)])
    with zygote.spawn("torch", "", threads=1, freeze=False) as session:
        for request in (add, fill):
            for value in (1.0, 2.0, 3.0):
                call = session.call(replace(request, inputs=[np.full(2, value, np.float32)]))
                assert call.status == "ok", call
                assert call.output.tolist() == [value, value]


# ---- model and sampling by themselves


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
    rotary = random_model("rotary").blocks[0].attn.rotary
    q, k = torch.randn(2, 1, 1, 1, 8).unbind()
    near = (rotary(q, 5) * rotary(k, 3)).sum()
    far = (rotary(q, 2005) * rotary(k, 2003)).sum()
    assert torch.allclose(near, far, atol=1e-4)
    assert not torch.allclose(near, (rotary(q, 5) * rotary(k, 4)).sum(), atol=1e-3)


def test_a_text_is_drawn_alike_alone_and_beside_others() -> None:
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(4))
    together, alone = Sampler(4, 9, 1.0, top_k=5), Sampler(1, 9, 1.0, top_k=5)
    for _ in range(20):
        four, one = together.choose(logits, together.draw()), alone.choose(logits[:1], alone.draw())
        assert four.tokens[0] == one.tokens[0]
        assert all(token in logits[k].topk(5).indices for k, token in enumerate(four.tokens))


def test_sampling_follows_the_odds() -> None:
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()
    sampler, seen = Sampler(1, 3, 1.0), torch.zeros(4)
    for _ in range(4000):
        seen[sampler.choose(logits, sampler.draw()).tokens] += 1
    assert torch.allclose(seen / 4000, logits.exp()[0], atol=0.03)
    greedy = Sampler(1, 3, 0.0).choose(logits, sampler.draw())
    assert greedy.tokens.tolist() == [3]
    assert float(greedy.margins) > NEAR_TIE


# ---- the command line


def gpt149(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "gpt149.py"), *arguments, "--module", str(ROOT / "module.cpp")]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_module_talks_from_the_command_line() -> None:
    run = gpt149("part4", "--inference", "-m", "shakes128", "--samples", "2", "--seed", "4")
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("ACT 1, SCENE 1.") >= 2
    assert "-- text 2 --" in run.stdout
    assert "of causal PyTorch at every token" in run.stdout
    assert "% of the time in the kernel" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("part4", "--inference", "-m", "shakes99"), "there is no 'shakes99': choose shakes128"),
        (("part4", "-m", "shakes128"), "-m belongs to --inference"),
        (("part4", "--inference", "--prompt", ""), "at least one character"),
        (("part4", "--inference", "-N", "64"), "-N does not go with"),
        (("part4", "--inference", "--samples", "65"), "--samples takes"),
        (("part4", "--inference", "--temperature", "nan"), "--temperature takes"),
        (("part4", "--inference", "--chunk", "-3"), "--chunk takes a whole number from 0"),
        (("part4", "--inference", "--chunk", "4097"), "--chunk takes a whole number from 0"),
        (("part4", "--inference", "--chunk", "many"), "--chunk takes a whole number from 0"),
        (
            ("part4", "--inference", "--prompt", "a", "--prompt", "b", "--samples", "3"),
            "does not go with 2 prompts",
        ),
        (("4Daccess", "--inference"), "is no attention"),
    ],
)
def test_slips_are_told_in_one_line(arguments: tuple[str, ...], says: str) -> None:
    run = gpt149(*arguments)
    assert run.returncode == 2, run.stdout + run.stderr
    assert says in run.stderr
    assert run.stderr.count("\n") == 1


def test_unfit_prompts_and_files_are_told_in_one_line(tmp_path: Path) -> None:
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(checkpoint.PLAYS.read_bytes()[:1000])
    for arguments, says in (
        (("--prompt", "[Enter", "--prompt", "BAKER: I saw"), "begin equally long"),
        (("--prompt", "the mirror " * 100), "take a longer -m"),
        (("--checkpoint", str(cut)), "ends before"),
    ):
        run = gpt149("part1", "--inference", *arguments)
        assert run.returncode == 2, run.stdout + run.stderr
        assert says in run.stderr
        assert run.stderr.count("\n") == 1
