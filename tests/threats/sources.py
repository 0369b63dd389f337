"""From rows to source files: the prelude that all share, one function for each row, and the table at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from threats.threat import Threat

#: A body sees `O` (a tensor of zeros, what the kernel returns), `QT KT VT`, the floats behind them as `o q k v`, and
#: `B H N d`. `attention` is a right kernel, `attention_of` the same for one head, `burn_ms` uses CPU time.
PRELUDE = """
#include <torch/extension.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <omp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

__attribute__((noinline))
static void attention_of(const float *q, const float *k, const float *v, float *o, int N, int d) {
    std::vector<float> s(N);
    for (int i = 0; i < N; i++) {
        float sum = 0;
        for (int j = 0; j < N; j++) {
            float dot = 0;
            for (int c = 0; c < d; c++) dot += q[i * d + c] * k[j * d + c];
            sum += s[j] = std::exp(dot);
        }
        for (int c = 0; c < d; c++) o[i * d + c] = 0;
        for (int j = 0; j < N; j++)
            for (int c = 0; c < d; c++) o[i * d + c] += s[j] / sum * v[j * d + c];
    }
}

[[maybe_unused]] __attribute__((noinline))
static void attention(const float *q, const float *k, const float *v, float *o, int heads, int N, int d) {
    for (int p = 0; p < heads; p++)
        attention_of(q + p * N * d, k + p * N * d, v + p * N * d, o + p * N * d, N, d);
}

[[maybe_unused]] static void burn_ms(double ms) {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    double until = now.tv_sec * 1e3 + now.tv_nsec * 1e-6 + ms;
    do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    while (now.tv_sec * 1e3 + now.tv_nsec * 1e-6 < until);
}
"""

_TENSORS = "torch::Tensor QT, torch::Tensor KT, torch::Tensor VT"
_TILES = ", ".join(
    f"torch::Tensor {tile}" for tile in ("Qi", "Kj", "Vj", "Sij", "Pij", "PV", "Oi", "L", "Li", "Lij", "Lnew")
)
_SIZES = "int B, int H, int N, int d"
#: Each part's function and its parameters.
SLOTS: Mapping[str, tuple[str, str]] = {
    "part1": ("myNaiveAttention", f"{_TENSORS}, torch::Tensor workspace, {_SIZES}"),
    "part2": (
        "myUnfusedAttentionBlocked",
        f"{_TENSORS}, torch::Tensor workspace, {_SIZES}",
    ),
    "part3": ("myFusedAttention", f"{_TENSORS}, torch::Tensor workspace, {_SIZES}"),
    "part4": (
        "myFlashAttention",
        f"{_TENSORS}, {_TILES}, int Bc, int Br, {_SIZES}",
    ),
}


@dataclass(frozen=True)
class Submission:
    """One source file and which row each part of it holds. All rows of a file are timed, or none."""

    threats: Mapping[str, Threat]
    text: str

    @property
    def first(self) -> Threat:
        return next(iter(self.threats.values()))

    @property
    def name(self) -> str:
        return ", ".join(f"{threat.row} {threat.name}".strip() for threat in self.threats.values())


def submissions(rows: Iterable[Threat]) -> list[Submission]:
    """Every row in one source file, alone where it asks for it, else with others that are judged alike."""
    alone, groups = [], {}
    for row in rows:
        if row.has_own_file:
            alone.append([row])
        else:
            groups.setdefault((row.timed, row.calls, tuple(row.shape.items())), []).append(row)
    shared = [pack for group in groups.values() for pack in _packs(group)]
    return [_submission(pack) for pack in [*shared, *alone]]


def _packs(rows: list[Threat]) -> list[list[Threat]]:
    packs: list[list[Threat]] = []
    for row in rows:
        fitting = (
            pack
            for pack in packs
            if len(pack) < len(SLOTS) and row.part not in [r.part for r in pack if r.part]
        )
        pack = next(fitting, None)
        if pack is None:
            packs.append([row])
        else:
            pack.append(row)
    return packs


def _submission(rows: list[Threat]) -> Submission:
    placed = {row.part: row for row in rows if row.part}
    free = [part for part in SLOTS if part not in placed]
    placed |= dict(zip(free, (row for row in rows if not row.part), strict=False))
    if rows[0].source:
        return Submission(placed, rows[0].source)
    tops = "".join(row.top for row in rows)
    functions = "".join(_function(part, row) for part, row in sorted(placed.items()))
    table = " ".join(f'm.def("{SLOTS[part][0]}", &{SLOTS[part][0]});' for part in sorted(placed))
    return Submission(
        placed, f"{PRELUDE}{tops}{functions}\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ {table} }}\n"
    )


def _function(part: str, row: Threat) -> str:
    name, parameters = SLOTS[part]
    return f"""
// {row.row} {row.name}
torch::Tensor {name}({parameters}) {{
    torch::Tensor O = at::zeros({{B, H, N, d}}, at::kFloat);
    [[maybe_unused]] float *q = QT.data_ptr<float>(), *k = KT.data_ptr<float>(), *v = VT.data_ptr<float>();
    [[maybe_unused]] float *o = O.data_ptr<float>();
    {row.body.strip()}
    return O;
}}
"""
