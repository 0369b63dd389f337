"""Child of tests/test_gpu_lab.py: kernels of the GPU lab in Triton's interpreter, their results judged by the lab's
oracles.

    python interpreting.py table PART|all WRONG|RIGHT   the lab's known kernels: [name, code, message] a line, in JSON
    python interpreting.py file PATH PART,...            one file, a master on hidden cases too: [part, code, message]
    a line

It knows nothing of processes, sandboxes and time, and no other rules than the evaluator's: outputs are compared,
explained and summed up by the same functions. bfloat16 is float32 here: the interpreter has no such type.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import yaml  # noqa: E402

from grader.judge.comparison import compare  # noqa: E402
from grader.judge.diagnosis.diagnose import diagnose, most_telling, settled  # noqa: E402
from labs.gpu import known  # noqa: E402
from labs.gpu.inputs import make_inputs  # noqa: E402
from labs.gpu.oracle import ORACLES  # noqa: E402

LAB = ROOT / "labs" / "gpu"
TYPES = {24: torch.float32, 11: torch.float16, 8: torch.float32}
SIZES = {"softmax_long": ("lines", "width"), "matmul": ("rows", "columns")}
ENOUGH = 2
"""Wrong cases after which a kernel's mistake is told."""

PUBLIC = yaml.safe_load((LAB / "assignment.yaml").read_text(encoding="utf-8"))
HIDDEN = yaml.safe_load((LAB / "hidden" / "assignment.yaml").read_text(encoding="utf-8"))
PARTS = {part["id"]: part for part in PUBLIC["parts"]}


def loaded(text: str, folder: Path) -> Any:
    name = f"kernels_{len(list(folder.iterdir()))}"
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def laid(array: np.ndarray, layout: int, dtype: torch.dtype) -> torch.Tensor:
    """As the engine lays inputs: contiguous; the axes before the last exchanged; or rows with gaps of NaN."""
    t = torch.from_numpy(np.ascontiguousarray(array)).to(dtype)
    if layout == 1 and t.ndim > 1:
        return t.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == 2:
        steps = torch.empty((*t.shape[:-1], t.shape[-1] + 8), device="meta").stride()
        memory = torch.full((8 + (t.shape[-1] + 8) * t[..., 0].numel(),), float("nan"), dtype=dtype)
        memory.as_strided(t.shape, steps, 8).copy_(t)
        return memory.as_strided(t.shape, steps, 8)
    return t


def answers(
    part: str, module: Any, inputs: Mapping[str, np.ndarray], shape: Mapping[str, int]
) -> dict[str, Any]:
    """What the part's function gives, by output."""
    dtype, layout = TYPES[shape["precision"]], shape["layout"]
    given = {name: laid(t, layout, torch.float32 if name == "L" else dtype) for name, t in inputs.items()}
    if not part.startswith("flash"):
        sizes = SIZES.get(part, ("R", "C"))
        y = torch.full([shape[size] for size in sizes], float("nan"), dtype=dtype)
        getattr(module, part)(*given.values(), y)
        return {"": y}
    causal = bool(shape["causal"])
    forms = [
        one
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, torch.autograd.Function)
    ]
    if not forms:
        names = ("q", "k", "v") if part == "flash_forward" else ("q", "k", "v", "O", "L", "dO")
        found = getattr(module, part)(*(given[name] for name in names), causal)
        return dict(zip(PARTS[part]["outputs"], found, strict=True))
    q, k, v = (given[name].detach().requires_grad_() for name in "qkv")
    o = forms[-1].apply(q, k, v, causal)
    if part == "flash_forward":
        return {"O": o.detach(), "L": next(t for t in o.grad_fn.saved_tensors if t.shape == o.shape[:2])}
    return dict(zip(("dQ", "dK", "dV"), torch.autograd.grad(o, (q, k, v), given["dO"]), strict=True))


def verdict(part: str, module: Any, cases: list[dict[str, Any]], enough: int = 1000) -> tuple[str, str]:
    """A code and a message, ("pass", "") where all is right."""
    oracle, told, wrong_cases = ORACLES[PARTS[part]["oracle"]], [], 0
    for case in cases:
        shape = {**PUBLIC["defaults"], **case["shape"]}
        inputs = make_inputs(case["distribution"], shape, case["seed"])
        expected = oracle.expected(inputs, shape)
        expected = expected if isinstance(expected, Mapping) else {"": expected}
        is_wrong = False
        for name, tensor in answers(part, module, inputs, shape).items():
            actual = tensor.float().numpy()
            held = compare(expected[name], actual)
            if not held.ok:
                is_wrong = True
                told.append(
                    diagnose(
                        oracle, inputs, shape, expected[name], actual, held, None, part, tuple(told), name
                    )
                )
        wrong_cases += is_wrong
        if wrong_cases >= enough:
            break
    if not told:
        return "pass", ""
    found = most_telling([one for one in settled(told) if one], oracle.axes)
    return found.code, found.message


def place(source: str, function: str) -> tuple[int, int]:
    """From the line that defines a function to the next one that begins in the first column."""
    found = re.search(rf"^def {function}\(", source, re.MULTILINE)
    assert found is not None, function
    after = re.compile(r"(?<=\n)[^\s)]").search(source, found.end())
    return found.start(), after.start() if after else len(source)


def edited(source: str, mutation: Any) -> str:
    """The edits of a mutation, anywhere in its part's functions."""
    source = re.sub(r"^ *# BEGIN STARTER\n.*?# END STARTER\n", "", source, flags=re.DOTALL | re.MULTILINE)
    for old, new, *times in mutation.edits:
        places = sorted(
            (place(source, function) for function in known.FUNCTIONS[mutation.part]), reverse=True
        )
        count = sum(source[start:end].count(old) for start, end in places)
        if count != (times[0] if times else 1):
            raise ValueError(f"{mutation.part}, {mutation.name}: found {count} times: {old!r}")
        for start, end in places:
            source = source[:start] + source[start:end].replace(old, new) + source[end:]
    return source


def table(part: str, which: str, folder: Path) -> Iterator[tuple[str, str, str]]:
    source = (LAB / "kernels.py").read_text(encoding="utf-8")
    for mutation in getattr(known, which):
        if part in ("all", mutation.part):
            module = loaded(edited(source, mutation), folder)
            enough = ENOUGH if which == "WRONG" else 1000
            code, message = verdict(mutation.part, module, PARTS[mutation.part]["cases"], enough)
            yield f"{mutation.part}: {mutation.name}", code, message


def file(path: str, parts: str, folder: Path) -> Iterator[tuple[str, str, str]]:
    module = loaded(Path(path).read_text(encoding="utf-8"), folder)
    hidden = {part["id"]: part["hidden_cases"] for part in HIDDEN["parts"]}
    for part in parts.split(","):
        drawn = [{**case, "seed": 1000 + number} for number, case in enumerate(hidden[part])]
        drawn = drawn if Path(path).parent == LAB else []
        yield (part, *verdict(part, module, [*PARTS[part]["cases"], *drawn]))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as scratch:
        wanted = {"table": table, "file": file}[sys.argv[1]]
        for line in wanted(sys.argv[2], sys.argv[3], Path(scratch)):
            print(json.dumps(line), flush=True)
