"""Weaknesses of this machine: containment, timings, missing tools, and the remedy for each.

The model was isolate-check-environment, the check program of the sandbox `isolate`. The doctor changes nothing: the
machine's owner applies the remedies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from grader.core.commandline import Parser, add_lab
from grader.core.errors import EXIT_KIT, EXIT_PASS
from grader.core.places import GRADER_COMMAND, PUBLIC_CONFIG
from grader.doctor.host import Finding, Host

__all__ = ["Finding", "Host", "findings", "main"]

MARKS = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL"}


def findings(host: Host | None = None, *, steadiness: bool = True) -> tuple[Finding, ...]:
    """Return the findings on this machine, or on a machine that a test simulates (`host`). Takes a few seconds.

    On a simulated machine, no sandbox is tried and nothing is timed. `steadiness`: also time the reference against
    itself.
    """
    return tuple(finding for _, found in sections(host, steadiness=steadiness) for finding in found)


def sections(
    host: Host | None, *, steadiness: bool, config: Path = PUBLIC_CONFIG
) -> Iterator[tuple[str, Iterable[Finding]]]:
    """Yield (heading, its findings) for each group of checks. A group's checks run when it is requested.

    `steadiness`: also time the reference of the assignment `config` against itself.
    """
    from grader.doctor import containment, timing, tools

    here = host or Host(threads=_threads(config))
    yield "tools", tools.findings(here)
    tier = [containment.tier()] if host is None else []
    yield "containment", [*containment.findings(here), *tier]
    yield "timing", timing.findings(here)
    if steadiness and host is None:
        yield "steadiness", timing.steadiness(config)


def _threads(config: Path) -> int:
    from grader.assignment.loading import load

    return load(config).defaults.get("threads", 1)


def main(arguments: list[str]) -> int:
    """Run `python -m grader doctor`. Returns 0 if no finding is a failure (warnings are not), else 3."""
    parse = Parser(prog=f"{GRADER_COMMAND} doctor", description=(__doc__ or "").splitlines()[0])
    parse.add_argument("--quick", action="store_true", help="leave out the timing of the reference")
    parse.path("--config", "the assignment", default=PUBLIC_CONFIG)
    add_lab(parse)
    given = parse.parse_args(arguments)
    counts = show(sections(None, steadiness=not given.quick, config=given.config))
    print(f"{counts['ok']} ok, {counts['warn']} warnings, {counts['fail']} must be fixed")
    return EXIT_KIT if counts["fail"] else EXIT_PASS


def show(found: Iterable[tuple[str, Iterable[Finding]]]) -> Counter[str]:
    """Print the findings below their headings. Return the number of findings by level ("ok", "warn", "fail")."""
    counts: Counter[str] = Counter()
    for heading, findings in found:
        print(heading)
        for finding in findings:
            counts[finding.level] += 1
            lines = [f"  {MARKS[finding.level]}  {finding.what}"]
            lines += [f"        {finding.why}"] if finding.why else []
            lines += [f"        -> {finding.remedy}"] if finding.remedy else []
            print("\n".join(lines), flush=True)
    return counts
