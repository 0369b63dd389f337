"""Loads models from files: the demo's own, a nanoGPT ckpt.pt, or a GPT-2 in safetensors.

The model is first created without memory (torch's device "meta"), so that a file's sizes cannot request more memory
than its tensors have. The names and shapes of the file's tensors must be exactly the model's. Otherwise a one-line
UsageError names the file.

This module also reads and writes the safetensors format: eight bytes with the header's length, a JSON header, the
tensors' bytes. A file is only data: nothing in it is executed, and sizes are checked before memory is allocated. Every
tensor must be inside the file, have exactly its shape's size, and not overlap another tensor.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grader.core import plainfile
from grader.core.errors import UsageError, explained
from textgen import tokenizer
from textgen.model import GPT, Config
from textgen.tokenizer import Tokenizer

LARGEST_HEADER_BYTES = 16 << 20
METADATA = "__metadata__"
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file. Tensors with larger elements come first, so that every tensor is aligned."""
    header: dict[str, Any] = {METADATA: dict(metadata)}
    blobs, end = [], 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        raw = bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).tolist())
        dtype = NAMES[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [end, end + len(raw)]}
        blobs.append(raw)
        end += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    plainfile.write_bytes(path, [len(text).to_bytes(8, "little"), text, *blobs])


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return all tensors by name, and the metadata. Raises UsageError for a file that cannot be read or is invalid."""
    with explained(f"cannot read {path}"):
        data = bytearray(path.read_bytes())
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise _unsound(path, "it ends before its header does: was it downloaded completely?")
    if length > LARGEST_HEADER_BYTES:
        raise _unsound(path, f"its header claims {length} bytes")
    try:
        found = json.loads(data[8 : 8 + length], object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError):
        raise _unsound(path, "its header is not JSON") from None
    if not isinstance(found, dict):
        raise _unsound(path, "its header is not a table of tensors")
    metadata = found.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _unsound(path, "its metadata contain values that are not text")
    entries = {name: _entry(path, name, entry) for name, entry in found.items()}
    tensors, start, end = {}, 8 + length, 0
    for name, (dtype, shape, first, last) in sorted(entries.items(), key=lambda item: item[1][2:]):
        if start + last > len(data):
            raise _unsound(path, f"it ends before tensor {name!r} does: was it downloaded completely?")
        if first != end:
            fault = "overlaps another" if first < end else "comes after a gap"
            raise _unsound(path, f"tensor {name!r} {fault}")
        end = last
        if first == last:
            tensors[name] = torch.empty(shape, dtype=dtype)
            continue
        raw = torch.frombuffer(data, dtype=torch.uint8, offset=start + first, count=last - first)
        # A view needs an aligned start, which files of other programs may lack: copy the tensor then.
        raw = raw if (start + first) % dtype.itemsize == 0 else raw.clone()
        tensors[name] = raw.view(dtype).reshape(shape)
    if start + end != len(data):
        raise _unsound(path, f"{len(data) - start - end} bytes at its end do not belong to a tensor")
    return tensors, metadata


def _entry(path: Path, name: str, entry: Any) -> tuple[torch.dtype, tuple[int, ...], int, int]:
    """Return type, shape, begin and end (byte offsets) of one tensor. Raises UsageError for an invalid entry."""

    def whole(values: Any) -> bool:
        return isinstance(values, list) and all(type(k) is int and 0 <= k < 1 << 48 for k in values)

    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _unsound(path, f"tensor {name!r} is not described by dtype, shape and data_offsets")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if entry["dtype"] not in DTYPES:
        raise _unsound(path, f"tensor {name!r} has the type {entry['dtype']!r}, which is not supported")
    if not whole(shape) or len(shape) > 8 or not whole(offsets) or len(offsets) != 2:
        raise _unsound(path, f"tensor {name!r} has an invalid shape or invalid offsets")
    dtype = getattr(torch, DTYPES[entry["dtype"]])
    need_bytes = math.prod(shape) * dtype.itemsize
    if offsets[1] - offsets[0] != need_bytes:
        raise _unsound(path, f"tensor {name!r} needs {need_bytes} bytes, but has {offsets[1] - offsets[0]}")
    return dtype, tuple(shape), *offsets


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a name occurs twice")
    return dict(pairs)


def _unsound(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} is not a valid safetensors file: {why}")


PLAYS = Path(__file__).resolve().parent / "data" / "plays.safetensors"
OWN_FORMAT = "gpt149 textgen 1"
LIMITS = {"vocab_size": 1 << 18, "block_size": 1 << 16, "n_layer": 128, "n_head": 256, "n_embd": 1 << 14}
#: Largest number of padding tokens. nanoGPT rounds the vocabulary's size up for speed, so the last tokens have no text.
MOST_PADDING = 127
GPT2_HEAD_SIZE = 64


@dataclass(frozen=True)
class Loaded:
    """A model in float32, its vocabulary `words`, and its name. Tokens from len(words) on are padding without text."""

    model: GPT
    words: Tokenizer
    name: str


def load(path: Path = PLAYS, vocabulary: Path | None = None) -> Loaded:
    """Read the checkpoint `path` and its vocabulary. By default the vocabulary is in the same folder.

    There it has the checkpoint's name and the suffix .tiktoken or .json, or the name vocab.json.

    Raises:
        UsageError: a file is missing or damaged. Or the checkpoint contains another kind of model or more than tensors.
            Or the vocabulary does not belong to the model.
    """
    if not path.is_file():
        raise UsageError(f"no such checkpoint: {path}")
    fingerprint = None
    if path.suffix == ".safetensors":
        tensors, metadata = read(path)
        if metadata.get("format") == OWN_FORMAT:
            config = _own_config(path, metadata)
            fingerprint = metadata.get("vocabulary_sha256")
        else:
            tensors = _from_gpt2(tensors)
            config = _gpt2_config(path, tensors)
    elif path.suffix == ".pt":
        tensors, config = _from_nanogpt(path)
    else:
        raise UsageError(f"{path}: a checkpoint is a .safetensors file or nanoGPT's ckpt.pt")
    words = tokenizer.load(vocabulary or _beside(path))
    _check_vocabulary(vocabulary or _beside(path), words, config, fingerprint)
    return Loaded(_filled(path, config, tensors), words, path.stem)


def _check_vocabulary(path: Path, words: Tokenizer, config: Config, fingerprint: str | None) -> None:
    if not 0 <= config.vocab_size - len(words) <= MOST_PADDING:
        raise UsageError(
            f"{path} is not this model's vocabulary: it has {len(words)} tokens, the model {config.vocab_size}"
        )
    if fingerprint is not None and words.fingerprint != fingerprint:
        raise UsageError(f"{path} is not the vocabulary that this model was trained with: its tokens differ")


def _beside(path: Path) -> Path:
    for candidate in (path.with_suffix(".tiktoken"), path.with_suffix(".json"), path.with_name("vocab.json")):
        if candidate.is_file():
            return candidate
    raise UsageError(
        f"no vocabulary beside {path}: name a .tiktoken or .json file with --vocabulary (nanoGPT's meta.pkl is not "
        "read, because a pickle can run code: if you trust it, save its 'stoi' as JSON)"
    )


def _filled(path: Path, config: Config, tensors: Mapping[str, Tensor]) -> GPT:
    """Return a model with these weights. Raises UsageError for wrong names, shapes or values."""
    with torch.device("meta"):
        model = GPT(config)
    wanted = {name: tuple(parameter.shape) for name, parameter in model.state_dict().items()}
    for name, shape in wanted.items():
        if name not in tensors:
            raise UsageError(f"{path}: the model lacks {name}")
        if tuple(tensors[name].shape) != shape:
            raise UsageError(
                f"{path}: {name} has the shape {tuple(tensors[name].shape)}, but the model's sizes need {shape}"
            )
    surplus = sorted(set(tensors) - set(wanted))
    if surplus:
        raise UsageError(f"{path}: {surplus[0]} belongs to another kind of model")
    weights = {name: tensors[name].float() for name in wanted}
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            raise UsageError(f"{path}: {name} contains NaN or infinity")
    model.load_state_dict(weights, assign=True)
    return model.eval().requires_grad_(False)


def _config(path: Path, sizes: Mapping[str, Any], **style: Any) -> Config:
    """Return a configuration with the sizes that LIMITS names; `style` has the other fields of the configuration.

    Raises UsageError for a size beyond its limit, or if heads or positions do not fit the number of channels.
    """
    for name, most in LIMITS.items():
        if type(sizes.get(name)) is not int or not 1 <= sizes[name] <= most:
            raise UsageError(f"{path}: {name} should be a whole number from 1 to {most}")
    config = Config(**{name: sizes[name] for name in LIMITS}, **style)
    if config.n_embd % config.n_head:
        raise UsageError(f"{path}: {config.n_embd} channels do not divide equally into {config.n_head} heads")
    if config.positions == "rotary" and config.head_size % 2:
        raise UsageError(f"{path}: rotary positions need an even number of channels in a head")
    return config


def _own_config(path: Path, metadata: Mapping[str, str]) -> Config:
    try:
        found = json.loads(metadata["config"])
    except (KeyError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"{path}: its metadata have no configuration")
    return _config(path, found)


# ---- nanoGPT


def _from_nanogpt(path: Path) -> tuple[dict[str, Tensor], Config]:
    """Return tensors and configuration from a checkpoint of nanoGPT's train.py. No code in the file is executed.

    The file has {'model': tensors, 'model_args': sizes, ...}. Raises UsageError for other files.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or 'it is damaged'}") from error
    except Exception as error:
        # torch's unpickler may raise many types of exceptions for damaged or hostile files.
        raise UsageError(
            f"{path} was not opened: it is damaged, or contains more than tensors and numbers, which could run code"
        ) from error
    if not isinstance(found, dict) or not isinstance(found.get("model_args"), dict):
        raise UsageError(f"{path} is not a checkpoint of nanoGPT: it has no 'model' and 'model_args'")
    tensors = _named_tensors(path, found.get("model"))
    sizes, bias = found["model_args"], "transformer.h.0.ln_1.bias" in tensors
    # Checkpoints of the course's published kit, whose models have no factor 1/sqrt(d), have one of these keys.
    scale = 1.0 if "use_cpp" in sizes or "testname" in sizes else None
    return _tied(path, tensors), _config(path, sizes, bias=bias, positions="learned", scale=scale)


def _named_tensors(path: Path, found: Any) -> dict[str, Tensor]:
    if not isinstance(found, dict) or not all(
        isinstance(name, str)
        and isinstance(tensor, Tensor)
        and tensor.is_floating_point()
        and not tensor.is_sparse
        for name, tensor in found.items()
    ):
        raise UsageError(f"{path} is not a checkpoint of nanoGPT: its 'model' is not a table of tensors")
    tensors = {}
    for name, tensor in found.items():
        plain = name.removeprefix("module.").removeprefix(
            "_orig_mod."
        )  # prefixes that parallel and compiled training add to names
        if not _is_mask(plain):
            tensors[plain] = tensor
    return tensors


def _is_mask(name: str) -> bool:
    """Return True for the name of a causal mask. Old checkpoints contain masks besides the weights."""
    return name.endswith((".attn.bias", ".attn.masked_bias"))


def _tied(path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    output, embedding = tensors.pop("lm_head.weight", None), tensors.get("transformer.wte.weight")
    if output is not None and (embedding is None or not torch.equal(output, embedding)):
        raise UsageError(f"{path}: lm_head.weight and transformer.wte.weight differ; nanoGPT shares them")
    return tensors


# ---- GPT-2


def _from_gpt2(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return GPT-2's tensors with nanoGPT's names. GPT-2's files store linear maps transposed, so transpose them."""
    renamed = {}
    for name, tensor in tensors.items():
        plain = name.removeprefix("transformer.")
        if _is_mask(plain) or plain == "lm_head.weight":
            continue
        turned = plain.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")) and tensor.dim() == 2
        renamed["transformer." + plain] = tensor.t() if turned else tensor
    return renamed


def _gpt2_config(path: Path, tensors: Mapping[str, Tensor]) -> Config:
    try:
        (vocab_size, n_embd), (block_size, _) = (
            tensors["transformer.wte.weight"].shape, tensors["transformer.wpe.weight"].shape,
        )  # fmt: skip
    except (KeyError, ValueError):
        raise UsageError(f"{path} contains neither the demo's model nor a GPT-2") from None
    layers = {name.split(".")[2] for name in tensors if name.startswith("transformer.h.")}
    sizes = {"vocab_size": vocab_size, "block_size": block_size, "n_embd": n_embd, "n_layer": len(layers)}
    sizes["n_head"] = _gpt2_heads(path, n_embd)
    return _config(path, sizes, bias=True, positions="learned", gelu="tanh")


def _gpt2_heads(path: Path, n_embd: int) -> int:
    """Return the number of heads from the config.json in the same folder. Without it, assume GPT-2's 64 channels per
    head."""
    beside = path.with_name("config.json")
    if not beside.is_file():
        return max(1, n_embd // GPT2_HEAD_SIZE)
    try:
        return json.loads(beside.read_bytes())["n_head"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(f"{beside} has no valid n_head") from None
