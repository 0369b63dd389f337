"""Where the expert kernel's time goes: its loops one by one, in per cent of the multiply-adds that the same core does.

`scores` are the products of queries and keys, `+ 2^x` those with the weights made of them, `values` the products of
weights and values, `block` a whole block of keys and `first block` the one that finds the maxima. All data lie in
the first-level cache, so what a whole call loses beyond `block` goes to the first block of each tile, to transposing
queries and outputs, and to the memory. The last column is what 2^x and the sum of a weight take, in multiply-adds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from trials import ROOT, table

sys.path.insert(0, str(ROOT))

HEADER = ("level", "d", "scores", "+ 2^x", "values", "block", "first block", "extra a weight")


def main() -> int:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    from grader.build.toolchain import toolchain
    from module_ref_stub import expert, library

    tools = toolchain()
    best = expert.LEVELS.index(expert.level())
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for level in expert.LEVELS[1 : best + 1] or expert.LEVELS[:1]:
            program = str(Path(folder) / level)
            command = [str(tools.compiler), *library.COMMON_FLAGS, *library.EXPERT.flags]
            command += [*library.level_flags(tools.machine, library.EXPERT)[level], f"-I{library.SOURCE_DIR}"]
            subprocess.run(
                [*command, str(ROOT / "benchmarks" / "expert_loops.cpp"), "-o", program], check=True
            )
            printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
            rows += [[level, *line.split()] for line in printed.splitlines()]
    print(table(rows, HEADER))
    return 0


if __name__ == "__main__":
    sys.exit(main())
