"""Training of networks on a student's operators beside PyTorch, and the digits: drawn or from MNIST's files."""

import gzip
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import refused, write

from grader.assignment import labs, loading, mutations
from grader.core.arrays import Array, np
from grader.core.errors import KitError
from grader.runner.calls import Call, Request
from grader.runner.session import Session
from labs.operators import known as kernels
from labs.operators.train import command, digits, lockstep, operations, scaling, training
from labs.operators.train.networks import NETWORKS
from labs.operators.train.training import Stopped, Trainer, Training

FOLDER = labs.named("operators")
CONFIG = labs.assignment_file(FOLDER, staff=True)
ASSIGNMENT = loading.load(CONFIG)
MASTER = labs.master(FOLDER, ASSIGNMENT.source)
WISHES = digits.Wishes(epochs=1, batch=16, rate=0.1, seed=1, lockstep=10**6)
#: Known wrong kernels: (part, name in the lab's table), by the name that their function gets in the judged file.
KNOWN = {
    "linearTransposed": ("linear_backward", "dW stored transposed"),
    "linearLastBias": ("linear_backward", "db of the last row"),
    "reluByGradient": ("relu_backward", "by the sign of dO"),
    "convUnturned": ("conv2d_backward", "dX of a flipped filter"),
    "lossOfSum": ("cross_entropy_backward", "sum over the batch"),
    "stepUpwards": ("sgd", "uphill"),
}
#: More wrong kernels, such as a gradient where X <= 0, a gradient for each of equal maxima, and a store out of bounds.
MORE = """
void reluInverted(torch::Tensor dO, torch::Tensor X, torch::Tensor dX, int n) {
    for (int i = 0; i < n; i++)
        if (X.data_ptr<float>()[i] <= 0) dX.data_ptr<float>()[i] += dO.data_ptr<float>()[i];
}

static std::vector<float> pooled;

torch::Tensor poolAndKeep(torch::Tensor X, torch::Tensor index, int N, int C, int H, int Wd, int K, int stride) {
    pooled.assign(X.data_ptr<float>(), X.data_ptr<float>() + N * C * H * Wd);
    return maxpool2dForward(X, index, N, C, H, Wd, K, stride);
}

void poolAllTies(torch::Tensor dY, torch::Tensor index, torch::Tensor dX, int N, int C, int H, int Wd, int K,
                 int stride) {
    const int OH = (H - K) / stride + 1, OW = (Wd - K) / stride + 1;
    for (int p = 0; p < N * C * OH * OW; p++) {
        const int plane = p / (OH * OW) * H * Wd;
        const float most = pooled[plane + index.data_ptr<int64_t>()[p]];
        for (int k = 0; k < K * K; k++) {
            const int place = plane + (p / OW % OH * stride + k / K) * Wd + p % OW * stride + k % K;
            if (pooled[place] == most) dX.data_ptr<float>()[place] += dY.data_ptr<float>()[p];
        }
    }
}

void stepBeyond(torch::Tensor P, torch::Tensor G, int n, float rate) { *reinterpret_cast<volatile float *>(8) = rate; }

torch::Tensor reluOfHalf(torch::Tensor X, int n) { return reluForward(X, n / 2); }
"""
Train = Callable[..., Training]
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
PACKED = "t10k-images-idx3-ubyte.gz"
Spoil = Callable[[bytes], bytes | None]
HUGE = struct.pack(">4I", 2051, 1 << 31, 28, 28)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[operations.Start]:
    table = {(mutation.part, mutation.name): mutation for mutation in kernels.WRONG}
    made = [table[known] for known in KNOWN.values()]
    text, _ = mutations.in_one_file(kernels, ASSIGNMENT, MASTER.read_text(encoding="utf-8"), made)
    for number, name in enumerate(KNOWN):
        text = re.sub(rf"\b{mutations.variant(number)}\b", name, text)
    given, opened, bindings = text.partition("PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\n")
    more = "".join(f'm.def("{name}", &{name});\n' for name in re.findall(r"^\S+ (\w+)\(", MORE, re.MULTILINE))
    text = given + MORE + opened + more + bindings
    source = write(tmp_path_factory.mktemp("operators"), text, ASSIGNMENT.source)
    with operations.opened(ASSIGNMENT, source, NETWORKS["cnn"]().parts()) as found:
        yield found


@pytest.fixture(scope="module")
def data() -> digits.Data:
    return digits.Data(digits.draw(1600, 1), digits.draw(300, 2), "digits")


class Renamed:
    """A session that exchanges functions: in place of a function in `names`, it calls the one that `names` maps to."""

    def __init__(self, session: Session, names: dict[str, str]) -> None:
        self.session, self.names = session, names

    def call(self, request: Request, **how: Any) -> Call:
        name = self.names.get(request.function, request.function)
        return self.session.call(replace(request, function=name), **how)


@pytest.fixture
def train(start: operations.Start, data: digits.Data) -> Iterator[Train]:
    """Yield a function that trains a network. In its `names`, "function=other" calls `other` instead of `function`."""
    with ExitStack() as stack:

        def run(model: str, names: str = "", images: int = 64, **wishes: Any) -> Training:
            operators = start(1)
            stack.callback(operators.session.close)
            renamed = dict(pair.split("=") for pair in names.split())
            operators.session = Renamed(operators.session, renamed)  # type: ignore[assignment]
            training = digits.Digits(data.training.images[:images], data.training.labels[:images])
            some = digits.Data(training, data.held_out, "")
            return Trainer(NETWORKS[model](), operators, some, replace(WISHES, **wishes), threads=1).run()

        yield run


@pytest.mark.full
def test_the_mlp_learns_and_the_cnn_stays_beside_pytorch(train: Train) -> None:
    made = train("mlp", images=1600, epochs=4, lockstep=30)
    agreement, last = made.agreement, made.epochs[-1]
    assert agreement.is_close and agreement.deviation is None and agreement.steps == 30
    # A step has nine calls: three layers forward and backward, the loss forward and backward, one update.
    assert agreement.calls == 9 * 30 and made.calls_per_step == 9
    assert 0 < agreement.largest_share < 1 and 0 < agreement.loss_apart < 1e-5
    assert last.loss < 0.5 * made.epochs[0].loss and last.accuracy > 0.75
    assert abs(last.accuracy - last.torch_accuracy) < 0.05
    assert len(made.read) == 300 and 0 < made.call_share <= 1
    assert last.images_per_s and last.torch_images_per_s
    assert "no call" in lockstep.Watch(NETWORKS["cnn"]()).agreement().line()
    made = train("cnn", images=400)
    assert made.agreement.is_close and made.agreement.steps == 25 and made.agreement.calls == 17 * 25
    # The calls of all steps were checked, so no speed was measured.
    assert made.epochs[0].images_per_s is None and made.calls_per_step == 0
    assert "all 425 calls are right" in made.agreement.line()


#: Exchanged functions ("function=other"), and the layer and tensor of the first deviation.
DEVIATIONS = [
    ("linearBackward=linearTransposed", "layer 3 (linear)", "gradient of W"),
    ("linearBackward=linearLastBias", "layer 3 (linear)", "gradient of b"),
    ("reluBackward=reluByGradient", "layer 2 (relu)", "gradient of X"),
    # Some elements are wrongly 0, others right: the message must not say that the gradient is 0 times the right one.
    ("reluBackward=reluInverted", "layer 2 (relu)", "gradient of X"),
    ("crossEntropyBackward=lossOfSum", "loss (cross entropy)", "gradient of the logits"),
    ("conv2dBackward=convUnturned", "layer 4 (conv2d)", "gradient of X"),
    # The mistake shows only in a window whose two largest numbers are equal and above 0. The first batch has one.
    ("maxpool2dForward=poolAndKeep maxpool2dBackward=poolAllTies", "layer 6 (maxpool2d)", "gradient of X"),
    ("sgdStep=stepUpwards", "update (sgd)", "parameter W of layer 1 (linear)"),
]


@pytest.mark.parametrize(("names", "place", "tensor"), DEVIATIONS)
def test_a_wrong_operator_is_named_by_its_place(train: Train, names: str, place: str, tensor: str) -> None:
    made = train("cnn" if place in ("layer 4 (conv2d)", "layer 6 (maxpool2d)") else "mlp", names)
    found = made.agreement.deviation
    assert found is not None and not made.epochs
    assert (found.step, str(found.place), found.tensors) == (1, place, (tensor,))
    assert found.function == re.findall(r"(\w+)=", names)[-1]
    assert found.factor == (pytest.approx(16.0, rel=1e-3) if "lossOfSum" in names else None)
    assert f"step 1, {place}, {tensor}: {found.function} is wrong" in found.line()
    assert "\n" not in found.line() and found.wrong <= found.total


def test_training_goes_on_after_a_deviation_with_the_option_and_an_overflow_ends_it(train: Train) -> None:
    """An overflow is blamed on the rate or on the function."""
    made = train("mlp", "linearBackward=linearLastBias", goes_on=True)
    assert made.agreement.deviation is not None and made.agreement.deviation.step == 1
    assert len(made.epochs) == 1
    refused(r"with --rate 1e\+30 .* in PyTorch, too", train, "cnn", rate=1e30)
    refused("the loss is", train, "mlp", "sgdStep=stepUpwards", of=Stopped, rate=2.0, epochs=40, lockstep=0)


@pytest.mark.full
def test_a_function_that_crashes_or_returns_a_wrong_shape_is_named(train: Train) -> None:
    crashed = r"step 1: sgdStep in update .sgd. crashed with SIGSEGV"
    refused(crashed, train, "mlp", "sgdStep=stepBeyond", of=operations.Broken)
    too_few = r"reluForward in layer 2 .relu.: It returned a tensor of shape \(256,\); .* of shape \(512,\)"
    refused(too_few, train, "mlp", "reluForward=reluOfHalf", of=operations.Broken)


def test_amdahls_law_is_fitted_to_times() -> None:
    law = 0.2
    shares = {t: law + (1 - law) / t for t in (1, 2, 4)}
    pairs = {t: [scaling.Estimate(x, x, x) for x in (8.0 * share, 1 / share)] for t, share in shares.items()}
    lines = [scaling.Line(t, *pair) for t, pair in pairs.items()]
    assert scaling.serial(lines) == pytest.approx(law) and scaling.serial(lines[:1]) is None
    slower = scaling.Curve(NETWORKS["cnn"](), 128, (), 1.3)
    fitted = scaling.Scaling((slower,), 2, 3, "", False).law()
    assert "More threads did not make cnn faster." in fitted and "of a core" not in fitted
    busy = scaling.Scaling((replace(slower, core_share=0.5),), 2, 3, "", False)
    assert "One thread and the judge had only 50 % of a core" in busy.law()
    curve = scaling.Curve(NETWORKS["mlp"](), 128, (*lines, scaling.Line(8, None, None)), law)
    found = scaling.Scaling((curve,), 4, 3, "here", True)
    # Serial shares by hand: sum of (1 - 1/t)(T(t)/T(1) - 1/t) / sum of (1 - 1/t)^2, with T(t) the time on t threads.
    assert "fits mlp with a serial share of 0.2000" in found.law()
    assert "fit with a serial share of 0.1027." in found.law()
    rows = found.table().rows
    assert [row[1] for row in rows] == [1, 2, 4, 8]
    assert rows[3][-1] == "not measured: 4 cores" and rows[3][2] is None
    assert rows[0][5] == pytest.approx(8e-3 * 60_000 / 128) and rows[2][10] == pytest.approx(1200 / 390)
    (figure,) = found.figures()
    assert [one.label for one in figure.series] == ["mlp", "mlp, Amdahl's law", "published"]


def test_all_numbers_of_threads_train_on_the_same_batches(start: operations.Start, data: digits.Data) -> None:
    heard: list[tuple[int, int]] = []
    asked = (NETWORKS["mlp"](), start, data, WISHES, (2, 9), 2, 1)
    curve = scaling.measure(*asked, lambda done, total: heard.append((done, total)))
    one, two, nine = curve.lines
    assert [line.threads for line in curve.lines] == [1, 2, 9] and nine.speedup is None
    assert one.speedup is not None and one.speedup.middle == 1 and curve.serial is not None
    # One and two threads make the same steps, so their losses differ only by rounding.
    assert two.loss_apart < 1e-4 and heard == [(1, 4), (2, 4), (3, 4), (4, 4)]


def run(tmp_path: Path, *arguments: str, module: Path = MASTER) -> int:
    files = ["--module", str(module), "--out", str(tmp_path / "out"), "--config", str(CONFIG)]
    return command.main([*files, *arguments])


@pytest.mark.full
def test_the_command_trains_and_delivers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    writeup = write(tmp_path, "Loss:\n<!-- table: train -->\n<!-- end -->\n", "writeup.md")
    options = "--model mlp --images 900 --epochs 2 --batch 32 --lockstep 5 --plot --show --threads 64"
    assert run(tmp_path, *options.split(), "--writeup", str(writeup)) == 0
    printed = capsys.readouterr().out
    assert "threads are left out" in printed and "epoch 2 of 2: loss" in printed
    assert "5 steps in lockstep: all 45" in printed
    assert "held-out digits read wrongly" in printed and " read as " in printed
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"train.csv", "train-loss.png", "train-accuracy.png", "train-misread-mlp.png"}
    assert "| mlp" in writeup.read_text()
    assert len((tmp_path / "out" / "train.csv").read_text().splitlines()) == 3


def test_wrong_usage_is_reported_in_one_line(tmp_path: Path) -> None:
    lines = {f"--{key} 0": f"--{key} takes a whole number from 1" for key in ("threads", "epochs", "batch")}
    lines |= {f"--rate {value}": "--rate takes a number above 0" for value in ("-1", "nan")}
    lines["--model rnn"] = "--model takes mlp, cnn or both, not 'rnn'"
    lines["--writeup none.md"] = "does not exist"
    lines |= {"--images 5": "--images takes a whole number from 120", "--data none": "--data takes a folder"}
    lines["--data nowhere --images 500"] = "--data draws none"
    lines["--model mlp --images 120 --batch 101"] = "--batch 101 is larger than the training set of 100"
    for arguments, words in lines.items():
        refused(words, run, tmp_path, *arguments.split())


def test_without_torch_one_line_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grader.backends.native.toolchain.torch_version", lambda: "absent")
    refused("this Python has no torch", run, tmp_path, "--images", "120", of=KitError)


def test_an_empty_file_ends_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "#include <torch/extension.h>\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { (void)m; }\n"
    assert run(tmp_path, "--images", "120", module=write(tmp_path, text, "operators.cpp")) == 1
    assert capsys.readouterr().out.startswith("linearForward is not exported")


def test_wrongly_read_digits_are_shown_in_letters() -> None:
    image = np.zeros((1, 28, 28), np.uint8)
    image[0, 4:8, 3] = 255
    lines = training.text(training.Misread("mlp", image, np.array([1]), np.array([7]), 10)).split("\n")
    assert lines[0] == "mlp: 1 of 10 held-out digits read wrongly" and lines[2].startswith("1 read as 7")
    assert [line.strip() for line in lines[3:]] == ["", "", "@", "@", *[""] * 10]
    none = training.Misread("mlp", image[:0], np.zeros(0, int), np.zeros(0, int), 10)
    assert training.text(none) == "mlp: 0 of 10 held-out digits read wrongly"


def test_a_seed_draws_its_balanced_digits_and_no_other_seed_does() -> None:
    # 1203 digits are drawn in more than one block, and are not a multiple of ten.
    drawn, again, other = (digits.draw(1203, seed) for seed in (3, 3, 8))
    assert drawn.images.shape == (1203, 28, 28)
    assert drawn.images.dtype == np.uint8 and drawn.labels.dtype == np.int64
    assert np.array_equal(drawn.images, again.images) and np.array_equal(drawn.labels, again.labels)
    assert not np.array_equal(drawn.images, other.images)
    counts = np.bincount(drawn.labels, minlength=10)
    assert counts.max() - counts.min() <= 1 and counts.sum() == 1203
    assert len({image.tobytes() for image in drawn.images}) == 1203
    ink = drawn.images.reshape(1203, -1)
    assert (ink.max(1) > 128).mean() > 0.99 and (ink < 64).mean() > 0.6


def test_digits_can_be_learned_but_not_by_their_means_alone() -> None:
    """Ridge regression reads most digits; choosing the nearest mean image reads far fewer."""
    train, held = digits.draw(2500, 1), digits.draw(600, 2)
    x, y = (each.images.reshape(len(each), -1) / 255.0 for each in (train, held))
    centre = x.mean(0)
    centred, wanted = x - centre, np.eye(10)[train.labels] - 0.1
    weights = np.linalg.solve(centred.T @ centred + 30 * np.eye(784), centred.T @ wanted)
    means = np.stack([x[train.labels == digit].mean(0) for digit in range(10)])
    nearest = ((y**2).sum(1)[:, None] - 2 * y @ means.T + (means**2).sum(1)).argmin(1)
    assert (((y - centre) @ weights).argmax(1) == held.labels).mean() > 0.8
    assert 0.4 < (nearest == held.labels).mean() < 0.9


def idx_bytes(array: Array) -> bytes:
    magic = {3: digits.IMAGES_MAGIC, 1: digits.LABELS_MAGIC}[array.ndim]
    return struct.pack(f">I{array.ndim}I", magic, *array.shape) + array.astype(np.uint8).tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write MNIST files of 12 training and 4 held-out images: one compressed, one with a dot for the name's hyphen."""
    drawn = digits.draw(16, 1)
    (tmp_path / IMAGES).write_bytes(idx_bytes(drawn.images[:12]))
    (tmp_path / LABELS).write_bytes(idx_bytes(drawn.labels[:12]))
    (tmp_path / PACKED).write_bytes(gzip.compress(idx_bytes(drawn.images[12:])))
    (tmp_path / "t10k-labels.idx1-ubyte").write_bytes(idx_bytes(drawn.labels[12:]))
    return tmp_path


def test_files_come_back_as_they_were_written(folder: Path) -> None:
    drawn = digits.draw(16, 1)
    training, held = digits.load(folder)
    assert np.array_equal(np.concatenate([training.images, held.images]), drawn.images)
    assert np.array_equal(held.labels, drawn.labels[12:]) and held.labels.dtype == np.int64


SPOILED: list[tuple[str, Spoil, str]] = [
    (IMAGES, lambda data: data[:-5], "cut short: its header says 9408 bytes, only 9403 follow"),
    *((IMAGES, lambda data, n=n: data[:n], "are too few for a header") for n in (9, 0)),
    (IMAGES, lambda data: b"\0\0\x08\x01" + data[4:], "begins with 2049, not with 2051"),
    (LABELS, lambda data: b"%PDF" + data[4:], "not an IDX file of labels"),
    (IMAGES, lambda data: HUGE + data[16:], "its header claims 1,605,632 MiB"),
    (IMAGES, lambda data: data + b"\0", "more bytes follow"),
    (IMAGES, lambda data: struct.pack(">4I", 2051, 12, 14, 56) + data[16:], "images of 14 x 56 pixels"),
    (IMAGES, lambda data: struct.pack(">4I", 2051, 0, 28, 28), "it is empty"),
    (LABELS, lambda data: struct.pack(">2I", 2049, 11) + data[8:-1], f"has 12 images, but {LABELS} has 11"),
    (LABELS, lambda data: data[:-1] + b"\x0a", "image 11 has label 10"),
    (LABELS, lambda data: None, "has no train-labels-idx1-ubyte"),
    (PACKED, lambda data: data[:-5], "damaged or cut short"),
    (PACKED, lambda data: data[:30] + bytes(20) + data[50:], "damaged or cut short"),
    # The header has the right sizes, but a thousand times as many bytes follow.
    (PACKED, lambda data: gzip.compress(gzip.decompress(data) + bytes(4 << 20)), "more bytes follow"),
    (PACKED, lambda data: gzip.compress(b"no images"), "are too few for a header"),
]


@pytest.mark.parametrize(("name", "spoil", "words"), SPOILED)
def test_a_spoiled_file_is_reported_in_one_line(folder: Path, name: str, spoil: Spoil, words: str) -> None:
    path = folder / name
    spoiled = spoil(path.read_bytes())
    path.unlink() if spoiled is None else path.write_bytes(spoiled)
    refused(words, digits.load, folder)
