"""Findings on this machine's GPUs, as nvidia-smi reports them, and on further needs of judging kernels on them."""

from __future__ import annotations

from collections.abc import Iterator

from grader.backends.gpu import devicebuild
from grader.doctor.host import Finding, Host

TOOL = "nvidia-smi"
FIELDS = ("name", "driver_version", "compute_mode", "persistence_mode", "memory.total", "memory.used")
#: Oldest driver that runs programs made with CUDA 12.
OLDEST_DRIVER = 525
LEAST_FREE_SHARE = 0.8


def findings(host: Host) -> Iterator[Finding]:
    """Yield findings on GPUs; none on a machine without nvidia-smi, which needs no GPU."""
    path = host.which(TOOL)
    if path is None:
        return
    ran = host.run([path, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"])
    if ran.returncode != 0:
        told = (ran.output.strip().splitlines() or [f"status {ran.returncode}"])[0]
        yield Finding(
            "warn",
            f"{TOOL} finds no card: {told}",
            "kernels for a GPU have their results judged, not their times",
            "load NVIDIA's driver, or leave it where there is no card",
        )
        return
    rows = [[cell.strip() for cell in line.split(",")] for line in ran.output.splitlines() if line.strip()]
    cards = [dict(zip(FIELDS, row, strict=True)) for row in rows if len(row) == len(FIELDS)]
    for card in cards:
        yield from _card(card)
    if not cards:
        return
    yield from _others(host, path)
    if not host.has_module(devicebuild.TRITON):
        yield Finding(
            "warn",
            "Triton is not installed",
            "parts in Triton are not judged: their points stay open",
            f'pip install "{devicebuild.TRITON_PACKAGE}" (the extra gpu)',
        )
    if host.which(devicebuild.NVCC) is None:
        yield Finding(
            "warn",
            "nvcc is not on the PATH",
            "parts in CUDA are not judged: their points stay open",
            "install NVIDIA's CUDA toolkit and put its bin folder on the PATH",
        )


def _card(card: dict[str, str]) -> Iterator[Finding]:
    name, driver = card["name"], card["driver_version"]
    yield Finding("ok", f"{name}, driver {driver}, {card['memory.total']} MiB")
    if driver.split(".")[0].isdigit() and int(driver.split(".")[0]) < OLDEST_DRIVER:
        yield Finding(
            "warn",
            f"the driver {driver} is older than {OLDEST_DRIVER}",
            "it may not run what today's torch and Triton compile",
            "install a newer driver",
        )
    if card["compute_mode"] != "Default":
        yield Finding(
            "fail",
            f"the compute mode of the {name} is {card['compute_mode']}",
            "the judge and its runners are several processes on one card: none of them gets in",
            f"{TOOL} -c DEFAULT (as root)",
        )
    if card["persistence_mode"] == "Disabled":
        yield Finding(
            "warn",
            f"persistence mode of the {name} is off",
            "the driver may be loaded anew for each process, which makes each judging slower",
            f"{TOOL} -pm 1 (as root)",
        )
    total, used = card["memory.total"], card["memory.used"]
    if total.isdigit() and used.isdigit() and int(used) > (1 - LEAST_FREE_SHARE) * int(total):
        yield Finding(
            "warn",
            f"{used} of {total} MiB of the {name} are in use",
            "timed calls have fewer inputs at once, so that short ones are noisier",
            "end what else uses the card",
        )


def _others(host: Host, path: str) -> Iterator[Finding]:
    ran = host.run([path, "--query-compute-apps=pid", "--format=csv,noheader"])
    pids = [line.strip() for line in ran.output.splitlines() if line.strip().isdigit()]
    if ran.returncode == 0 and pids:
        yield Finding(
            "warn",
            f"other processes use a card: {', '.join(pids[:5])}",
            "contexts share a card by turns: times are those of both",
            "judge when they have ended",
        )
