"""The rooms of the house, and the picture of who imports whom that docs/design.md shows.

    python -m grader.release.rooms      draws docs/rooms.svg anew

Rooms stand in the order in which data passes them: a module may import its own room and those before it, and no other.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from grader.release import imports
from grader.release.imports import Import

PICTURE = Path("docs") / "rooms.svg"

#: Each room and its modules; a package stands for all of it that is named nowhere else, and `grader.` is left out.
ROOMS: dict[str, tuple[str, ...]] = {
    "basics": (
        *("errors", "harmless", "results", "commandline", "machine", "orphans", "prebuilt", "seeds", "names"),
        *("removal", "plainfile", "procfs", "typedjson", "arrays"),
    ),
    "assignment": ("assignment", "yamlnode", "layers", "expressions", "rubric", "manual", "regions"),
    "submission": ("submission", "archive"),
    "toolchain": ("toolchain",),
    "sandbox": ("sandbox",),
    "build": (
        *("build", "compilers", "nativebuild", "ispc", "lightpath", "objectcache", "cpptext", "diagnostics"),
        *("placemark", "hints", "sanitize", "standin"),
    ),
    "runner": ("runner", "nursery"),
    "session": (
        "session",
        "calls",
        "stopping",
        "zygote",
        "nativehost",
        "ends",
        "frames",
        "watch",
        "placement",
    ),
    "reference": ("module_ref_stub",),
    "cases": ("cases", "draws", "oracle", "questions", "binding"),
    "diagnose": (
        *("diagnose", "patterns", "suspects", "fitting", "relations", "offsets", "scene"),
        "faults",
    ),
    "measure": ("measure",),
    "profile": ("profile", "looks"),
    "integrity": ("integrity", "inspection", "elf", "symbols"),
    "score": ("score",),
    "ladder": ("ladder", "yardsticks"),
    "judge": ("judge", "bench", "events", "evaluate", "making", "marking", "memory", "rounds"),
    "report": ("report",),
    "classroom": (
        *("classroom", "grading", "executor", "worker", "slot", "ledger", "fingerprints", "gradebook"),
        *("times", "byhand", "resuming", "solo", "gradescope", "waiting"),
    ),
    "similar": ("similar", "tokens", "passages", "agreement", "report.similar_html"),
    "doctor": ("doctor",),
    "writeup": ("writeup",),
    "study": ("study", "frontier"),
    "textgen": ("textgen",),
    "selftest": ("selftest",),
    "release": ("release",),
    "command lines": ("gpt149", "__main__"),
}
#: The untrusted side: its files are handed to an interpreter that sees nothing else of the kit.
ALONE = ("grader.runner", "grader.nursery", "grader.sandbox.lock", "grader.removal")


def room_of(module: str) -> str:
    """The room that a module lies in. Raises KeyError for one that has none."""
    name = module.removeprefix("grader.")
    fitting = [
        (len(member), room)
        for room, members in ROOMS.items()
        for member in members
        if name == member or name.startswith(f"{member}.")
    ]
    if fitting:
        return max(fitting)[1]
    raise KeyError(f"{module} lies in no room: name it in ROOMS of {Path(__file__).name}")


def between_rooms(found: Iterable[Import]) -> list[tuple[str, str, Import]]:
    """(importing room, imported room, import) of every import that leaves its room. `grader` itself is no room, and an
    import that only a type checker makes is none."""
    edges = []
    for each in found:
        if each.typing or "grader" in (each.importer, each.imported):
            continue
        here, there = room_of(each.importer), room_of(each.imported)
        if here != there:
            edges.append((here, there, each))
    return edges


def upward(found: Iterable[Import]) -> list[Import]:
    """Imports of a room that comes later: data would go up."""
    order = list(ROOMS)
    return [each for here, there, each in between_rooms(found) if order.index(there) > order.index(here)]


# ---- the picture

_CELL, _LEFT, _TOP = 22, 118, 112


def picture(found: Iterable[Import]) -> str:
    """The matrix of imports as SVG: a row for each room, a dot under each room that it imports."""
    edges = {(here, there) for here, there, _ in between_rooms(found)}
    order = list(ROOMS)
    size = _CELL * len(order)
    width, height = _LEFT + size + 60, _TOP + size + 34
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<path d="M{_LEFT} {_TOP} l{size} {size} l{-size} 0 z" fill="#f1f5f9"/>',
    ]
    for at, room in enumerate(order):
        middle = at * _CELL + _CELL // 2
        lines += [
            f'<text x="{_LEFT - 8}" y="{_TOP + middle + 4}" text-anchor="end">{room}</text>',
            f'<text transform="translate({_LEFT + middle + 4} {_TOP - 8}) rotate(-60)">{room}</text>',
            f'<path d="M{_LEFT} {_TOP + middle} h{size} M{_LEFT + middle} {_TOP} v{size}" stroke="#e2e8f0"/>',
        ]
    for row, column in sorted((order.index(here), order.index(there)) for here, there in edges):
        x, y = _LEFT + column * _CELL + _CELL // 2, _TOP + row * _CELL + _CELL // 2
        colour = "#2563eb" if column < row else "#dc2626"
        told = f"{order[row]} imports {order[column]}"
        lines.append(f'<circle cx="{x}" cy="{y}" r="5" fill="{colour}"><title>{told}</title></circle>')
    lines.append(
        f'<text x="{_LEFT}" y="{_TOP + size + 22}" fill="#475569">A row imports the rooms under '
        "its dots. None lies above the diagonal.</text>"
    )
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    root = Path(__file__).resolve().parents[2]
    (root / PICTURE).write_text(picture(imports.graph(root)), encoding="utf-8")
    print(f"drew {root / PICTURE}")
