"""Test of a cluster machine before it gets a submission: it must give the same verdicts as the judge's machine.

The judge sends the versions and digests of its machine (`Kit`). A node (the process on the cluster machine) compares
them with those of the cluster machine, and reports the differences. Then the machine judges the calibration submission,
which tests the timing.
"""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grader import sandbox
from grader.assignment.loading import load
from grader.assignment.records import Assignment
from grader.backends.kinds import kind_of
from grader.backends.native import toolchain
from grader.core import machine
from grader.core.errors import KitError, UsageError
from grader.core.harmless import one_line
from grader.core.places import ROOT
from grader.staff.classroom import fingerprints


@dataclass(frozen=True)
class Kit:
    """Versions, digests and settings on which the verdicts of a run depend.

    `config` is the assignment's path, relative to the kit's folder if it lies there. `kit` is the digest of the kit's
    sources. `tier` is the sandbox tier. `timing`: times are measured. `timings_alone`: no two timings run at once.
    `trust`: a sandbox below tier C is allowed.
    """

    config: str
    assignment_fingerprint: str
    kit: str
    python: str
    torch: str
    compiler: str
    processor: str
    tier: str
    seed: int | None
    timing: bool
    timings_alone: bool
    trust: bool
    card: bool = False
    """True: a part of the assignment needs a GPU, so each job reserves one."""


def kit_here(config: Path, assignment: Assignment, tier: str, **settings: Any) -> Kit:
    """Return the `Kit` for this machine, the judge's. `settings` are the fields of `Kit` from `seed` to `trust`."""
    place = config.resolve()
    return Kit(
        config=str(place.relative_to(ROOT) if place.is_relative_to(ROOT) else place),
        assignment_fingerprint=assignment.fingerprint,
        kit=fingerprints.of_kit(),
        tier=tier,
        card=any(kind_of(part).on_card for part in assignment.parts),
        **versions(),
        **settings,
    )


def versions() -> dict[str, str]:
    """Return this machine's `python`, `torch`, `compiler`, `processor` for `Kit`. Raises KitError without compiler."""
    tools = toolchain.toolchain()
    return {
        "python": platform.python_version(),
        "torch": toolchain.torch_version(),
        "compiler": tools.compiler_version,
        "processor": f"{tools.system} {tools.machine}",
    }


def config_path(kit: Kit) -> Path:
    """Return the assignment's path on this machine."""
    return ROOT / kit.config


def facts(name: str) -> dict[str, Any]:
    """Return fields of `grader.report.machines.Machine` for this machine, whose name in the cluster is `name`."""
    known = machine.describe()
    return {
        "name": name,
        "host": platform.node(),
        "processor": str(known["processor"]),
        "cores": len(machine.usable_cpus()) or os.cpu_count() or 1,
    }


def refusals(kit: Kit) -> list[str]:
    """Return a short phrase for each reason why verdicts of this machine could differ from those of the judge's."""
    found = []
    try:
        here = versions()
    except KitError as error:
        return [one_line(str(error), 200)]
    for name, value in here.items():
        wanted = asdict(kit)[name]
        if value != wanted:
            what = "system" if name == "processor" else name
            found.append(f"another {what} ('{one_line(value, 60)}' there, '{one_line(wanted, 60)}' here)")
    if fingerprints.of_kit() != kit.kit and here["python"] == kit.python and here["torch"] == kit.torch:
        found.append("other sources of the kit")
    try:
        if load(config_path(kit), kit.seed).fingerprint != kit.assignment_fingerprint:
            found.append(f"another {kit.config}")
    except (UsageError, KitError) as error:
        found.append(f"no assignment ({one_line(str(error), 120)})")
    try:
        sandbox.choose(kit.tier, kit.trust)
    except (UsageError, KitError) as error:
        found.append(f"no sandbox of tier {kit.tier} ({one_line(str(error), 120)})")
    return found


def complaints() -> tuple[list[str], list[str]]:
    """Return the doctor's findings for this machine as (failures, warnings)."""
    from grader import doctor

    found = doctor.findings(steadiness=False)
    names = {
        level: [one_line(each.what, 100) for each in found if each.level == level]
        for level in ("fail", "warn")
    }
    return names["fail"], names["warn"]
