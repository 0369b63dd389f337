"""Measures what torch computes while a trace is played, and which outputs come out without kernels that compute.

Theory of operation. An operator is free if its result is a view of its input, or if none of its tensors depends on the
call's. So is one of `MOVES` that keeps the type's values. Any other operator costs as many numbers as its largest
tensor has, inputs included: a reduction reads more than it writes, and so does a choice by a mask.

A replay without the kernels that compute makes each launch twice, the second time with other numbers: each number of
its floating tensors is replaced by `other_numbers` of it. Where the kernel moved a number, the second result is the
replacement of the first. Where it computed one, the second result differs, and NaN is put in its place. An output that
comes out right all the same was computed by torch, and kernels only copied it.

Imports nothing of the kit, as all files beside untrusted code.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any

_MOVES = """
_cat _to_copy _unsafe_view arange cat clone concat constant_pad_nd contiguous copy copy_ empty empty_like
empty_permuted empty_strided expand_copy eye fill fill_ flip full full_like lift_fresh lift_fresh_copy meshgrid
new_empty new_empty_strided new_full new_ones new_zeros ones ones_like pad permute_copy repeat resize_ roll
scalar_tensor select_scatter set_ slice_scatter stack to transpose_ t_ type_as unsafe_chunk unsafe_split unsqueeze_
squeeze_ view_copy zero zero_ zeros zeros_like
"""
MOVES = frozenset(_MOVES.split())
"""Operators that allocate, copy or put in one constant, besides those whose schema says that they return a view."""
INDEXED = frozenset(
    ["index", "index_put", "index_put_", "_index_put_impl_", "index_select", "gather", "take"]
)
"""Operators that read or write as many numbers of their first tensor as there are indices, unless one is a mask."""
TABLE = 4
"""Factor on numbers that are looked up in a table of constants: such a table may hold any function."""
UNITS = 1 << 16


def player_class(replay: Any) -> Any:
    """Return a `replay.Player` that counts what torch computes. The module is given, since nothing is imported here."""

    class Player(replay.Player):  # type: ignore[misc]
        """Counts "op NAME" and "numbers NAME" of operators that compute on numbers of the call. "largest" is the area
        of the largest tensor that they write."""

        def play(self, packed: str, tensors: list[Any], *, ablate: bool = False) -> None:
            """Play a trace; with `ablate`, put NaN in place of each number that a kernel computes."""
            self.dependent = {tensor.untyped_storage()._cdata for tensor in tensors}
            self.ablate = ablate
            self.areas: dict[int, int] = {}
            """Of each storage, the area of the tensor that it was made as."""
            self.largest = 0
            super().play(packed, tensors)
            self.seen["largest"] = self.largest

        def depends(self, tensors: Iterable[Any]) -> bool:
            """Return True if one of the tensors may hold numbers that follow from the call's."""
            return any(storage_of(each) in self.dependent for each in tensors)

        def operator(self, name: str, *step: Any) -> None:
            schema, arguments, results = super().operator(name, *step)
            for each in results:
                self.areas.setdefault(storage_of(each), area(each))
            tensors = replay.tensors_in([*arguments.values()])
            if not self.depends(tensors):
                return
            if not name.startswith(("new_", "empty")) and not name.endswith("_like"):
                # The others are as large as an argument whose numbers they do not read.
                changed = [
                    each.name for each in schema.arguments if each.alias_info and each.alias_info.is_write
                ]
                written = replay.tensors_in([*results, *(arguments.get(each) for each in changed)])
                areas = [self.areas.get(storage_of(each), 0) for each in written]
                self.largest = max([self.largest, *map(area, results), *areas])
            is_table = name in INDEXED and not schema.is_mutable and not self.depends(tensors[:1])
            self.dependent.update(storage_of(each) for each in (*results, *(tensors * schema.is_mutable)))
            if is_free(name, schema, tensors, results):
                return
            sums = arguments.get("accumulate") or arguments.get("reduce")
            counted = f"accumulating {name}" if sums else name
            self.seen[f"op {counted}"] += 1
            self.seen[f"numbers {counted}"] += numbers(name, schema, tensors, results) * TABLE**is_table

        def launch(self, number: int, grid: list[int], given: dict[str, Any], *options: Any) -> None:
            run = functools.partial(super().launch, number, grid, given, *options)
            views = {place: flat(self.storages[place], kind) for place, kind in tensors_of(given)}
            if self.depends(views.values()):
                self.dependent.update(map(storage_of, views.values()))
            if self.ablate:
                ablated(run, [*views.values()])
            else:
                run()

    return Player


# ---- operators


def is_free(name: str, schema: Any, tensors: list[Any], results: list[Any]) -> bool:
    """Return True if an operator only moves numbers, or shows them another way."""
    held = set(map(storage_of, tensors))
    if not schema.is_mutable and all(storage_of(each) in held for each in results):
        return True
    shows = not schema.is_mutable and all(each.alias_info is not None for each in schema.returns)
    if name not in MOVES and not shows:
        return False
    source = tensors[1] if schema.is_mutable and len(tensors) > 1 else tensors[0]
    return all(keeps_values(source.dtype, each.dtype) for each in results)


def keeps_values(source: Any, target: Any) -> bool:
    """Return True if a cast rounds at most. To whole numbers it is a floor or a remainder, to bool a comparison."""
    if source == target or target.is_complex or source.is_complex:
        return bool(source == target or target.is_complex)
    if target.is_floating_point:
        return True
    return not source.is_floating_point and str(target) != "torch.bool" and target.itemsize >= source.itemsize


def numbers(name: str, schema: Any, tensors: list[Any], results: list[Any]) -> int:
    """Return how many numbers of 32 bits an operator works on at most. Complex ones count double for their products."""
    held = [*tensors, *results]
    if name in INDEXED and not any(str(each.dtype) in ("torch.bool", "torch.uint8") for each in tensors[1:]):
        held = tensors[1:] if schema.is_mutable else [*tensors[1:], *results]
    width = [max(1, each.element_size() // 4) * (2 if each.is_complex() else 1) for each in held]
    return max((each.numel() * wide for each, wide in zip(held, width, strict=True)), default=0)


def area(tensor: Any) -> int:
    """Return the product of a tensor's two longest axes."""
    return math.prod(sorted(tensor.shape)[-2:])


def storage_of(tensor: Any) -> int:
    found: int = tensor.untyped_storage()._cdata
    return found


# ---- launches


def tensors_of(argument: Any) -> Iterator[tuple[int, str]]:
    """Yield the storage and the type of each tensor in a launch's arguments, floating ones last."""
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
    """Return all of a storage as one row of numbers of a type."""
    import torch

    tensor = torch.empty(0, dtype=getattr(torch, kind), device=storage.device)
    return tensor.set_(storage, 0, [storage.nbytes() // tensor.element_size()], [1])


def ablated(run: Any, views: list[Any]) -> None:
    """Make a launch, and keep of what it changes in these tensors only the numbers that it moved."""
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
    """Return for each number another one that depends on its first 8 bits, so that rounding does not matter. What is
    not finite, 0 and whole numbers stay."""
    import torch

    if not tensor.is_floating_point() or tensor.element_size() < 2:
        return tensor
    codes = tensor.to(torch.bfloat16).view(torch.int16).long() % UNITS
    other = _table().to(tensor.device)[codes].to(tensor.dtype)
    return torch.where(torch.isfinite(tensor), other, tensor)


@functools.cache
def _table() -> Any:
    """Return a number for each bfloat16, which float16 holds, too."""
    import torch

    drawn = torch.randint(1 << 11, (UNITS,), generator=torch.Generator().manual_seed(1))
    size = (1 + drawn % 128 / 128) * 2.0 ** (drawn // 128 % 8 - 4)
    table = torch.where(drawn >= 1 << 10, size, -size)
    table[[0, UNITS // 2]] = 0
    return table
