"""The safetensors format, read and written: eight bytes of header length, a JSON header, the tensors' bytes.

A file from elsewhere is only data: nothing in it is executed, and sizes are checked before anything is allocated.
Every tensor must lie inside the file, have exactly its shape's size, and not overlap another.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader.core import wholefile
from grader.core.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_HEADER_BYTES = 16 << 20
METADATA = "__metadata__"
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors, largest element first so that each is aligned."""
    import torch

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
    wholefile.write_bytes(path, [len(text).to_bytes(8, "little"), text, *blobs])


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return all tensors by name, and the metadata. Raises UsageError for a file that cannot be read or is invalid."""
    import torch

    try:
        with path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            header, metadata, start = _header(path, file, size_bytes)
            _check_layout(path, header, size_bytes - start)
            data = bytearray(size_bytes - start)
            if file.readinto(data) != len(data):
                raise _unsound(path, "it became shorter while it was read")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    tensors = {}
    for name, (dtype, shape, first, last) in header.items():
        element_type = getattr(torch, DTYPES[dtype])
        if first == last:
            tensors[name] = torch.empty(shape, dtype=element_type)
            continue
        raw = torch.frombuffer(data, dtype=torch.uint8, offset=first, count=last - first)
        # A view needs an aligned start, which files of others do not promise.
        raw = raw if first % element_type.itemsize == 0 else raw.clone()
        tensors[name] = raw.view(element_type).reshape(shape)
    return tensors, metadata


Entry = tuple[str, tuple[int, ...], int, int]


def _header(path: Path, file: Any, size_bytes: int) -> tuple[dict[str, Entry], dict[str, str], int]:
    length = int.from_bytes(file.read(8), "little")
    if size_bytes < 8 or length > size_bytes - 8:
        raise _unsound(path, "it ends before its header does: was it downloaded completely?")
    if length > LARGEST_HEADER_BYTES:
        raise _unsound(path, f"its header claims {length} bytes")
    try:
        found = json.loads(file.read(length), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError):
        raise _unsound(path, "its header is not JSON") from None
    if not isinstance(found, dict):
        raise _unsound(path, "its header is no table of tensors")
    metadata = found.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _unsound(path, "its metadata are not texts")
    return {name: _entry(path, name, entry) for name, entry in found.items()}, metadata, 8 + length


def _entry(path: Path, name: str, entry: Any) -> Entry:
    import torch

    def whole(values: Any, count: int | None = None) -> bool:
        return (
            isinstance(values, list)
            and (count is None or len(values) == count)
            and all(type(value) is int and 0 <= value < 1 << 48 for value in values)
        )

    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _unsound(path, f"tensor {name!r} is not described by dtype, shape and data_offsets")
    if entry["dtype"] not in DTYPES:
        raise _unsound(path, f"tensor {name!r} has the type {entry['dtype']!r}, which is not known here")
    if not whole(entry["shape"]) or len(entry["shape"]) > 8 or not whole(entry["data_offsets"], 2):
        raise _unsound(path, f"tensor {name!r} has a shape or offsets that are none")
    first, last = entry["data_offsets"]
    need_bytes = math.prod(entry["shape"]) * getattr(torch, DTYPES[entry["dtype"]]).itemsize
    if last - first != need_bytes:
        raise _unsound(path, f"tensor {name!r} needs {need_bytes} bytes and has {last - first}")
    return entry["dtype"], tuple(entry["shape"]), first, last


def _check_layout(path: Path, header: Mapping[str, Entry], data_bytes: int) -> None:
    end = 0
    for name, (_, _, first, last) in sorted(header.items(), key=lambda item: item[1][2:]):
        if last > data_bytes:
            raise _unsound(path, f"it ends before tensor {name!r} does: was it downloaded completely?")
        if first != end:
            raise _unsound(
                path, f"tensor {name!r} {'overlaps another' if first < end else 'comes after a gap'}"
            )
        end = last
    if end != data_bytes:
        raise _unsound(path, f"{data_bytes - end} bytes at its end belong to no tensor")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a name stands there twice")
    return dict(pairs)


def _unsound(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} is not a sound safetensors file: {why}")
