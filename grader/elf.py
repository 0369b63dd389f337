"""What a shared object says about itself: the functions it wants from elsewhere, the libraries it names, its texts.

A small reader of ELF files (System V gABI, chapters 4 and 5; symbol versions as in the Linux Standard Base), so that
nothing depends on binutils. Objects come from a compiler that worked on untrusted text: a damaged one is an error.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_PROGBITS, _DYNAMIC, _DYNSYM, _VERSYM = 1, 6, 11, 0x6FFFFFFF
_ALLOCATED, _EXECUTABLE = 2, 4
_NEEDED = 1
_UNDEFINED_SECTION = 0
#: Version indices below this mean "local" and "global": the symbol has no version.
_FIRST_VERSION = 2


class NotReadable(ValueError):
    """The file is no ELF object for a 64-bit little-endian machine, or is damaged."""


@dataclass(frozen=True)
class Wanted:
    """A symbol that the object expects others to define. The C and C++ libraries give their symbols versions."""

    name: str
    versioned: bool


@dataclass(frozen=True)
class SharedObject:
    """`wanted` in the order of the symbol table; `needed` are names of libraries; `data` are the bytes of all
    sections that hold constants and variables."""

    wanted: tuple[Wanted, ...]
    needed: tuple[str, ...]
    data: bytes


@dataclass(frozen=True)
class _Section:
    kind: int
    flags: int
    link: int
    content: bytes


def is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def read(path: Path) -> SharedObject:
    """Read an object. Raises NotReadable when it makes no sense, OSError when the file cannot be read."""
    image = path.read_bytes()
    try:
        sections = _sections(image)
        return SharedObject(
            wanted=_wanted(sections),
            needed=_needed(sections),
            data=b"\0".join(
                s.content
                for s in sections
                if s.kind == _PROGBITS and s.flags & _ALLOCATED and not s.flags & _EXECUTABLE
            ),
        )
    except (struct.error, IndexError, ValueError) as error:
        raise NotReadable(f"{path.name} is no complete ELF object: {error}") from error


def _sections(image: bytes) -> list[_Section]:
    if image[:6] != b"\x7fELF\x02\x01":
        raise NotReadable("not an ELF object of 64 bits, little endian")
    (table,) = struct.unpack_from("<Q", image, 40)
    size, count = struct.unpack_from("<HH", image, 58)
    found = []
    for k in range(count):
        _, kind, flags, _, offset, length, link, _, _, _ = struct.unpack_from(
            "<IIQQQQIIQQ", image, table + k * size
        )
        # A section without bytes in the file (.bss) has a length all the same.
        content = b"" if kind == 8 else image[offset : offset + length]
        if kind != 8 and len(content) != length:
            raise NotReadable("a section lies beyond the end of the file")
        found.append(_Section(kind, flags, link, content))
    return found


def _wanted(sections: list[_Section]) -> tuple[Wanted, ...]:
    versions = next((s.content for s in sections if s.kind == _VERSYM), b"")
    found = []
    for table in (s for s in sections if s.kind == _DYNSYM):
        names = sections[table.link].content
        for k, (name, _, _, section, _, _) in enumerate(struct.iter_unpack("<IBBHQQ", table.content)):
            if section != _UNDEFINED_SECTION or name == 0:
                continue
            version = struct.unpack_from("<H", versions, 2 * k)[0] & 0x7FFF if versions else 0
            found.append(Wanted(_text(names, name), version >= _FIRST_VERSION))
    return tuple(found)


def _needed(sections: list[_Section]) -> tuple[str, ...]:
    return tuple(
        _text(sections[table.link].content, value)
        for table in sections
        if table.kind == _DYNAMIC
        for tag, value in struct.iter_unpack("<qQ", table.content)
        if tag == _NEEDED
    )


def _text(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(b"\0", offset)].decode() if offset < len(strings) else ""
