"""Merging of assignment files. The key `extends` of a staff-only file names the file below it, which students get.

A file with `extends` holds only the differences. Its lists and single values replace those of the file below. Its
mappings (`limits`, `defaults`, ...) are merged key by key. Its parts are merged by id, or added.
"""

from __future__ import annotations

import errno
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import yaml

from grader.assignment.yamlnode import MOST_BYTES, Node, compose
from grader.core.errors import UsageError

DEEPEST = 8
STAFF_KEYS = ("seed", "hidden_cases")
"""Keys refused in a file without `extends`: students get that file."""


@dataclass(frozen=True)
class Layered:
    """The merged document (`root`), its files in order (each extends the next), and the SHA-256 of their bytes."""

    root: Node
    files: tuple[Path, ...]
    sha256: str


def read(path: Path) -> Layered:
    """Read a file and all files that it extends. Raises UsageError with file and line."""
    files: list[Path] = []
    digest = hashlib.sha256()
    root = _read(path, None, files, digest)
    return Layered(root, tuple(files), digest.hexdigest())


def are_assignments(path: Path) -> bool:
    """Return True if `path` and the files that it extends are YAML, and the last of them has an assignment's keys.

    Also returns True for a circular or too long chain of files, because `read` reports it.
    """
    seen: set[Path] = set()
    while path not in seen and len(seen) < DEEPEST:
        seen.add(path)
        try:
            entries = compose(_content(path), path).entries("the assignment")
            if "extends" not in entries:
                return "schema_version" in entries and "parts" in entries
            path = _below(path, entries["extends"][1])
        except (OSError, ValueError, UsageError):
            return False
    return True


def _below(path: Path, link: Node) -> Path:
    return Path(os.path.normpath(path.parent / link.text("extends", wanted="the path of a file")))


def _content(path: Path) -> bytes:
    """Read a file's first MOST_BYTES + 1 bytes. Raises OSError, also for a pipe or a device."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "a pipe or a device, not a file")
    with path.open("rb") as file:
        return file.read(MOST_BYTES + 1)


def _read(path: Path, reached: Node | None, files: list[Path], digest: hashlib._Hash) -> Node:
    """Read a file, merge it with the file that it extends, and return the root node. `reached`: the `extends` node that
    names `path`, or None. Append the path to `files`, and add the content to `digest`."""
    try:
        data = _content(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        if reached is not None:
            raise reached.fail(f"extends: cannot read {path}: {reason}") from error
        raise UsageError(f"cannot read the assignment {path}: {reason}") from error
    files.append(path)
    digest.update(len(data).to_bytes(8, "big") + data)
    root = compose(data, path)
    entries = root.entries("the assignment")
    _refuse_unused_lists(root)
    if "extends" not in entries:
        _refuse_staff_keys(root)
        return root
    _, link = entries["extends"]
    below = _below(path, link)
    if below.resolve() in {file.resolve() for file in files}:
        raise link.fail(
            f"extends: {below} extends this file, directly or through others; remove one of the 'extends'"
        )
    if len(files) >= DEEPEST:
        raise link.fail(f"extends: more than {DEEPEST} files extend one another in a chain")
    return _merged(_read(below, link, files, digest), root)


def _parts_of(root: Node) -> list[Node]:
    """Return the parts that are mappings. A part of another type is reported later."""
    _, parts = root.entries("the assignment").get("parts", (root, root))
    if not isinstance(parts.node, yaml.SequenceNode):
        return []
    return [part for part in parts.items("parts") if part.is_mapping()]


def _refuse_unused_lists(root: Node) -> None:
    """Raise UsageError for a `..._cases` list that no part refers to: its key is probably misspelt."""
    used = {id(value.node) for part in _parts_of(root) for _, value in part.entries("a part").values()}
    for key, (at_key, value) in root.entries("the assignment").items():
        if key.endswith("_cases") and key != "hidden_cases" and id(value.node) not in used:
            raise at_key.fail(
                f"unknown key {at_key.shown()}: no part uses it (write &NAME before the list, and *NAME in a part)"
            )


def _refuse_staff_keys(root: Node) -> None:
    for holder in (root, *_parts_of(root)):
        found = holder.entries("the assignment" if holder is root else "a part")
        for key in STAFF_KEYS if holder is root else ("hidden_cases",):
            if key in found:
                raise found[key][0].fail(
                    f"'{key}' is for the staff alone: it belongs in a file that extends this one (configs/hidden/)"
                )


def _mapping(pairs: dict[str, tuple[Node, Node]], at: Node) -> Node:
    value = [(key.node, item.node) for key, item in pairs.values()]
    return Node(yaml.MappingNode(at.node.tag, value, at.node.start_mark, at.node.end_mark))


def _merged(below: Node, above: Node) -> Node:
    result = below.entries("the assignment")
    for key, (at_key, value) in above.entries("the assignment").items():
        if key == "extends":
            continue
        if key in result and key == "parts":
            value = _merged_parts(result[key][1], value)
        elif key in result and value.is_mapping() and result[key][1].is_mapping():
            value = _mapping({**result[key][1].entries(key), **value.entries(key)}, value)
        result[key] = (at_key, value)
    return _mapping(result, above)


def _merged_parts(below: Node, above: Node) -> Node:
    parts = {_id_of(part): part for part in below.items("parts")}
    seen: set[str] = set()
    for part in above.items("parts"):
        part_id = _id_of(part)
        if part_id in seen:
            raise part.fail(f"two parts are called '{part_id}'")
        seen.add(part_id)
        if part_id in parts:
            part = _mapping({**parts[part_id].entries("a part"), **part.entries("a part")}, part)
        elif len(part.entries("a part")) == 2 and "hidden_cases" in part.entries("a part"):
            raise part.fail(f"no part is called '{part_id}'; known: {', '.join(parts)}")
        parts[part_id] = part
    nodes = [part.node for part in parts.values()]
    return Node(yaml.SequenceNode(above.node.tag, nodes, above.node.start_mark, above.node.end_mark))


def _id_of(part: Node) -> str:
    entries = part.entries("a part")
    if "id" not in entries:
        raise part.fail("a part lacks the key 'id'")
    return entries["id"][1].text("id")
