"""Measures how much torch's operators compute in a replay, and finds outputs that are right without any kernel's work.

Counting operators. A recorded call (trace) is replayed on one or two other sets of inputs. An operator is free (not
counted) in three cases:

- All its arguments hold the same bytes in both replays, so they do not depend on the inputs. In a trace's first replay,
  this applies only to operators without tensor arguments.
- Its result is a view of its input.
- It is one of `MOVES` and does not change numbers.

Any other operator adds the size of its largest argument or result to the count (see `numbers`). Arguments are included
because a reduction reads more numbers than it writes.

Replaying without the kernels' computation ("ablate"). Each launch is made twice, the second time with every
floating-point number x of its tensors replaced by `other_numbers(x)`. If the kernel only moved a number, the second
result is the replacement of the first. Otherwise the kernel computed the number, and NaN is written in its place. If an
output is right all the same, torch computed it, and kernels only copied it.

`gpu.replay.Player` calls these functions. This file imports nothing of the kit, like all files that run beside
untrusted code.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Any

_MOVES = """
_cat _to_copy _unsafe_view arange cat clone concat constant_pad_nd contiguous copy copy_ empty empty_like
empty_permuted empty_strided expand_copy eye fill fill_ flip full full_like lift_fresh lift_fresh_copy meshgrid
new_empty new_empty_strided new_full new_ones new_zeros ones ones_like pad permute_copy repeat resize_ roll
scalar_tensor select_scatter set_ slice_scatter stack to transpose_ t_ type_as unsafe_chunk unsafe_split unsqueeze_
squeeze_ view_copy zero zero_ zeros zeros_like
"""
MOVES = frozenset(_MOVES.split())
"""Operators that allocate, copy or write one constant. Operators that return views are recognized by their schema."""
INDEXED = frozenset(
    ["index", "index_put", "index_put_", "_index_put_impl_", "index_select", "gather", "take"]
)
"""Operators that access as many numbers of their first tensor as there are indices, unless an index is a mask."""
TABLE = 4
"""Each number looked up in a table of constants is counted TABLE times, because a table can replace a computation."""
UNITS = 1 << 16
ATTENTION = "attention"
"""Part of the names of torch's attention operators."""


# ---- operators


def is_free(
    name: str, schema: Any, tensors: list[Any], results: list[Any], is_unchanged: Callable[[], bool]
) -> bool:
    """Return True if an operator only moves numbers, casts them (see `keeps_values`), or returns a view of them.

    `tensors` are the operator's tensor arguments. `is_unchanged` returns True if they still have the values from before
    the call: some operators change arguments although their schema does not declare this.
    """
    held = set(map(storage_of, tensors))
    shows = not schema.is_mutable and all(each.alias_info is not None for each in schema.returns)
    if not schema.is_mutable and all(storage_of(each) in held for each in results):
        return name in MOVES or is_unchanged()
    if name not in MOVES and not shows:
        return False
    source = tensors[1] if schema.is_mutable and len(tensors) > 1 else tensors[0]
    return all(keeps_values(source.dtype, each.dtype) for each in results)


def keeps_values(source: Any, target: Any) -> bool:
    """Return True if a cast from type `source` to `target` at most rounds numbers.

    Other casts compute: a cast to whole numbers is a floor or a remainder, and a cast to bool is a comparison.
    """
    if source == target or target.is_complex or source.is_complex:
        return bool(source == target or target.is_complex)
    if target.is_floating_point:
        return True
    return not source.is_floating_point and str(target) != "torch.bool" and target.itemsize >= source.itemsize


def numbers(name: str, schema: Any, arguments: dict[str, Any], results: list[Any]) -> int:
    """Return the size (see `width`) of an operator's largest argument or result, for the count of its work.

    The sizes of tensors in a list are added. A tensor in which an operator of INDEXED looks up numbers is not counted.
    """
    groups = [tensors_in(each) for each in arguments.values()]
    groups += [results] if len(schema.returns) == 1 else [[each] for each in results]
    held = [each for group in groups for each in group]
    indices = held[1 : len(held) - len(results)]
    if name in INDEXED and not any(str(each.dtype) in ("torch.bool", "torch.uint8") for each in indices):
        groups = [[each] for each in (indices if schema.is_mutable else [*indices, *results])]
    return max((sum(map(width, group)) for group in groups), default=0)


def width(tensor: Any) -> int:
    """Return a tensor's size in units of 32 bits: 1 for each number of at most 32 bits, 2 for float64, for example.

    A complex number counts twice as much as its bits.
    """
    each = max(1, tensor.element_size() // 4) * (2 if tensor.is_complex() else 1)
    return int(tensor.numel() * each)


def tensors_in(value: Any) -> list[Any]:
    if hasattr(value, "untyped_storage"):
        return [value]
    return [each for one in value for each in tensors_in(one)] if isinstance(value, (list, tuple)) else []


def digest(tensor: Any) -> bytes:
    """Return a digest of a tensor's bytes, or of its whole storage if that has fewer bytes."""
    import torch

    storage = tensor.untyped_storage()
    is_wide = tensor.numel() * tensor.element_size() > storage.nbytes()
    row = flat(storage, "uint8") if is_wide else tensor.contiguous().reshape(-1).view(torch.uint8)
    # Use a clone: torch refuses to resize a storage of which NumPy has a view.
    return hashlib.blake2b(row.clone().cpu().numpy(), digest_size=16).digest()


def area(tensor: Any) -> int:
    """Return the product of the lengths of a tensor's two longest axes."""
    return math.prod(sorted(tensor.shape)[-2:])


def storage_of(tensor: Any) -> int:
    found: int = tensor.untyped_storage()._cdata
    return found


# ---- launches


def tensors_of(argument: Any) -> Iterator[tuple[int, str]]:
    """Yield (number of the storage, type) of each tensor in a launch's recorded arguments, floating types last."""
    found = list(_tensors_of(argument))
    yield from sorted(found, key=lambda pair: "float" in pair[1])


def _tensors_of(argument: Any) -> Iterator[tuple[int, str]]:
    if isinstance(argument, dict) and "tensor" in argument:
        yield argument["tensor"][0], argument["tensor"][1]
    for each in (
        argument.values() if isinstance(argument, dict) else argument if isinstance(argument, list) else ()
    ):
        yield from _tensors_of(each)


def flat(storage: Any, kind: str) -> Any:
    """Return a storage as a tensor with one axis, of type `kind`."""
    import torch

    tensor = torch.empty(0, dtype=getattr(torch, kind), device=storage.device)
    return tensor.set_(storage, 0, [storage.nbytes() // tensor.element_size()], [1])


def ablated(run: Any, views: list[Any]) -> None:
    """Launch a kernel by `run`. Then overwrite all numbers that it computed from floats in its tensors `views`.

    Floats become NaN, and integers 0. Numbers that the kernel only moved or left alone stay.
    """
    import torch

    before = [view.clone() for view in views]
    run()
    after = [view.clone() for view in views]
    for view, each in zip(views, before, strict=True):
        view.copy_(other_numbers(each))
    run()
    for view, first, second in zip(views, before, after, strict=True):
        is_float = view.is_floating_point()
        moved = torch.isclose(view, other_numbers(second), rtol=2**-9 if is_float else 0, atol=0)
        view.copy_(torch.where(moved | (first == second), second, float("nan") if is_float else 0))


def other_numbers(tensor: Any) -> Any:
    """Return a tensor with each number replaced by a random number that depends only on its value in bfloat16.

    Infinities, NaN and 0 do not change, nor do tensors of integers or of 8-bit floats.
    """
    import torch

    if not tensor.is_floating_point() or tensor.element_size() < 2:
        return tensor
    codes = tensor.to(torch.bfloat16).view(torch.int16).long() % UNITS
    other = _table().to(tensor.device)[codes].to(tensor.dtype)
    return torch.where(torch.isfinite(tensor), other, tensor)


@functools.cache
def _table() -> Any:
    """Return a table of random numbers, one for each bfloat16 number, indexed by the 16 bits of that number.

    Float16 and bfloat16 hold these random numbers exactly.
    """
    import torch

    drawn = torch.randint(1 << 11, (UNITS,), generator=torch.Generator().manual_seed(1))
    size = (1 + drawn % 128 / 128) * 2.0 ** (drawn // 128 % 8 - 4)
    table = torch.where(drawn >= 1 << 10, size, -size)
    table[[0, UNITS // 2]] = 0
    return table
