"""The rooms of the house, and the picture of who imports whom that docs/design.md shows.

    python -m grader.staff.release.rooms      draws docs/rooms.svg anew

A room is a folder of `grader/`, and what its modules are follows from where they lie. Rooms stand in the order in which
data passes them: a module may import its own room and those before it, and no other.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from grader.base import imports
from grader.base.imports import Import

PICTURE = Path("docs") / "rooms.svg"
#: Folders beside `grader/` and command lines, as rooms of their own.
BESIDE = {
    "module_ref_stub": "reference",
    "textgen": "textgen",
    "labs": "labs",
    "gpt149": "command lines",
    "grader.__main__": "command lines",
}
ORDER = (
    *("base", "assignment", "submission", "sandbox", "build", "run", "reference", "judge", "score", "report"),
    *("study", "labs", "textgen", "doctor", "staff", "command lines"),
)
#: The untrusted side: its files are handed to an interpreter that sees nothing else of the kit.
ALONE = (
    *("grader.run.runner", "grader.run.loaded", "grader.run.delays", "grader.run.forkserver"),
    *("grader.run.devicerunner", "grader.run.kernelfiles", "grader.run.tensormemory"),
    *("grader.sandbox.lock", "grader.base.removal"),
)


def room_of(module: str) -> str:
    """The room that a module lies in. Raises KeyError for one that has none."""
    package, *inside = module.split(".")
    found = BESIDE.get(module) or BESIDE.get(package) or (inside[0] if inside else "")
    if found not in ORDER:
        raise KeyError(f"{module} lies in no room: name it in ORDER of {Path(__file__).name}")
    return found


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
    order = ORDER
    return [each for here, there, each in between_rooms(found) if order.index(there) > order.index(here)]


# ---- the picture

_CELL, _LEFT, _TOP = 22, 118, 112


def picture(found: Iterable[Import]) -> str:
    """The matrix of imports as SVG: a row for each room, a dot under each room that it imports."""
    edges = {(here, there) for here, there, _ in between_rooms(found)}
    order = ORDER
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
    root = Path(__file__).resolve().parents[3]
    (root / PICTURE).write_text(picture(imports.graph(root)), encoding="utf-8")
    print(f"drew {root / PICTURE}")
