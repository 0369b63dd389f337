"""A script for Triton's interpreter. It prints the tuned kernels' errors on small shapes, divided by their budget.

A GPU's copy engine can add to memory; the interpreter lacks this, so the kernels sum dQ by atomic additions.
"""

import json

import numpy as np
import torch

from labs.gpu import oracle, tuned
from labs.gpu.inputs import make_inputs

RAGGED = ((32, 40, 70, 0), (32, 40, 40, 1), (64, 33, 33, 1), (64, 20, 90, 0), (128, 17, 30, 0))
WHOLE_TILES = ((64, 64, 128, 0), (64, 128, 64, 1))


def worst(expected, found):
    pairs = zip(expected.values(), found, strict=True)
    return max(float((abs(t.float().numpy() - one.value) / one.tolerance).max()) for one, t in pairs)


for d, n, m, causal in RAGGED + WHOLE_TILES:
    shape = {"B": 2, "N": n, "M": m, "d": d, "causal": causal, "precision": 11}
    inputs = make_inputs("heads_gradient", shape, 3)
    t = {name: torch.tensor(np.asarray(one, np.float32)) for name, one in inputs.items()}
    q, k, v, o, do = (t[name].half() for name in ("q", "k", "v", "O", "dO"))
    assert tuned.takes(q, k, v)
    forward = tuned.flash_forward(q, k, v, bool(causal))
    found = [worst(oracle.ORACLES["flash_forward"].expected(inputs, shape), forward)]
    for late in (False, True):
        blocks = (*tuned.backward_blocks(d)[:4], late, False)
        backward = tuned.flash_backward(q, k, v, o, t["L"], do, bool(causal), blocks)
        found.append(worst(oracle.ORACLES["flash_backward"].expected(inputs, shape), backward))
    print(json.dumps(found))
