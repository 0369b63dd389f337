"""A small lab outside of the kit whose students hand in two files: Triton's kernels and, beside them, CUDA's."""

from __future__ import annotations

from pathlib import Path

NAME = "thrice"
PART = """\
  - id: {id}
    title: {title}
    label: {id}
    backend: {backend}
    function: thrice
    arguments: [{arguments}]
    returns: nothing
    outputs: {{y: {{dims: [R, C], dtype: float32}}}}
    inputs: {{x: {{dims: [R, C], dtype: float32}}}}
    oracle: thrice
    reference: thrice
    time: {{clock: wall, threads: 1, allowance_ratio: 1.5, allowance_ms: 0}}
    points: 10
    cases:
      - {{name: ragged, distribution: random, seed: 1, shape: {{R: 3, C: 21}}}}
"""
LAB = {
    "__init__.py": '''"""Numbers times three, in Triton and in CUDA."""

from typing import ClassVar

from grader.assignment.labs import Lab, OracleFacts


class _Thrice(Lab):
    oracles: ClassVar = {"thrice": OracleFacts(("random",))}
    staff: ClassVar = ("tuned.py",)

    def oracle(self, name):
        from .oracle import Thrice

        return Thrice()

    def make_inputs(self, distribution, shape, seed):
        from .oracle import make_inputs

        return make_inputs(shape, seed)

    def reference(self):
        from grader.build.kernelreference import KernelReference

        return KernelReference(self.folder)


LAB = _Thrice()
''',
    "oracle.py": """from grader.base.arrays import np
from grader.judge.comparison import Expected
from grader.judge.draws import Draws
from grader.judge.oracle import Oracle


def make_inputs(shape, seed):
    return {"x": Draws(seed).uniform((shape["R"], shape["C"]), -4.0, 4.0)}


class Thrice(Oracle):
    def expected(self, inputs, shape):
        value = 3.0 * inputs["x"].astype(np.float64)
        return {"y": Expected(value, 1e-6 + 1e-6 * abs(value))}

    def flops(self, shape):
        return shape["R"] * shape["C"]
""",
    "assignment.yaml": """schema_version: 1
id: thrice
title: Numbers times three
lab: thrice
source: scale.py
backend: triton
defaults: {R: 64, C: 64, precision: 24, layout: 0, threads: 1}
minima: {layout: 0, precision: 8}
maxima: {R: 4096, C: 4096, precision: 24, layout: 2, threads: 1}
inputs: {x: [R, C]}
limits: {build_s: 60, call_s: 20, memory_gib: 2}
parts:
"""
    + PART.format(id="thrice", title="Times three", backend="triton", arguments="x, y")
    + PART.format(id="thrice_cuda", title="Times three in CUDA", backend="cuda", arguments="x, y, R, C"),
    "hidden/assignment.yaml": """extends: ../assignment.yaml
seed: 2405197663112489
parts:
  - id: thrice
    hidden_cases:
      - {name: hidden column, distribution: random, shape: {R: 17, C: 1}}
  - id: thrice_cuda
    hidden_cases:
      - {name: hidden row, distribution: random, shape: {R: 1, C: 17}}
""",
    "scale.py": '''"""Write the body of the function below."""

import triton
import triton.language as tl

# BEGIN SOLUTION


@triton.jit
def _thrice(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    last = count // BLOCK * BLOCK
    number = tl.load(x_ptr + at, mask=at < count, other=0.0)
    tl.store(y_ptr + at, number * 3.0, mask=at < count)


# END SOLUTION
def thrice(x, y):
    """y = 3 x. x, y: (R, C), contiguous."""
    # BEGIN STARTER
    # raise NotImplementedError("thrice is not written yet")
    # END STARTER
    # BEGIN SOLUTION
    _thrice[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
    # END SOLUTION
''',
    "scale.cu": """// Write the body of the function below.
#include <cuda_runtime.h>

// BEGIN SOLUTION
__global__ void thrice_kernel(const float *x, float *y, long long count) {
    const long long mine = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (mine < count) y[mine] = 3.0f * x[mine];
}
// END SOLUTION

extern "C" int thrice(const float *x, float *y, int R, int C, void *stream) {
    // BEGIN STARTER
    // return 0;  // not written yet
    // END STARTER
    // BEGIN SOLUTION
    const long long count = (long long)R * C;
    thrice_kernel<<<(unsigned)((count + 255) / 256), 256, 0, (cudaStream_t)stream>>>(x, y, count);
    return (int)cudaGetLastError();
    // END SOLUTION
}
""",
    "reference.py": """import triton
import triton.language as tl


@triton.jit
def _plain(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # of the reference
    tl.store(y_ptr + places, tl.load(x_ptr + places, mask=places < count) * 3.0, mask=places < count)


def thrice(x, y):
    _plain[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
""",
    "reference.cu": """#include <cuda_runtime.h>

static __global__ void plain_kernel(const float *x, float *y, long long count) {
    for (long long i = threadIdx.x; i < count; i += blockDim.x) y[i] = x[i] * 3.0f;
}

extern "C" int thrice(const float *x, float *y, int R, int C, void *stream) {
    plain_kernel<<<1, 1024, 0, (cudaStream_t)stream>>>(x, y, (long long)R * C);
    return (int)cudaGetLastError();
}
""",
    "tuned.py": """import triton

# What the staff would hand in.
TUNED_BLOCKS_OF_THE_STAFF = {"float32": (1024, 4), "float16": (2048, 8)}
""",
    "kernels.py": """from grader.assignment.mutations import Mutation

WRONG = (
    Mutation("twice in the place of thrice", "thrice", (("number * 3.0", "number + number + 0.0 * number"),), ()),
)
RIGHT = ()
SLOW = None
""",
    "handout.md": "# Numbers times three\n\n    python gpt149.py all\n",
    "writeup_template.md": "# Write-up\n",
}


def written(folder: Path) -> Path:
    """Write the lab into a folder, and return the staff's assignment file."""
    for name, text in LAB.items():
        path = folder / NAME / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / NAME / "hidden" / "assignment.yaml"
