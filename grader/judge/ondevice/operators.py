"""Work of libraries in place of a kernel of one's own, by three signs that do not hang on each other.

What the source calls (read by a child process: `grader.build.devicebuild`), which operators of torch a call goes
through (a dispatch mode), and which kernels it launches on a card (torch's profiler). The last two come out of the
runner: they can accuse and never clear. A flag is for people, and changes no points.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from grader.assignment.records import Part
from grader.base.results import Flag
from grader.build.devicebuild import PythonBuild
from grader.judge import binding, looks
from grader.judge.bench import Bench
from grader.judge.integrity import symbols
from grader.judge.integrity.inspection import listed
from grader.judge.marking import Marker
from grader.run.session import Session

#: What makes, moves and describes tensors, besides what `symbols.is_plain_operator` knows.
_PLAIN = """
empty empty_like empty_strided empty_permuted new_empty new_empty_strided new_zeros zeros zeros_like full full_like ones
ones_like fill_ zero_ copy_ clone contiguous view reshape _unsafe_view flatten unflatten transpose t permute expand
squeeze unsqueeze select slice as_strided detach alias stride size data_ptr element_size numel dim to _to_copy type
float half bfloat16 dtype device requires_grad_ is_contiguous shape cuda cpu set_ lift_fresh unbind split chunk
save_for_backward mark_non_differentiable apply item narrow sym_size sym_stride is_cuda current_device synchronize
get_device_properties arange tensor scalar_tensor no_grad view_as swapaxes
"""
PLAIN = frozenset(_PLAIN.split())
#: Kernels of torch's own that only write or copy, and those of libraries.
_MOVES = re.compile(
    r"FillFunctor|copy_kernel|CopyFunctor|Memcpy|Memset|copy_device_to_device|direct_copy", re.IGNORECASE
)
_LIBRARY = re.compile(
    r"at::native|at_cuda|cutlass|cublas|cudnn|nvjet|gemm|pytorch_flash|flash_fwd|flash_bwd|fmha|splitKreduce|cub::|thrust"
)


def flags(bench: Bench, part: Part, fresh: Callable[..., Session]) -> tuple[Flag, ...]:
    """What a right part calls of others' work, as far as the assignment does not allow it."""
    device, built = part.device, bench.build_of(part)
    assert device is not None
    if device.language != "triton":
        return ()
    allowed = PLAIN | set(device.library_operators)
    found = []
    if isinstance(built, PythonBuild) and (named := [n for n in built.calls if _last(n) not in allowed]):
        found.append(Flag("library_in_source", f"its source calls {listed(named)}", "review"))
    operators, kernels = seen(bench, part, fresh)
    ran = [n for n in operators if n not in allowed and not symbols.is_plain_operator(f"aten::{n}")]
    if ran:
        found.append(Flag("library_operators", f"torch computed during a call: {listed(ran)}", "review"))
    launched = [n for n in kernels if _LIBRARY.search(n) and not _MOVES.search(n)]
    if launched and (ran or not device.library_operators):
        found.append(
            Flag("library_kernels", f"a call launched kernels of libraries: {listed(launched)}", "review")
        )
    return tuple(found)


def seen(bench: Bench, part: Part, fresh: Callable[..., Session]) -> tuple[list[str], list[str]]:
    """Operators and kernels of one call of the smallest case, in a runner of its own; nothing where that tells none."""
    marker = Marker(bench, part)
    shape, inputs = marker.inputs_of(looks.smallest(part))
    with fresh(threads=shape["threads"]) as session:
        call = session.call(binding.observed(binding.request(part, shape, inputs)))
    names = [row.name for row in call.profile] if call.status == "ok" else []
    return _of("op ", names), _of("kernel ", names)


def _of(kind: str, names: Iterable[str]) -> list[str]:
    return [name.removeprefix(kind) for name in names if name.startswith(kind)]


def _last(name: str) -> str:
    """The function's own name: "matmul" of "torch.matmul (line 7)"."""
    return name.partition(" ")[0].rpartition(".")[2]
