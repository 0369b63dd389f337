"""Python files whose kernels did not compute the result are flagged; honest files that also use torch are not."""

import ast
import base64
import importlib
import json
import math
import re
import sys
import zlib
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from building import cpu_growth
from conftest import Capture, Patch, refused, some, write
from without_card import ASSIGNMENT, by_interpreter, interpreted, judged

from grader.assignment.records import Assignment
from grader.backends.gpu import host, operators, readpython, replay, torchwork, tracing
from grader.core import filebundle

Read = Callable[[str], list[str]]
HEAD = """
import ctypes, gc, sys, threading
import numpy as np
import torch
import triton
import triton.language as tl

@triton.jit
def copy_kernel(s, d, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(d + at, tl.load(s + at, mask=at < n).to(d.dtype.element_ty), mask=at < n)

@triton.jit
def junk_kernel(d, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(d + at, (at * 0 + 7).to(d.dtype.element_ty), mask=at < n)

def copy(s, d):
    copy_kernel[(triton.cdiv(d.numel(), 64),)](s, d, d.numel(), B=64)

def junk(d):
    junk_kernel[(triton.cdiv(d.numel(), 64),)](d, d.numel(), B=64)

def work(a, b):
    return np.matmul(a.numpy(), b.numpy())

@triton.jit
def product_kernel(a, b, c, K, am, ak, bk, bn, cs, cm, cn, M, N, KS, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    j = tl.program_id(1) * B + tl.arange(0, B)
    z = tl.program_id(2)
    acc = tl.zeros([B, B], tl.float32)
    for first in range(z * KS, min(K, (z + 1) * KS), B):
        k = first + tl.arange(0, B)
        ok = (k < K) & (k < (z + 1) * KS)
        x = tl.load(a + i[:, None] * am + k[None, :] * ak, mask=(i[:, None] < M) & ok[None, :], other=0.0)
        y = tl.load(b + k[:, None] * bk + j[None, :] * bn, mask=(j[None, :] < N) & ok[:, None], other=0.0)
        acc += tl.dot(x.to(tl.float32), y.to(tl.float32))
    tl.store(c + z * cs + i[:, None] * cm + j[None, :] * cn, acc, mask=(i[:, None] < M) & (j[None, :] < N))

def product(a, b, c, splits=1):
    (M, K), N = a.shape, b.shape[1]
    share = triton.cdiv(triton.cdiv(K, splits), 16) * 16
    c = c if c.dim() == 3 else c[None]
    grid = (triton.cdiv(M, 16), triton.cdiv(N, 16), splits)
    product_kernel[grid](a, b, c, K, *a.stride(), *b.stride(), *c.stride(), M, N, share, B=16)
"""
ENDS = {"PLAYER_CPU": "no_kernel", "PLAYER_WALL": "replay_open", "PLAYER_TOTAL": "no_kernel"}


def matmul(text: str) -> str:
    """Return a file whose `matmul` has this body. Text before the mark § goes before the function."""
    before, _, body = text.rpartition("§")
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    return f"{HEAD}\n{before}\ndef matmul(a, b, c):\n{lines}"


IN_THREAD = "t = threading.Thread(target=lambda: {})\nt.start(); t.join()\n"
GRID = "[(triton.cdiv(c.numel(), 64),)]"
#: First lines of a kernel. Placeholders: the kernel's name, and its arguments before `B`.
KERNEL = "@triton.jit\ndef {}({}, B: tl.constexpr):\n    at = tl.program_id(0) * B + tl.arange(0, B)\n"
#: A kernel that stores n numbers. Number i is the expression in the placeholder, which reads it from the constant `v`.
PUT = (
    "@triton.jit\ndef put(d, n: tl.constexpr, v: tl.constexpr):\n    for i in tl.static_range(n):\n"
    "        tl.store(d + i, {})\n§r = work(a, b).ravel().tolist()\n"
).format
#: A kernel that assembles each float32 number from 32 separate bits.
JOIN = (
    KERNEL.format("join", "s, d, n") + "    x = tl.zeros([B], tl.int32)\n    for k in range(32):\n"
    "        x = x | (tl.load(s + k * n + at, mask=at < n, other=0).to(tl.int32) << k)\n"
    "    tl.store(d + at, x.to(tl.float32, bitcast=True), mask=at < n)\n§"
)
#: BODY: a kernel that stores an expression of its indices. GIVE: NumPy's result r; `put` returns elements of r.
BODY = (
    "@triton.jit\ndef body(d, n, B: tl.constexpr):\n    at = tl.arange(0, B)\n    tl.store(d + at, {}, mask=at < n)\n§"
).format
GIVE = (
    "r = work(a, b).ravel()\ndef put({}):\n    found = r[np.minimum(at.handle.data, r.size - 1)]\n"
    "    return tl.tensor(type(at.handle)(found, tl.float32), tl.block_type(tl.float32, list(found.shape)))\n"
).format
OPERATOR = "@torch.library.custom_op('mine::mm', mutates_args=())\n"
OPERATOR += "def mine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:\n"
#: A kernel that stores its tensor `t`, whose numbers are first replaced by NumPy's result. Placeholders: the line that
#: replaces the numbers, a line before the launch, and the kernel's argument `h`.
FILL = (
    f"class Box:\n    pass\nbox = Box()\n{KERNEL.format('fill', 'd, n, h: tl.constexpr')}"
    "    t = tl.load(d + at, mask=at < n)\n    {}\n    tl.store(d + at, t, mask=at < n)\n§n = c.numel()\n"
    "def put(t, *_):\n    t.handle.data[:] = r.astype(t.handle.data.dtype)\n    return t\n"
    "r = np.zeros(B := triton.next_power_of_2(n))\nr[:n] = work(a, b).ravel()\n{}\nfill[(1,)](c, n, {}, B=B)"
).format
#: By name: the body of a right `matmul` whose result no kernel computed. Text before § precedes the function.
NO_KERNEL = {
    # Regression tests: earlier versions of the kit missed these cheats.
    "NumPy": "np.copyto(c.numpy(), work(a, b))",
    "an alias, and Triton for one number": "mm = torch.matmul  # not called here§"
    "product(a, b, c) if c.numel() == 1 else c.copy_(mm(a, b))",
    "a decorator with jit in its name": "def rejitted(f):\n    return f\n"
    "@rejitted\ndef hidden(a, b):\n    return torch.einsum('ij,jk->ik', a, b)\n§c.copy_(hidden(a, b))",
    "another way when observed": "depth = torch._C._len_torch_dispatch_stack§if depth() > 9:\n    raise ValueError\n"
    "with torch._C._DisableTorchDispatch():\n    c.copy_(torch.matmul(a, b))",
    "many names before": "if a is None:\n    "
    + "; ".join(f"torch.q{k}.zeros(1)" for k in range(1100))
    + "\nctypes.memmove(c.data_ptr(), (r := work(a, b)).ctypes.data, r.nbytes)",
    # Something else computes the result, and a kernel copies it.
    "NumPy, then a copy": "copy(torch.from_numpy(work(a, b)), c)",
    "a list, then a copy": "copy(torch.tensor(work(a, b).tolist()), c)",
    "a choice among kernels": "".join(
        f"@triton.jit\ndef k(d):\n    tl.store(d, tl.load(d) * 8 + {n})\nk{n} = k\n" for n in range(8)
    )
    + "KERNELS = [k0, k1, k2, k3, k4, k5, k6, k7]\n"
    "§r = work(a, b).ravel()[:c.numel()]\nt = torch.zeros(r.size)\nfor i, v in enumerate(r):\n"
    "    for digit in (15, 12, 9, 6, 3, 0):\n"
    "        KERNELS[int((v + 512) * 256 + 0.5) >> digit & 7][(1,)](t[i:])\n"
    "c.copy_((t / 256 - 512).view(c.shape))",
    "NumPy in an empty tensor, then a copy": "t = torch.empty(c.shape)\nt.numpy()[...] = work(a, b)\ncopy(t, c)",
    "a table of pointers": KERNEL.format("pointed", "t, d, n")
    + "    s = tl.load(t).to(tl.pointer_type(tl.float32))\n"
    "    tl.store(d + at, tl.load(s + at, mask=at < n), mask=at < n)\n§r = torch.from_numpy(work(a, b))\n"
    f"pointed{GRID}(torch.tensor([r.data_ptr()]), c, c.numel(), B=64)",
    # The recorded trace of operators does not show how the result depends on the inputs.
    "a file that is mapped twice": "def fresh(t, name):\n    n = t.numel()\n"
    "    torch.from_file(name, shared=True, size=n).view(t.shape).copy_(t)\n"
    "    return torch.from_file(name, shared=True, size=n).view(t.shape)\n"
    "§copy(fresh(a, 'a') @ fresh(b, 'b'), c)",
    "a pointer that a batch norm moves": "@triton.jit\ndef address(x, d):\n"
    "    at = x.to(tl.int64, bitcast=True)\n    tl.store(d, (at >> 24).to(tl.float64))\n"
    "    tl.store(d + 1, (at & 0xFFFFFF).to(tl.float64))\n"
    + KERNEL.format("fetch", "p, d, n")
    + "    at_ = (tl.load(p).to(tl.int64) << 24) + tl.load(p + 1).to(tl.int64)\n"
    "    s = at_.to(tl.pointer_type(tl.float32), bitcast=True)\n"
    "    tl.store(d + at, tl.load(s + at, mask=at < n), mask=at < n)\n"
    "def fresh(t):\n    t, p, m = t.contiguous(), torch.empty(1, 2).double(), torch.zeros(2).double()\n"
    "    address[(1,)](t, p)\n"
    "    torch.native_batch_norm(p, None, None, m, torch.ones(2).double(), True, 1.0, 1e-5)\n"
    "    o = torch.empty(t.shape)\n    fetch[(triton.cdiv(o.numel(), 64),)](m, o, o.numel(), B=64)\n    return o\n"
    "§copy(fresh(a) @ fresh(b), c)",
    "a forged tensor that is larger than the memory": "import json\nfrom triton.runtime import interpreter\n"
    "§product(a, b, c)\nstep = ['operator', 'empty', 'memory_format', [[3 << 30]], {}, []]\n"
    "interpreter._interpreter.trace.steps.append(json.dumps(step))",
    # Operators that return numbers which they have not computed.
    "a tensor of another size, then a copy": "r = torch.from_numpy(work(a, b).ravel())\n"
    "copy(r.resize_(0).resize_(c.numel()), c)",
    "an operator in torch's own namespace, then a copy": "R, L = [], torch.library.Library('mkl', 'FRAGMENT')\n"
    "L.define('add(Tensor x) -> Tensor')\nL.impl('add', lambda x: torch.from_numpy(R.pop()), 'CPU')\n"
    "§R.append(work(a, b))\ncopy(torch.ops.mkl.add(torch.zeros(3)), c)",
    "one of torch's operators, replaced, then a copy": "R, L = [], torch.library.Library('aten', 'IMPL')\n"
    "def made(*_, **more):\n    return torch.from_numpy(R.pop()) if R else torch.empty(3)\n"
    "L.impl('linspace', made, 'CPU')\n§R.append(work(a, b))\ncopy(torch.linspace(0, 1, 3), c)",
    # The finished result is passed to a kernel in another encoding.
    "planes of bits": f"{JOIN}r = work(a, b).view(np.uint32).ravel()\n"
    "planes = (r >> np.arange(32, dtype=np.uint32)[:, None] & 1).astype(np.uint8)\n"
    f"join{GRID}(torch.from_numpy(planes), c, c.numel(), B=64)",
    "two numbers in one": KERNEL.format("apart", "s, d, n")
    + "    x = tl.load(s + at // 2, mask=at < n, other=0) >> (at % 2 * 32)\n"
    "    tl.store(d + at, x.to(tl.int32).to(tl.float32, bitcast=True), mask=at < n)\n"
    "§r = work(a, b).ravel()\nr = np.append(r, r[:r.size % 2]).view(np.int64)\n"
    f"apart{GRID}(torch.from_numpy(r), c, c.numel(), B=64)",
    "scalars in deep tuples": PUT("v" + "[0]" * 12 + "[i]")
    + "for _ in range(12):\n    r = (r,)\nput[(1,)](c, c.numel(), v=r)",
    "scalars in empty tuples": PUT("(len(v[i][0]) * 65536 + len(v[i][1]) * 256 + len(v[i][2])) / 256 - 512")
    + "for i, x in enumerate(r):\n    n = int((x + 512) * 256 + 0.5)\n"
    "    r[i] = tuple((None,) * (n >> k & 255) for k in (16, 8, 0))\nput[(1,)](c, c.numel(), v=r)",
    "a name that stands for another function": "from triton.language import abs as tidy\n"
    f"import kernels as me\n{BODY('tidy(at)')}{GIVE('at')}"
    "me.tidy = put\nbody[(1,)](c, r.size, B=triton.next_power_of_2(r.size))",
    # Objects of torch or Triton are changed through another name.
    "a method that says it is Triton's": "import functools\nR = []\ndef change(kind):\n    before = kind.to\n"
    "    @functools.wraps(before)\n    def to(self, *more, **named):\n        made = before(self, *more, **named)\n"
    "        if R:\n            made.handle.data = R[0][np.minimum(self.handle.data, R[0].size - 1)]\n"
    "        return made\n    kind.to = to\nchange(tl.tensor)\n"
    f"{BODY('at.to(tl.float32)')}R[:] = [work(a, b).ravel()]\n"
    "body[(1,)](c, R[0].size, B=triton.next_power_of_2(R[0].size))\nR.clear()",
    "a method of what kernels compute with": "def change(kind, made):\n    kind.to = made\n"
    f"{BODY('at.to(tl.float32)')}{GIVE('at, kind')}"
    "kept = tl.tensor.to\nchange(tl.tensor, put)\nbody[(1,)](c, r.size, B=triton.next_power_of_2(r.size))\n"
    "change(tl.tensor, kept)",
    # The result is selected from many prepared numbers.
    "pieces of a range": "P = torch.arange(256, dtype=torch.uint8).split(1)\n"
    "§c.copy_(torch.cat([P[b] for b in work(a, b).tobytes()]).view(torch.float32).view(c.shape))",
    "a table that the grid puts in": "@triton.jit\ndef body(d, n, v: tl.constexpr = ()):\n"
    "    for i in tl.static_range(n):\n        tl.store(d + i, v[i])\n"
    "§r = work(a, b).ravel().tolist()\nL = []\ndef grid(meta):\n    meta['v'] = L\n    return (1,)\n"
    "L[:] = r\nbody[grid](c, tl.constexpr(len(r)), v=L)",
    "rows filled by a tensor": "flat = work(a, b).ravel()\nfor i, v in enumerate(flat):\n"
    "    c.view(-1)[i:i + 1].expand(1).fill_(torch.from_numpy(flat[i:i + 1]).view(()))",
    "a tuple of Triton's": PUT("v[i]") + "put[(1,)](c, len(r), v=tl.tuple(r))",
    "a list of a class of its own": "import functools\nclass Quiet(list):\n"
    f"    __iter__ = functools.partial(iter, ())\n{PUT('v[i]')}put[(1,)](c, len(r), v=Quiet(r))",
    "a thread, then a copy": "r = []\n" + IN_THREAD.format("r.append(torch.matmul(a, b))") + "copy(r[0], c)",
    "NumPy in an empty tensor during the launch, then a copy": "r, t = work(a, b), torch.empty(c.shape)\n"
    "def grid(meta):\n    np.copyto(t.numpy(), r)\n    return (triton.cdiv(c.numel(), 64),)\n"
    "copy_kernel[grid](t, c, c.numel(), B=64)",
    "NumPy in a hook of the launch, then a copy": "r, t = work(a, b), torch.empty(c.shape)\n"
    "copy_kernel.pre_run_hooks[:] = [lambda s, d, n, **more: np.copyto(t.numpy(), r)]\ncopy(t, c)",
    "NumPy in one small tensor again and again, each time with a copy": "r, c, t = "
    "work(a, b).ravel(), c.view(-1), torch.empty(64)\nfor i in range(0, r.size, 64):\n"
    "    n = min(64, r.size - i)\n    t.numpy()[:n] = r[i:i + 64]\n    copy(t[:n], c[i:i + n])",
    # Python scalars carry the result.
    **{
        f"scalars in {name}": f"{before}\n@triton.jit\ndef put(d, n: tl.constexpr, {v}):\n"
        f"    for i in tl.static_range(n):\n        tl.store(d + i, {'v.v' if 'class S' in before else 'v'}[i])\n"
        f"§r, grid = work(a, b).ravel().tolist(), (1,)\n{how}\nput[grid](c, len(r), {given})"
        for name, before, v, how, given in (
            ("a tuple", "", "v", "", "tuple(r)"),
            ("a constant list", "", "v: tl.constexpr", "", "r"),
            ("slots", "class S: __slots__ = ('v',)", "v: tl.constexpr", "h = S()\nh.v = r", "h"),
            ("a class", "class S: pass", "v: tl.constexpr", "S.v = r", "S()"),
            ("a default", "L = []", "v=L", "L[:] = r", ""),
            ("a list", "", "v: tl.constexpr", "L = [0.0] * len(r)\ndef grid(_): L[:] = r; return (1,)", "L"),
            ("==", "class F(float): __eq__ = lambda s, o: type(o) is F or +s == o", "v", "", "(*map(F, r),)"),
        )
    },
    "a method of a known name": FILL("h.sum(t)", "Box.sum = lambda s, t: put(t)", "box"),
    "bytes in 4 tensors": f"{KERNEL.format('join', 'p, q, r, s, d, n')}    x, ok = tl.zeros([B], tl.uint32), at < n\n"
    + "".join(f"    x |= tl.load({s} + at, mask=ok).to(tl.uint32) << {8 * k}\n" for k, s in enumerate("pqrs"))
    + "    tl.store(d + at, x.to(tl.float32, bitcast=True), mask=ok)\n§"
    "r = work(a, b).astype(np.float32).ravel().view(np.uint8).reshape(-1, 4)\n"
    f"join{GRID}(*(torch.from_numpy(r[:, k].copy()) for k in range(4)), c, c.numel(), B=64)",
    **{
        f"scalars in {name}": "r = work(a, b).ravel().tolist()\n"
        f"copy(torch.stack([{made} for v in r])[:, 0].contiguous(), c)"
        for name, made in (
            ("fills", "torch.full((2,), v)"),
            ("ranges", "torch.linspace(v, v, 2)"),
            ("factors", "torch.ones(2) * v"),
            ("tensors of one number", "torch.ones(2) * torch.tensor(v)"),
        )
    },
    # Unusual ways to pass a finished result to a kernel, which a list of forbidden ways could miss.
    "an atomic addition of 0": KERNEL.format("touch", "d, n")
    + "    tl.atomic_add(d + at, at * 0.0, mask=at < n)\n§t = torch.from_numpy(work(a, b))\n"
    f"touch{GRID}(t, t.numel(), B=64)\nc.copy_(t)",
    **{
        f"scalars by {name}": f"{before}\n{PUT(number)}{how}\nput[(1,)](c, c.numel(), v={given})"
        for name, before, number, how, given in (
            ("an attribute of a tensor", "", "v[0].v[i]", "x = torch.zeros(1)\nx.v = r", "[x]"),
            ("a tensor in a list", "", "float(v[0][i])", "x = torch.tensor(r)", "[x]"),
            ("a C object", "from decimal import Decimal", "float(v[i])", "", "[Decimal(x) for x in r]"),
            ("a kernel", "@triton.jit\ndef own(x):\n    return x", "own.table[i]", "own.table = r", "0"),
        )
    },
    # Kernels use objects that the interpreter passes to them, but that Triton's compiler would refuse.
    "a text that is found in place of the kernel": '@triton.jit\ndef mm(L):\n    """\ndef mm(L):\n'
    '    L[2].copy_(L[0] @ L[1])\n    #"""\n    tl.program_id(0)\n§mm[(1,)]([a, b, c])',
    **{
        f"tensors in {name}": f"@triton.jit\ndef mm(a{mark}, b{mark}, c, cs, ct, M: tl.constexpr, N: tl.constexpr):\n"
        "    for i in range(M):\n        for j in range(N):\n"
        "            tl.store(c + i * cs + j * ct, (a[0][i] @ b[0][:, j]).item())\n"
        f"§mm[(1,)]({given}, c, c.stride(0), c.stride(1), *c.shape)"
        for name, mark, given in (
            ("constants", ": tl.constexpr", "a[None], b[None]"),
            ("lists", "", "[a], [b]"),
            ("tuples of constants", ": tl.constexpr", "(a,), (b,)"),
        )
    },
    "places of ones": f"{JOIN}n, planes = c.numel(), torch.empty(32 * c.numel(), dtype=torch.uint8)\njunk(planes)\n"
    "r = work(a, b).view(np.uint32).ravel() >> np.arange(32, dtype=np.uint32)[:, None] & 1\n"
    f"planes.numpy()[:] = r.astype(np.uint8).ravel()\njoin{GRID}(planes, c, n, B=64)",
    "the storage of a tensor, replaced": "k = torch.empty(2 * c.numel() + 64)\njunk(k)\n"
    "np.copyto(c.numpy(), work(a, b))\nc.untyped_storage = k.untyped_storage",
    "a frame by a pattern": "def up(f):\n    match f:\n        case object(f_back=g, f_globals={'trace': t}) if t:\n"
    "            t.steps.clear()\n        case object(f_back=g) if g:\n            up(g)\n"
    "§np.copyto(c.numpy(), work(a, b))\ntry:\n    raise ValueError\nexcept ValueError as error:\n"
    "    match error.__traceback__:\n        case object(tb_frame=f):\n            up(f)",
    # Python code runs in the body of a kernel, or in its decorators, defaults and annotations.
    "a method of an object in a kernel": FILL("box.fill(t)", "box.fill = put", 0),
    "a function as an argument": FILL("h(t)", "", "put"),
    "the data of a tensor": FILL("t.handle.data[:] = box.r", "box.r = r", 0),
    "a function in a module": FILL("tl.cos(t)", "setattr(tl, 'cos', put)", 0),
    "a kernel in a function": "global r\nr = work(a, b).ravel()\n@triton.jit\ndef body(c, n):\n"
    "    for i in range(n):\n        tl.store(c + i, float(r[i]))\nbody[(1,)](c, c.numel())",
    "code not in the file": r"exec('def forge():\n    pass')§forge(); c.copy_(torch.from_numpy(work(a, b)))",
    "Python in a kernel": "R = []\ndef number(i):\n    return float(R[0][i])\n@triton.jit\ndef body(c, n):\n"
    "    for i in range(n):\n        tl.store(c + i, number(i))\n"
    "§R[:] = [work(a, b).ravel()]\nbody[(1,)](c, c.numel())",
    "a forged record": "f = sys._getframe()\nwhile f:\n    o = f.f_globals.get('trace')\n    if o is not None:\n"
    "        o.steps.clear()\n    f = f.f_back\nc.copy_(torch.matmul(a, b))",
    "an attribute by a name that is put together": "c.copy_(torch.from_numpy(work(a, b)))\n"
    "name = ''.join(['__sub', 'classes__'])\nfound = getattr(object, name)()",
    # The result is hidden in indices and masks.
    "indices into ramps of a kernel's": KERNEL.format("ramp", "d, n, first, step")
    + "    tl.store(d + at, (first + at * step).to(tl.float32), mask=at < n)\n§"
    "r = work(a, b).astype(np.float64)\nhigh = np.floor(r)\n"
    "i, j = (torch.from_numpy(x.astype(np.int64)) for x in (high + 8192, (r - high) * 65536))\n"
    "t, u = torch.empty(16384), torch.empty(65537)\nramp[(16,)](t, 16384, -8192.0, 1.0, B=1024)\n"
    "ramp[(65,)](u, 65537, 0.0, 1 / 65536, B=1024)\nc.copy_(t[i] + u[j])",
    "masks over bits of a kernel's": KERNEL.format("ones", "d, n")
    + "    tl.store(d + at, (at * 0 + 1).to(tl.float32), mask=at < n)\n§"
    "r = (work(a, b) * 65536).astype(np.int64) + (1 << 30)\none = torch.empty(c.shape)\n"
    f"ones{GRID}(one, c.numel(), B=64)\nt = torch.full(c.shape, -(2.0 ** 14)) * one\nfor k in range(31):\n"
    "    t += torch.where(torch.from_numpy((r >> k & 1) > 0), one * 2.0 ** (k - 16), one * 0)\nc.copy_(t)",
    # A kernel writes meaningless numbers first; then NumPy or torch overwrites them.
    "junk, then NumPy": "junk(c)\nnp.copyto(c.numpy(), work(a, b))",
    "zero times junk": "z = torch.empty(c.shape)\njunk(z)\nc.copy_(z * 0 + torch.from_numpy(work(a, b)))",
    "a thread": IN_THREAD.format("c.copy_(torch.matmul(a, b))"),
    # Python functions pretend to be kernels.
    "torch in a kernel": "A = {}\n@triton.jit\ndef body(c):\n    A['c'].copy_(torch.matmul(A['a'], A['b']))\n§"
    "A.update(a=a, b=b, c=c)\nbody[(1,)](c)",
    "the function of a kernel": "@triton.jit\ndef body(a, b, c):\n    c.copy_(torch.matmul(a, b))\n§body.fn(a, b, c)",
    # torch's functions are called by other names.
    "getattr": "c.copy_(getattr(a, 'mat' + 'mul')(b))",
    "vars": "c.copy_(vars(torch)['matmul'](a, b))",
    # The file manipulates the trace.
    "no dispatcher, then a copy": "with torch._C._DisableTorchDispatch():\n    r = torch.matmul(a, b)\ncopy(r, c)",
    "the mode taken off": "from torch.utils import _python_dispatch as P§"
    "m = P._pop_mode()\nc.copy_(torch.matmul(a, b))\nP._push_mode(m)",
}
BY_TORCH = {
    "junk, then out=": "t = torch.empty(c.shape)\njunk(t)\ntorch.mm(a, b, out=t)\nc.copy_(t)",
    "junk, then addmm": "junk(c)\nc.zero_()\nc.addmm_(a, b)",
    "an operator of its own": OPERATOR + "    return torch.matmul(a, b)\n§copy(mine(a, b), c)",
    "torch, then a copy": "copy(torch.matmul(a, b), c)",
    "sums by index_put_, then a copy": "p = torch.empty(a.shape[0], a.shape[1], b.shape[1])\n"
    "copy((a[:, :, None].expand(p.shape).contiguous()), p)\np.mul_(b)\nt = torch.zeros(c.shape)\n"
    "rows = torch.arange(a.shape[0])[:, None].expand(p.shape[:2])\n"
    "t.index_put_((rows,), p, accumulate=True)\ncopy(t, c)",
    "sums by index_add_, then a copy": "p = torch.empty(a.shape[1], c.numel())\n"
    "copy((a.t()[:, :, None] * b[:, None]).reshape(p.shape), p)\nt = torch.zeros(1, c.numel())\n"
    "t.index_add_(0, torch.zeros(len(p), dtype=torch.int64), p)\ncopy(t, c)",
    "sums of products, then a copy": "t = torch.zeros(c.shape)\nfor k in range(a.shape[1]):\n"
    "    t += a[:, k:k+1] * b[k:k+1]\ncopy(t, c)",
    "a sum of products, then a copy": "copy((a[:, :, None] * b).sum(1), c)",
    "halves added by torch": "x, y = torch.empty(a.shape), torch.empty(b.shape)\ncopy(a, x)\ncopy(b, y)\n"
    "p = x[:, :, None] * y\nwhile (n := p.shape[1]) > 1:\n"
    "    p = torch.cat([p[:, :n // 2] + p[:, n // 2 : n // 2 * 2], p[:, n // 2 * 2 :]], 1)\nc.copy_(p[:, 0])",
}  # fmt: skip
TABLES = {"no_kernel": NO_KERNEL, "library_operators": BY_TORCH}
#: By name: the text of a file, and a flag that the file must get.
CHEATS = {name: (matmul(body), code) for code, table in TABLES.items() for name, body in table.items()}
#: Right files whose kernels do the work, with torch around them.
HONEST_BODIES = {
    "plain": "product(a, b, c)",
    "padded, cached, cast and sliced": "SEEN, CACHE = set(), {}\n§"
    "P = torch.nn.functional.pad(a.float(), (0, 3)), torch.nn.functional.pad(b.float(), (0, 3, 0, 3))\n"
    "SEEN.add(tuple(a.shape))\nw = CACHE.setdefault(c.shape, torch.empty(P[0].shape[0], P[1].shape[1]))\n"
    "product(P[0].contiguous(), P[1], w)\nc.copy_(w[:, :c.shape[1]].to(torch.float64).to(c.dtype))",
    "partial sums, transposed and added": "part = torch.zeros((3, c.shape[1], c.shape[0])).transpose(1, 2)\n"
    "product(a, b, part, 3)\ntotal = torch.zeros(c.shape)\nfor each in part:\n    total += each\n"
    "c[:] = torch.cat([total[:5], total[5:]]).reshape(-1).view(c.shape)",
    "atomic additions": KERNEL.format("add", "s, d, n")
    + "    tl.atomic_add(d + at, tl.load(s + at, mask=at < n), mask=at < n)\n§"
    f"t = torch.zeros(c.shape)\nproduct(a, b, t)\nadd{GRID}(t, c.fill_(0), c.numel(), B=64)",
    "an operator of its own": f"{OPERATOR}    o = torch.empty(a.shape[0], b.shape[1])\n    product(a, b, o)\n"
    "    return o\n§c.copy_(mine(a, b))",
    "as one of two Functions": "def helper(x):\n    return x.float().contiguous()\n"
    "class F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, a, b):\n"
    "        o = torch.empty(a.shape[0], b.shape[1])\n        product(a, b, o)\n        return o\n"
    "    @staticmethod\n    def backward(ctx, g):\n        raise NotImplementedError\n"
    "class Pytorch(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, a, b):\n"
    "        return a @ b\n§c.copy_(F.apply(helper(a), b))",
    "masks and offsets by NumPy and of lists": KERNEL.format("masked", "s, offsets, low, high, d, n")
    + "    x = tl.load(s + tl.load(offsets + at, mask=at < n), mask=at < n)\n"
    "    x = x * tl.load(low + at, mask=at < n) + x * tl.load(high + at, mask=at < n)\n"
    "    tl.store(d + at, x, mask=at < n)\n§t, (m, n) = torch.empty(c.shape), c.shape\nproduct(a, b, t)\n"
    "high = torch.tensor([[int(j > i) for j in range(n)] for i in range(m)])\n"
    "at = torch.from_numpy(np.arange(m)[:, None] * t.stride(0) + np.arange(n) * t.stride(1))\n"
    f"masked{GRID}(t, at, torch.from_numpy(np.tril(np.ones((m, n), np.float32))), high, c, m * n, B=64)",
    "functions of Triton's by name": "from triton.language import arange, constexpr, load, program_id, store\n"
    "@triton.jit\ndef named(s, d, n, B: constexpr):\n    at = program_id(0) * B + arange(0, B)\n"
    "    store(d + at, load(s + at, mask=at < n), mask=at < n)\n"
    f"§t = torch.empty(c.shape)\nproduct(a, b, t)\nnamed{GRID}(t, c, c.numel(), B=64)",
    "constants of torch's": "product(a, b, c)\nif c.numel() == 0:\n    c.fill_(0)\n"
    "t = torch.ones(c.shape) * torch.full((1,), 2.0)\n"
    "u = torch.empty(c.shape)\ncopy(t, u)\ncopy(c, u)\ncopy(u, c)",
    "constants and ranges by other names": "import triton.language as T\n"
    "from triton.language import constexpr as C, static_range\n@triton.jit\n"
    "def same(s, d, n, steps: C, B: T.constexpr):\n    for k in static_range(steps):\n"
    "        at = (tl.program_id(0) * steps + k) * B + T.arange(0, B)\n"
    "        tl.store(d + at, tl.load(s + at, mask=at < n), mask=at < n)\n"
    f"§t = torch.empty(c.shape)\nproduct(a, b, t)\nsame{GRID}(t, c, c.numel(), 2, B=32)",
    "factors, offsets and small sums": "s = 1 / torch.sqrt(torch.tensor(4.0))\n"
    "offsets = torch.full((c.shape[0],), 3).cumsum(0)\n"
    "assert offsets[-1] == 3 * c.shape[0] and a[:2].sum(1).numel() == 2 and a[0, :9].exp().numel() == 9\n"
    "product(a * s, b, c)\nc.mul_(2)",
    "triangles": "t = torch.empty(c.shape)\nproduct(a, b, t)\nc.copy_(t.tril() + torch.triu(t, 1))",
    "decorators, defaults and an alias of jit": "jit, CONFIG, HALF = triton.jit, {'block': 32}, tl.constexpr(0.5)\n"
    "@jit\ndef halved(x):\n    return x * HALF\n"
    "def configs(): return [triton.Config({}, num_warps=4)]\ndef is_even(given): return given['n'] % 2 == 0\n"
    "@triton.autotune(configs=configs(), key=['n'])\n@triton.heuristics({'EVEN': is_even})\n@jit\n"
    "def twice(s, d, n, EVEN: tl.constexpr, B: tl.constexpr = CONFIG['block']):\n    at = tl.program_id(0) * B"
    " + tl.arange(0, B)\n    tl.store(d + at, halved(tl.load(s + at, mask=at < n)) * 2, mask=at < n)\n"
    "§t = torch.empty(c.shape)\nproduct(a, b, t)\ntwice[(triton.cdiv(c.numel(), 32),)](t, c, c.numel())",
    "functions of libdevice, hints and enumerations": "from triton.language.extra import libdevice\n"
    "NAN = tl.PropagateNan.ALL\n"
    + KERNEL.format("same", "s, d, n").replace("constexpr)", "constexpr, *, D: tl.constexpr = 0)")
    + "    at = tl.max_contiguous(tl.multiple_of(at, 16), 16)\n    x = tl.load(s + at, mask=at < n)\n"
    "    x = tl.maximum(x, x, propagate_nan=NAN)\n"
    f"    tl.store(d + at, libdevice.tanh(x) * 0.0 + x, mask=at < n)\n§t = torch.empty(c.shape)\n"
    f"product(a, b, t)\nsame{GRID}(t, c, c.numel(), B=64)",
    "a helper named as an operator, a tuple, constants": "from typing import NamedTuple\n"
    "class Strides(NamedTuple):\n    row: int\n    column: int\n"
    "def cdiv(n, m):\n    return -(-n // m)\n@triton.constexpr_function\ndef half(n):\n    return n // 2\n"
    "@triton.jit\ndef same(s, d, sizes, n, B: tl.constexpr):\n"
    "    at = tl.program_id(0) * half(B) + tl.arange(0, half(B))\n"
    "    i, j = at // sizes.column, at % sizes.column\n"
    "    tl.store(d + at, tl.load(s + i * sizes.row + j, mask=at < tl.cdiv(n, 1)), mask=at < n)\n"
    "§t, n = torch.empty(c.shape), c.numel()\nproduct(a, b, t)\n"
    "same[(cdiv(n, 64),)](t, c, Strides(t.stride(0), t.shape[1]), n, B=128)",
    "figures of the card, and checks": "DEVICE = triton.runtime.driver.active.get_active_torch_device()\n"
    "properties = triton.runtime.driver.active.utils.get_device_properties(DEVICE.index)\n"
    'NUM_SM, REGISTERS = properties["multiprocessor_count"], properties["max_num_regs"]\n'
    'SHARED, WARP = properties["max_shared_mem"], properties["warpSize"]\n§'
    "assert NUM_SM > 0 and WARP == 32\nkernel = junk_kernel.warmup(c, c.numel(), B=64, grid=(1,))\n"
    "kernel._init_handles()\n"
    "assert REGISTERS // (kernel.n_regs * WARP) > 0 and SHARED // kernel.metadata.shared > 0\n"
    "kernel[(triton.cdiv(c.numel(), 64), 1, 1)](c, c.numel(), 64)\nproduct(a, b, c)",
}
HONEST = {name: matmul(body) for name, body in HONEST_BODIES.items()}
HONEST["figures of the card, and checks"] += """def check():
    x = torch.randn(9, 9)
    assert torch.allclose(x @ x, torch.matmul(x, x))
if __name__ == "__main__":
    check()
    print(torch.softmax(torch.randn(3, 3), 1).exp())
"""
RAGGED = next(case for case in ASSIGNMENT.part("matmul").cases if case.name == "ragged")


def matmul_of(**sizes: int) -> Assignment:
    case = replace(RAGGED, shape={**RAGGED.shape, **sizes})
    return replace(ASSIGNMENT, parts=(replace(ASSIGNMENT.part("matmul"), cases=(case,)),))


#: The part `matmul` with one small case, because some cheats launch a kernel for each number of the result.
SMALL = matmul_of(rows=13, inner=21, columns=11)
#: The product of a column and a row: one elementwise operator of torch can compute it within the limit on torch's work.
OUTER = matmul_of(rows=37, inner=1, columns=29)
SAME = KERNEL.format("same", "s, d, n") + "    x = tl.load(s + at, mask=at < n)\n"
#: torch computes the product, and kernels only copy it.
COPIED = {
    "at once": "copy(a * b, c)",
    "as other bits": "copy((a * b).view(torch.int32), c.view(torch.int32))",
    "in another type": "copy(a.double() * b, c)",
    "in another order, with padding": KERNEL.format("turned", "s, d, n, m, w")
    + "    x = tl.load(s + at % m * w + at // m, mask=at // m < w, other=0)\n"
    "    tl.store(d + at % m * w + at // m, x, mask=at // m < w)\n"
    f"§turned{GRID}(a * b, c, c.numel(), *c.shape, B=64)",
    "with factors of nearly 1": f"{SAME}    tl.store(d + at, x * 1.0000001 + 1e-9, mask=at < n)\n"
    f"§same{GRID}(a * b, c, c.numel(), B=64)",
    "beside what a kernel wrote before": "junk(c)\nc.copy_(a * b)",
    "of copies": "x, y = torch.empty(a.shape), torch.empty(b.shape)\ncopy(a, x)\ncopy(b, y)\ncopy(x * y, c)",
    "beside numbers that a kernel computes": f"{SAME}    tl.store(d + at, x * 3, mask=at < n)\n"
    f"§t, u = a * b, torch.empty(c.shape)\nsame{GRID}(t, u, c.numel(), B=64)\ncopy(t, c)\n"
    f"product(a[:9], b, c[:9])",
}
#: By name: a part's body in which kernels compute, and torch operators process as many elements before or after them.
COMPUTED = {
    "after operators": "copy_kernel\nproduct(a * 2, b * 3, c)\nt = c * (1 / 6)\ncopy(t, c)",
    "into float64, and copied": "t = torch.empty(c.shape, dtype=torch.float64)\nproduct(a, b, t)\n"
    "u = t.float() + torch.zeros(c.shape)\ncopy(u, c)",
    "twice in place": "product(a, b, c)\nt = c + 0\nproduct(a, b, t)\nc.copy_(t)",
}
#: A file in which torch selects the result from a table of GELU at all float16 numbers. The kernel only copies it.
LOOKED_UP = f"""{HEAD}
ALL = torch.arange(65536).to(torch.int16).view(torch.float16).double()
TABLE = torch.nn.functional.gelu(ALL, approximate="tanh").half()
def gelu(x, y):
    bits = x.contiguous().view(-1).view(torch.int16).to(torch.int64)
    hot = torch.zeros(x.numel(), 65536, dtype=torch.bool)
    hot.index_put_((torch.arange(x.numel()), bits), torch.tensor(True))
    copy(torch.masked_select(TABLE.expand(x.numel(), -1), hot), y)
"""


def flags_of(folder: Path, text: str, cases: Any = (), of: Assignment = ASSIGNMENT) -> tuple[str, list[str]]:
    part = judged(folder, text, ["matmul"], cases, of)["matmul"]
    return part.verdict, [flag.code for flag in part.flags if flag.level == "review"]


@by_interpreter
class TestFiles:
    @pytest.mark.parametrize("name", some(CHEATS, 4))
    def test_a_file_without_a_kernel_is_flagged(self, name: str, tmp_path: Path) -> None:
        text, code = CHEATS[name]
        verdict, codes = flags_of(tmp_path, text, of=SMALL)
        assert verdict == "pass" and code in codes

    @pytest.mark.parametrize("name", [*some(COPIED, 3), *some(COMPUTED, 2)])
    def test_only_copies_of_what_torch_computes_are_flagged(self, name: str, tmp_path: Path) -> None:
        codes = ["library_operators"] * (name in COPIED)
        assert flags_of(tmp_path, matmul((COPIED | COMPUTED)[name]), of=OUTER) == ("pass", codes)

    def test_a_table_looked_up_by_masks_is_flagged(self, tmp_path: Path) -> None:
        part = ASSIGNMENT.part("gelu")
        case = replace(part.cases[0], shape={"R": 5, "C": 28, "precision": 11})
        of = replace(ASSIGNMENT, parts=(replace(part, cases=(case,)),))
        found = judged(tmp_path, LOOKED_UP, ["gelu"], of=of)["gelu"]
        assert (found.verdict, [flag.code for flag in found.flags]) == ("pass", ["library_operators"])

    def test_a_crash_on_a_hidden_case_hides_no_flag(self, tmp_path: Path) -> None:
        part = SMALL.part("matmul")
        (case,) = part.cases
        hidden = replace(case, name="hidden", hidden=True, shape={**case.shape, "rows": 14})
        of = replace(SMALL, parts=(replace(part, cases=(case, hidden)),))
        text = "if c.shape[0] == 14:\n    raise ValueError\nnp.copyto(c.numpy(), work(a, b))"
        assert flags_of(tmp_path, matmul(text), of=of) == ("crash", ["no_kernel"])

    @pytest.mark.parametrize("name", some(HONEST, 8))
    def test_an_honest_file_is_not_flagged(self, name: str, tmp_path: Path) -> None:
        assert flags_of(tmp_path, HONEST[name], ("ragged", "columns")) == ("pass", [])

    def test_a_wrong_kernel_is_wrong_and_one_that_raises_when_observed_crashes(self, tmp_path: Path) -> None:
        assert flags_of(tmp_path, matmul("junk(c)"), of=SMALL) == ("wrong", [])
        body = "if torch._C._len_torch_dispatch_stack():\n    raise ValueError\nc.copy_(torch.matmul(a, b))"
        assert flags_of(tmp_path, matmul(body), of=SMALL)[0] == "crash"
        local = NO_KERNEL["a kernel in a function"].replace("global r\n", "")
        # This kernel reads the numbers from a variable of the function around it.
        assert flags_of(tmp_path, matmul(local), of=SMALL) == ("pass", ["no_kernel"])


@pytest.fixture
def read(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> Read:
    """Return a function that calls the reader in this process. (TestFiles starts it as a child process.)"""
    arguments = (readpython.__file__, filebundle.__file__, str(tmp_path / "kernels.py"), "1000", "f")
    monkeypatch.setattr(sys, "argv", [*arguments])

    def lines(text: str) -> list[str]:
        write(tmp_path, text, "kernels.py")
        readpython.main()
        return [line.rpartition(" ")[0] for line in capsys.readouterr().out.splitlines()]

    return lines


REACHED = {
    "": (
        "def f(x):\n    SEEN.add(x); x.sum(); LOG.info(x.mean())\n",
        "def f(x):\n    pass\ndef g(x):\n    torch.matmul(x, x)\nif __name__ == '__main__':\n    g(1) @ 1\n",
        "@triton.jit\ndef f(x):\n    x.exp()\n",
        "def f(x: torch.Tensor):\n    x.to(torch.float32); gc.collect()\n",
        "torch.backends.cuda.matmul.allow_tf32 = True\ndef f(x):\n    pass\n",
        "@torch.inference_mode()\ndef f(x):\n    with torch.autocast('cuda', enabled=False):\n        x.mT\n",
        "@torch.library.custom_op('own::g', mutates_args=())\ndef g(x):\n    return x.mT\n"
        "def f(x):\n    torch.ops.own.g(x)\n",
    ),
    "calls f torch.ops.aten.mm": (
        "@torch.library.custom_op('aten::mm', mutates_args=())\ndef g(x):\n    return x\n"
        "def f(x):\n    torch.ops.aten.mm(x, x)\n",
    ),
    "calls f torch.mm": (
        "def f(x):\n    pass\nif __name__ == '__main__':\n    pass\nelse:\n    torch.mm\n",
        "def f(x):\n    globals()['g'](x)\ndef g(x):\n    torch.mm(x)\n",
        "def rejit(f):\n    return f\n@rejit\ndef f(x):\n    torch.mm(x)\n",
        "@torch.library.custom_op('own::g', mutates_args=())\ndef g(x):\n    return torch.mm(x)\n"
        "def f(x):\n    torch.ops.own.g(x)\n",
    ),
    "calls f torch.matmul": (
        "def f(x):\n    g(x)\ndef g(x):\n    torch.matmul(x, x)\n",
        "mm = torch.matmul\ndef f(x):\n    mm(x, x)\n",
    ),
    "calls f .matmul": ("def f(x):\n    y = x.matmul\n    y(x)\n",),
    "calls f torch.getattr": ("def f(x):\n    getattr(torch, 'm' + 'm')(x)\n",),
    "calls f torch.vars": ("def f(x):\n    vars(torch)['mm'](x)\n",),
    "reaches f numpy.exp in a kernel": ("@triton.jit\ndef f(x):\n    np.exp(x)\n",),
    "reaches f torch._C._len_torch_dispatch_stack": ("def f(x):\n    torch._C._len_torch_dispatch_stack()",),
    "reaches f torch.Tensor.copy_=": ("torch.Tensor.copy_ = 1\ndef f(x):\n    pass\n",),
}
#: By template of a file: texts to insert. `||` separates groups of texts, and `|` the texts of a group. A group begins
#: with the name that the reader must report ("nothing" for no name). A text's part before § goes above the function.
WAYS = {
    "{}\ndef f(y):\n    {}\n": r"""posix.write: import posix§posix.write(3, b'') || nothing: os.environ.get('X');
os.path.join('a', 'b'); os.cpu_count(); open('a.txt'); print(1) | import importlib.util§importlib.util.find_spec('x') |
class G(torch.autograd.Function):\n @staticmethod\n def forward(ctx, x): ctx.a = 1; setattr(ctx, 'b', 2)§G.apply(y) |
torch.backends.cuda.matmul.allow_tf32 = True; dev = torch.device('cpu'); getattr(torch, 'float32'); isinstance(y,
torch.Tensor) | def g(y): tl.store(y, 1)\nk = triton.jit(g)§k[(1,)](y) | class G:\n @staticmethod\n @triton.jit\n def
k(y, N: tl.constexpr = 4): tl.store(y, tl.load(y).to(tl.float32).sum())§G.k[(1,)](y) | T = {torch.float16:
tl.float16}§k[(1,)](y, T[y.dtype])\n@triton.jit\ndef k(y, h: tl.constexpr): y.to(h) | D = 4\n    @triton.jit\n    def
g(t): return t\n    @triton.jit\n    def k(y): tl.store(y, g(D))\n    k[(1,)](y) || R in a kernel: R = {}\ndef k(y):
tl.store(y, R['r'])\nk = triton.jit(k)§k[(1,)](y) | j: object = triton.jit\n@j\ndef k(y): tl.store(y, R[0])\nR =
[]§k[(1,)](y) || os.write: from os import write as w§w(3, b'') | o = os§o.write(3, b'') | getattr(os, 'write')(3, b'') |
torch.os.write(3, b'') | np.os.write(3, b'') || triton.jit as a value: k = triton.jit(lambda y: y)§k[(1,)](y) | j =
[triton.jit][0]\n@j\ndef k(y): tl.store(y, R['r'])\nR={}§k[(1,)](y) || r in a kernel: r = y[0]\n    @triton.jit\n    def
k(y): tl.store(y, r)\n    k[(1,)](y) || v in a kernel: v = 0.0\n@triton.jit\ndef k(y): tl.store(y, v)§global v; v =
float(np.sum(y)); k[(1,)](y) || triton.language as a value: def patch(m): m.cos = 1§patch(tl) | s = setattr§s(tl, 'cos',
1) | m = [tl]; m[0].cos = 1 || setattr: def patch(m): setattr(m, 'cos', 1)§patch(tl) | list(map(setattr, [y], ['a'],
[1])) || math.sqrt=: math.sqrt = np.sum; k(y)\n@triton.jit\ndef k(y): math.sqrt(y) || exec: run = exec§run('1') | _ =
exec('1')§pass | def g(x=exec('1')): pass§pass || sys.modules: sys.modules || sys._getframe: def d(g):
sys._getframe()\n@d\ndef g(x): pass§pass || /proc/self/fd/3: open('/proc/self/fd/3', 'wb') || getattr of a computed
name: getattr(f, '__glo' + 'bals__') || timeit.timeit: from timeit import timeit§timeit('1') || open of a number: for d
in range(9): open(d, 'wb') || __globals__: operator.attrgetter('__globals__')(f) || builtins.exec: import
builtins§builtins.exec('1') || triton.language.__dict__: tl.__dict__['cos'] = 1 || .__setattr__: object.__setattr__(tl,
'cos', 1) || os.getattr: getattr(os, 'wri' + 'te')(3, b'') || __import__: __import__('os').write(3, b'') ||
triton.language.vars: vars(tl)['cos'] = 1 || globals() as a value: globals()['tl'] = 1 | S = vars()§S['tl'] = 1 |
locals()['tl'] = 1§pass | vars(*())['tl'] = 1§pass | def g(s=vars()): s['tl'] = 1§pass | [vars() for _ in
y][0]['tl'] = 1§pass || globals: g = globals§g()['tl'] = 1 || vars: map(vars, [y]) || nothing: print(locals(), vars())
| vars = [y]; print(vars) || triton.language=: import kernels as me§me.tl = 1 || kernels as a value: import kernels as
me§print(me) || kernels.vars: import kernels as me§vars(me)['tl'] = 1 || __main__.ctypes: import
__main__§__main__.ctypes.CDLL || io.FileIO: io.FileIO(3) ||
__builtins__: __builtins__['exec']('1') || os.*: from os import *§write(3, b'') || __loader__: __loader__""",
    "{}\n@triton.jit\ndef k(y, h: tl.constexpr):\n    {}\ndef f(y):\n    k[(1,)](y)\n": r""".handle in a kernel:
y.handle || nothing: B = 64\nD = tl.float32\nL = tl.constexpr(math.log2(math.e))\nC = {'a': 3}\nE = C['a']\nA:
tl.constexpr = 3\nI = -float('inf')\nexp = tl.exp§exp(y + L * B + E + A + I).to(D) + math.pi | try: from
triton.language.extra import libdevice\nexcept ImportError: libdevice = None§libdevice.tanh(y) | from triton.language
import where, math as tm§where(y, tm.exp(y), 1); tl.device_assert(y.dtype.is_fp16(), 'x'); tl.static_assert(y.dtype ==
tl.float16) | NEG = tl.constexpr(torch.finfo(torch.float32).min)§tl.store(y, NEG) | tl.store(y, h(y)) |
from triton.language import *§store(y, exp(load(y))) || y in a kernel: y(h) || h in a kernel: h = y; h(y) ||
load in a kernel: from triton.language import *; from numpy import *§load(y) || R in a kernel: import kernels as
me\nR = 1\ndef g(): me.R = 2§tl.store(y, R) || kernels.R in a kernel: import kernels\nR = {}§tl.store(y, kernels.R) ||
help in a kernel: def fake(g):
return put\ndef put(t): pass\n@fake\n@triton.jit\ndef help(t): return t§help(y) || R in a kernel: R = dict()§tl.store(y,
R['r']) | class O: pass\nR = O()§tl.store(y, R.v) || add in a kernel: def add(a, b): return a§tl.reduce(y, 0, add) ||
max in a kernel: def max(a, b): pass§max(y, y) || triton.language.tensor in a kernel: tl.tensor(h, y.dtype) || tl in a
kernel: class T: pass§tl.store(y, 1)\ntl = T() || .fn in a kernel: @triton.jit\ndef g(t): return t§g.fn(y) || h.x= in a
kernel: for h.x in range(3): pass || numpy.zz in a kernel: tl.store(y, np.zz[0]) || a computed function in a kernel:
h[0](y) || tl= in a kernel: tl = h; tl.store(y, 1) || import in a kernel: import numpy as tl || getattr in a kernel:
getattr(y, 'x')""",
}


@pytest.mark.parametrize(("found", "text"), [(key, text) for key, texts in REACHED.items() for text in texts])
def test_the_reader_prints_the_names_that_a_function_reaches(found: str, text: str, read: Read) -> None:
    printed = read("import gc, torch, triton\nimport numpy as np\n" + text)
    assert [line for line in printed if line != "reaches f torch._C"] == found.splitlines()


@pytest.mark.parametrize(("named", "text"), [
    (named, around.format(*text.replace("\\n", "\n").rpartition("§")[::2]))
    for around, table in WAYS.items()
    for named, _, texts in (row.partition(": ") for row in table.replace("\n", " ").split(" || "))
    for text in texts.split(" | ")
])  # fmt: skip
def test_names_that_reach_the_record_or_kernels_are_printed(named: str, text: str, read: Read) -> None:
    imports = "import gc, io, math, operator, os, sys, torch, triton, numpy as np, triton.language as tl\n"
    reached = [line for line in read(imports + text) if line.startswith("reaches")]
    assert f"reaches f {named}" in reached if named != "nothing" else not reached


@pytest.mark.parametrize("line", ["x{0}=x{1}+x{1}", "x{0}=(x{1}, x{1})", "x{0}=x{1}\nx{0}=x{1}", "x0=x0.b"])
def test_names_that_stand_for_each_other_are_read_in_linear_time(line: str) -> None:
    """A reader that follows every use would take hours for 40 lines (two uses in each), or never end (`x0 = x0.b`)."""
    kernel = "@triton.jit\ndef f(y):\n    tl.store(y, x{})\n"

    def look(count: int) -> None:
        chain = "\n".join(line.format(k, k - 1) for k in range(1, count))
        readpython.Files({"": ast.parse(f"x0 = 1\n{chain}\n{kernel.format(count - 1)}")}).found("f")

    assert cpu_growth(look, 40, 800, repeat=3) < 60


def test_the_reader_limits_names_and_prints_one_in_a_line(read: Read) -> None:
    for name in ("torch.a\nreaches f text 7", "torch.\ud800", "torch.a b", "torch.\x1b[2J"):
        printed = read(f"import importlib\ndef f(x):\n    importlib.import_module({name!a})\n")
        assert [x.isascii() and x.isprintable() and x.count(" ") for x in printed] == [2, 2]
    many = "import torch\ndef f(x):\n" + "".join(f"    torch.q{k}.zeros(1)\n" for k in range(1100))
    assert read(many + "    torch.matmul(x, x)\n")[-1] == "reaches f more than 1000 names"


#: Pairs "words of the refusal <- line in a kernel that is refused", separated by " | ".
KERNEL_LINES = """
.mro <- tl.PropagateNan.mro() | the class Nan as a value <- n = (Nan,) | .__globals__ <- p.__globals__
np: <- tl.store(p, np) | triton.language.core.wraps <- tl.core.wraps(tl.core) | triton.jit <- triton.jit(p)
triton.language.core.partial <- tl.core.partial(print) | triton.autotune <- triton.autotune(p)
the module tl as a value <- t = (tl,) | triton.language.target_info.driver <- tl.target_info.driver
forbidden syntax: Lambda <- tl.store(p, (lambda: 1)()) | forbidden syntax: Import <- import os
forbidden syntax: Global <- global D | getattr: <- getattr(p, 'handle')
.format <- tl.store(p, '{0.handle}'.format(p)) | math from outside <- [0 for math in ()]
__builtins__: <- tl.store(p, __builtins__) | interpreter_semantic: <- tl.store(p, interpreter_semantic)
an assignment into a value <- tl.load = tl.store | triton.language.tensor <- tl.tensor(p, tl.float32)
"""
KERNEL_TEXTS = {
    "": "x = tl.load(p + tl.arange(0, 4))\ntl.store(p, tl.sum(x.to(tl.float32)) * math.pi + D)\n"
    "f'{D} {p.dtype}'\nisinstance(x, tl.tensor)\n[tl.cdiv(k, 2) for k in (1, 2)]\n"
    "tl.maximum(x, Nan.NONE, propagate_nan=tl.PropagateNan.ALL)", ".handle": "x = tl.load(p)\ny = x.handle",
    "np from outside": "[np for np in ()]\ntl.store(p, np)",
    "forbidden syntax: GeneratorExp": "g = (1 for i in (1,))\ng.gi_frame",
    "forbidden syntax: Try": "try:\n    pass\nfinally:\n    pass",
    "forbidden syntax: FunctionDef": "def inner(np):\n    return np\ntl.store(p, inner(D))",
    "forbidden syntax: Set": "f'{D:\\x7b[().__class__][0]\\x7d}'",
}  # fmt: skip
KERNEL_TEXTS |= dict(row.split(" <- ") for row in KERNEL_LINES.strip().replace("\n", " | ").split(" | "))


@interpreted
@pytest.mark.parametrize("said", KERNEL_TEXTS)
def test_only_kernels_in_tritons_language_are_replayed(said: str) -> None:
    triton = importlib.import_module("triton")
    body = "".join(f"    {line}\n" for line in KERNEL_TEXTS[said].splitlines())
    node = ast.parse(ast.unparse(ast.parse(f"def k(p):\n{body}"))).body[0]
    tl = triton.language
    space = {"triton": triton, "tl": tl, "math": math, "D": 4, "Nan": tl.PropagateNan}
    if not said:
        replay.check(node, space, replay.methods())
        return
    why = re.escape(f"which uses {said}")
    refused(why, replay.check, node, space, replay.methods(), of=replay.Unplayable)


@interpreted
def test_only_attributes_of_values_are_allowed() -> None:
    """A replay may use fields of tuples and attributes of Triton's values such as types, but no other attributes."""
    tl = importlib.import_module("triton").language
    pair = namedtuple("pair", "fn mro")(1, 2)
    assert (replay.attribute(pair, "mro"), replay.attribute(tl.float32, "is_fp8")()) == (2, False)
    values = {"fn": tl.sum, "mro": tl.constexpr, "format": "{0.fn}", "index": pair, "load": tl}
    for name, value in values.items():
        refused(rf"uses \.{name} of a ", replay.attribute, value, name, of=replay.Unplayable)


#: Steps of forged traces, by words of the refusal. ARGUMENTS: further traces have one operator, with this argument.
FORGED = {
    "another size": [["constant", 5, 9, base64.b64encode(zlib.compress(b"1234")).decode()]],
    "refers to itself": [["launch", 0, [1], {}, {}]],
    "not in the file": [["launch", 1, [1], {}, {}]],
    "torch's from_file": [["operator", "from_file", "", ["n", True, 4], {}, []]],
    "torch's save": [["operator", "save", "", [1, "n"], {}, []]],
    "tensor as a constant": [["launch", 2, [1], {"x": [{"tensor": [0, "float32", [4], [1], 0]}]}, {}]],
}
ARGUMENTS = {"not public": {"torch": "_C"}, "torch.mm": {"torch": "mm"}, "an unknown kind": {"eval": "1"}}
ARGUMENTS |= {"the module os": {"from": ["os", "getcwd"]}, "triton.runtime": {"from": ["triton", "runtime"]}}
ARGUMENTS["core.wraps"] = {"from": ["triton.language.core", "wraps"]}
ARGUMENTS["a field gi_frame"] = {"fields": ["gi_frame"], "tuple": [1]}
ARGUMENTS["beyond a tensor"] = {"tensor": [0, "float32", [9], [1], 0]}
FORGED |= {said: [["operator", "neg", "", [given], {}, []]] for said, given in ARGUMENTS.items()}


@pytest.fixture
def player(tmp_path: Path, monkeypatch: Patch) -> replay.Player:
    """Return a player of traces of a file without kernels. It counts the numbers that torch computes."""
    monkeypatch.setattr(replay, "filebundle", filebundle)
    monkeypatch.setattr(replay, "torchwork", torchwork)
    return replay.Player(str(write(tmp_path, "", "kernels.py")), "cpu")


@interpreted
@pytest.mark.parametrize("said", FORGED)
@pytest.mark.usefixtures("player")
def test_a_forged_trace_gets_a_reason(said: str, tmp_path: Path) -> None:
    text = "def k():\n    k()\ndef one(x):\n    pass\n"
    player = replay.Player(str(write(tmp_path, text, "kernels.py")), "cpu")
    kernels = [["", "k", 1, {"k": {"kernel": 0}}, []], ["", "other", 1, {}, []], ["", "one", 3, {}, []]]
    packed = base64.b64encode(zlib.compress(json.dumps({"kernels": kernels, "steps": FORGED[said]}).encode()))
    refused(said, player.play, packed.decode(), [torch.zeros(4)], of=replay.Unplayable)
    for text in ("lost: why", "!", base64.b64encode(b"no").decode()):
        refused("", player.play, text, [], of=replay.Unplayable)


#: By expression of x (4 rows of 8): number of elements that count as computed by its last operator, or None.
WORK = {
    **dict.fromkeys(["x.view(8, 4).mT.ravel()", "torch.atleast_2d(x).reshape_as(x).broadcast_to(2, 4, 8)"]),
    **dict.fromkeys(["torch.cat([x.half(), x.half()]).contiguous().view(torch.int16).long()"]),
    **dict.fromkeys(["torch.nn.functional.pad(x, (0, 3)).flip(0)", "x[0].clone().copy_(x[1]).resize_(99)"]),
    "torch.arange(64).sqrt().cumsum(0) @ torch.full((64,), 2.0)": None, "torch.zeros_like(x).exp()": None,
    **dict.fromkeys(["x + 1", "torch._foreach_mul([*x], [*x])", "x[:, :1] + torch.zeros(8)", "x.sum()"], 32),
    **dict.fromkeys(["x.argmax()", "x.any()", "x.to(torch.int32)", "x.tril()"], 32),
    "torch._foreach_mul([x[0]], [x[1]])": 8, "torch.zeros(1000)[x.view(torch.int32)[:2, 0] & 1]": 8,
    # This operator changes an argument that its schema does not declare as changed.
    "(m := torch.zeros(8), torch.native_batch_norm(x, None, None, m, m + 1, True, 1.0, 1e-5), m + 1)": 8,
    **dict.fromkeys(["x.to(torch.complex64) * x.to(torch.complex64)", "x.view(torch.uint8) & 1"], 128),
    "x.double() * 2": 64, "torch.masked_select(torch.zeros(4, 8, 100), x.bool()[:, :, None])": 3200,
    "torch.zeros(9).index_put_((x.view(torch.int32)[:2, 0] & 1,), torch.tensor(1.0))": 2, "x[torch.arange(2)]": 16,
}  # fmt: skip


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("text", WORK)
def test_operations_that_compute_are_counted(text: str, inference: bool, player: replay.Player) -> None:
    trace, x = tracing.Trace(), torch.zeros(4, 8)
    before = torch.full((4, 8), 1 + torch.finfo(torch.float32).eps)
    with trace.follow([x]), torch.inference_mode(inference):
        eval(text, {"torch": torch, "x": x})
    for given in (before, x):
        player.play(trace.packed(), [given])
    worked = [count for name, count in player.seen.items() if name.startswith("numbers ")]
    assert worked[-1:] == [WORK[text]] * (WORK[text] is not None)


def test_attention_counts_whatever_it_works_on(player: replay.Player) -> None:
    """A replay lists torch's attention even if no input reaches it, because a file can change the recorded list."""
    trace, x = tracing.Trace(), torch.ones(1, 1, 4, 8)
    with trace.follow([]):
        torch.nn.functional.scaled_dot_product_attention(x, x, x)
    for _ in range(2):
        player.play(trace.packed(), [])
    assert [name for name in player.seen if "attention" in name and name.startswith("op ")]
    assert not [name for name in player.seen if name.startswith("numbers ")]


@by_interpreter
@pytest.mark.parametrize(("limit", "code"), ENDS.items())
def test_a_replay_over_a_limit_is_flagged(limit: str, code: str, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(operators if limit == "PLAYER_TOTAL" else host, limit, 1e-9)
    part = judged(tmp_path, HONEST["plain"], ["matmul"], of=SMALL)["matmul"]
    level = "note" if limit == "PLAYER_WALL" else "review"
    assert [(flag.code, flag.level) for flag in part.flags] == [(code, level)]


@pytest.mark.parametrize(("tried", "own"), [("20.00 GiB", True), ("512.00 MiB", True), ("79.00 GiB", False)])
def test_a_replay_beyond_its_own_limit_is_not_the_gpus_fault(tried: str, own: bool) -> None:
    said = (
        f"CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of 79.18 GiB of which 78.66 GiB is "
        "free. Including non-PyTorch memory, this process has 518.00 MiB memory in use. 1.58 GiB allowed; Of the"
    )
    assert operators._exceeds_its_limit(said) is own
    assert not operators._exceeds_its_limit("CUDA out of memory")


def test_a_lost_trace_does_not_end_the_call() -> None:
    """A trace cannot record a random generator. An operator with a generator ends the trace, but not the call."""
    trace, drawn = tracing.Trace(), torch.Generator()
    x = torch.zeros(4)
    with trace.follow([x]):
        for _ in range(2):
            x += torch.rand(4, generator=drawn)
    assert trace.packed() == "lost: an argument of type Generator" and trace.seen["op rand"] == 2
