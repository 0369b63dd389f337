"""The lab's studies, each once and small."""

from __future__ import annotations

import subprocess
import sys
import time

from gpu_steps.common import ROOT, WORK

STUDIES = (
    ("profile", "gelu"),
    ("roofline",),
    ("attention-memory", "--lengths", "512,1024,2048,4096"),
    ("waves", "--sizes", "1024,1536,2048,2560,3072,3584,4096"),
    ("ladder", "flash_forward"),
)


def step_studies() -> None:
    source = str(ROOT / "labs" / "gpu" / "kernels.py")
    for study in STUDIES:
        begun = time.perf_counter()
        command = [sys.executable, str(ROOT / "gpt149.py"), "lab", "gpu", *study, "--module", source]
        done = subprocess.run(
            [*command, "--out", str(WORK / "study")], capture_output=True, text=True, cwd=WORK, check=False
        )
        lines = (done.stdout + done.stderr).strip().splitlines()
        print(f"-- {' '.join(study)}: exit {done.returncode}, {time.perf_counter() - begun:.1f} s")
        print("\n".join(lines[:26])[:2200], flush=True)
