"""Reader of ELF objects: the functions that an object imports, the libraries that it needs, and its data.

The reader follows the System V gABI (chapters 4 and 5) and, for symbol versions, the Linux Standard Base. It needs no
binutils. Objects are compiled from untrusted text, which can name sections, choose their types and make any number of
them. So the symbols of a linked object are read from the tables that the loader uses, to which the dynamic segment
points. Only the section table gives the number of symbols, so its addresses must agree with the dynamic segment.
Sections must not overlap. An object that is not linked yet has no segments: its only symbol table is read.
Reading raises an error if an object is damaged or not wholly understood. The time is linear in the object's size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

LARGEST_BYTES = 64 << 20
"""Size in bytes of the largest object that is read. Builds have a limit of their own (`BuildOptions.object_bytes`)."""
LONGEST_NAME = 4096
"""Most bytes of a symbol's name that are kept. The longest names of torch have 600."""
MOST_WANTED, MOST_NAMES_BYTES = 20_000, 2 << 20
"""Limits on the number of undefined symbols and on the bytes of all their names. A kernel has some hundred symbols with
30 KB of names. Names may overlap in the file: without a limit they could grow with the square of the file's size."""
MOST_SEGMENTS = 256

_SHT_NULL, _SHT_SYMTAB, _SHT_DYNAMIC, _SHT_NOBITS, _SHT_DYNSYM, _SHT_VERSYM = 0, 2, 6, 8, 11, 0x6FFFFFFF
_RELOCATABLE = 1
_ALLOCATED, _EXECUTABLE = 2, 4
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_VERSYM = 0, 1, 5, 6, 10, 0x6FFFFFF0
_UNDEFINED_SECTION = 0
_SECTION, _SEGMENT, _SYMBOL = (
    struct.Struct("<IIQQQQIIQQ"),
    struct.Struct("<IIQQQQQQ"),
    struct.Struct("<IBBHQQ"),
)
#: Smallest version index of a symbol with a version. Indices 0 and 1 mean "local" and "global".
_FIRST_VERSION = 2


class NotReadable(ValueError):
    """Raised for a damaged file, and for a file that is not a 64-bit little-endian ELF object."""


@dataclass(frozen=True)
class UndefinedSymbol:
    """A symbol that the object uses but does not define. `name` is cut to LONGEST_NAME bytes.

    `versioned`: True if the symbol has a version, such as GLIBC_2.34. Symbols of the C and C++ libraries have one.
    """

    name: str
    versioned: bool


@dataclass(frozen=True)
class SharedObject:
    """Content of an ELF object.

    `wanted` are its undefined symbols, in the order of its symbol table. `needed` are the file names of the libraries
    that it needs. `data` are the bytes of the sections that are loaded and neither code nor the names of symbols.
    """

    wanted: tuple[UndefinedSymbol, ...]
    needed: tuple[str, ...]
    data: bytes


@dataclass(frozen=True)
class _Section:
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


@dataclass(frozen=True)
class _Dynamic:
    """The dynamic segment, which the loader reads.

    `needed` are the offsets of the needed libraries' names in the string table. `values` maps each entry's tag
    (DT_...) to its value.
    """

    address: int
    needed: tuple[int, ...]
    values: dict[int, int]


def is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def read(path: Path) -> SharedObject:
    """Read an object file. Raises NotReadable if it is damaged or too large, OSError if the file cannot be read."""
    size = path.stat().st_size
    if size > LARGEST_BYTES:
        raise NotReadable(f"{path.name} has {size >> 20} MiB, more than {LARGEST_BYTES >> 20}")
    try:
        return parse(path.read_bytes())
    except NotReadable as error:
        raise NotReadable(f"{path.name} is not a complete ELF object: {error}") from error


def parse(image: bytes) -> SharedObject:
    """Read an object from its bytes. Raises NotReadable if it is damaged."""
    try:
        return _parse(image)
    except (struct.error, IndexError, OverflowError) as error:
        raise NotReadable(str(error)) from error


def _parse(image: bytes) -> SharedObject:
    if image[:6] != b"\x7fELF\x02\x01":
        raise NotReadable("not an ELF object of 64 bits, little endian")
    if struct.unpack_from("<H", image, 16)[0] == _RELOCATABLE:
        return _parse_relocatable(image)
    segments = _segments(image)
    sections = _sections(image)
    dynamic = _dynamic(image, segments)
    symbols, strings, versions = _tables(sections, dynamic)
    names = _bytes_at(image, segments, strings.address, strings.size)
    return SharedObject(
        wanted=tuple(
            _wanted(
                _bytes_at(image, segments, symbols.address, symbols.size),
                names,
                _bytes_at(image, segments, versions.address, versions.size) if versions else b"",
            )
        ),
        needed=tuple(_text(names, offset) for offset in dynamic.needed),
        data=_loaded_data(image, [one for one in sections if one is not strings]),
    )


def _parse_relocatable(image: bytes) -> SharedObject:
    """Read an object that is not linked yet (type ET_REL). Its symbols have no versions, and it names no library."""
    sections = _sections(image)
    symbols = _only([one for one in sections if one.kind == _SHT_SYMTAB], "table of symbols")
    strings = sections[symbols.link]
    names, table = (image[one.offset : one.offset + one.size] for one in (strings, symbols))
    return SharedObject(tuple(_wanted(table, names, b"")), (), _loaded_data(image, sections))


def _loaded_data(image: bytes, sections: list[_Section]) -> bytes:
    """Return the bytes of all loaded sections that are not code, joined by zero bytes."""
    return b"\0".join(
        image[one.offset : one.offset + one.size]
        for one in sections
        if one.kind not in (_SHT_NULL, _SHT_NOBITS) and one.flags & _ALLOCATED and not one.flags & _EXECUTABLE
    )


def _segments(image: bytes) -> list[_Segment]:
    (table,) = struct.unpack_from("<Q", image, 32)
    size, count = struct.unpack_from("<HH", image, 54)
    if size != _SEGMENT.size or not 0 < count <= MOST_SEGMENTS:
        raise NotReadable(f"{count} segments of {size} bytes")
    found = []
    for k in range(count):
        kind, _, offset, address, _, size_in_file, _, _ = _SEGMENT.unpack_from(image, table + k * size)
        if kind in (_PT_LOAD, _PT_DYNAMIC) and offset + size_in_file > len(image):
            raise NotReadable("a segment lies beyond the end of the file")
        found.append(_Segment(kind, offset, address, size_in_file))
    return found


def _sections(image: bytes) -> list[_Section]:
    """Return all sections. Raises NotReadable if two sections overlap: no linker writes such a file."""
    (table,) = struct.unpack_from("<Q", image, 40)
    size, count = struct.unpack_from("<HH", image, 58)
    if table == 0 or size != _SECTION.size:
        raise NotReadable("no section table")
    if count == 0:
        # 65,280 or more sections do not fit into the header's field. Their number is in section 0's size field.
        count = _SECTION.unpack_from(image, table)[5]
    if count == 0 or table + count * size > len(image):
        raise NotReadable(f"{count} sections, which the file does not hold")
    found = []
    for _, kind, flags, address, offset, length, link, _, _, _ in _SECTION.iter_unpack(
        image[table : table + count * size]
    ):
        found.append(_Section(kind, flags, address, offset, length, link))
    end = 0
    # Section 0 (a placeholder) and .bss (only a length) have no bytes in the file that could overlap.
    for one in sorted(
        (s for s in found if s.kind not in (_SHT_NULL, _SHT_NOBITS) and s.size), key=lambda s: s.offset
    ):
        if one.offset < end:
            raise NotReadable("two sections overlap")
        end = one.offset + one.size
    if end > len(image):
        raise NotReadable("a section lies beyond the end of the file")
    return found


def _dynamic(image: bytes, segments: list[_Segment]) -> _Dynamic:
    segment = _only([one for one in segments if one.kind == _PT_DYNAMIC], "dynamic segment")
    needed, values = [], {}
    entries = image[segment.offset : segment.offset + segment.size // 16 * 16]
    for tag, value in struct.iter_unpack("<qQ", entries):
        if tag == _DT_NULL:
            break
        if tag == _DT_NEEDED:
            needed.append(value)
        values[tag] = value
    if len(needed) > MOST_SEGMENTS:
        raise NotReadable(f"{len(needed)} libraries")
    return _Dynamic(segment.address, tuple(needed), values)


def _tables(sections: list[_Section], dynamic: _Dynamic) -> tuple[_Section, _Section, _Section | None]:
    """Return the sections with the symbols, the symbols' names, and the symbols' versions (None if missing).

    Raises NotReadable if the dynamic segment points to other tables than the section table.
    """
    own = _only([s for s in sections if s.kind == _SHT_DYNAMIC], "dynamic section")
    symbols = _only([s for s in sections if s.kind == _SHT_DYNSYM], "table of symbols")
    strings = sections[symbols.link]
    versions = [s for s in sections if s.kind == _SHT_VERSYM]
    loaded_versions = [value for tag, value in dynamic.values.items() if tag == _DT_VERSYM]
    agree = (
        own.address == dynamic.address
        and symbols.address == dynamic.values.get(_DT_SYMTAB)
        and (strings.address, strings.size) == (dynamic.values.get(_DT_STRTAB), dynamic.values.get(_DT_STRSZ))
        and [one.address for one in versions] == loaded_versions
    )
    if not agree:
        raise NotReadable("its section headers name other symbol tables than those that the loader uses")
    return symbols, strings, versions[0] if versions else None


def _wanted(symbols: bytes, names: bytes, versions: bytes) -> Iterator[UndefinedSymbol]:
    count = names_bytes = 0
    for k, (name, _, _, section, _, _) in enumerate(_SYMBOL.iter_unpack(symbols)):
        if section != _UNDEFINED_SECTION or name == 0:
            continue
        version = struct.unpack_from("<H", versions, 2 * k)[0] & 0x7FFF if versions else 0
        wanted = UndefinedSymbol(_text(names, name), version >= _FIRST_VERSION)
        count, names_bytes = count + 1, names_bytes + len(wanted.name)
        if count > MOST_WANTED or names_bytes > MOST_NAMES_BYTES:
            raise NotReadable("more undefined symbols than any kernel needs")
        yield wanted


def _only(found: list[T], what: str) -> T:
    if len(found) != 1:
        raise NotReadable(f"{len(found) or 'no'} {what}{'s' if found else ''}")
    return found[0]


def _bytes_at(image: bytes, segments: list[_Segment], address: int, size: int) -> bytes:
    """Return the `size` bytes that the loader maps at `address`. Raises NotReadable if no loaded segment has them."""
    for one in segments:
        if one.kind == _PT_LOAD and one.address <= address and address + size <= one.address + one.size:
            start = one.offset + address - one.address
            return image[start : start + size]
    raise NotReadable("a table lies outside of the loaded segments")


def _text(strings: bytes, offset: int) -> str:
    """Return the zero-terminated name at `offset` in `strings`, cut to LONGEST_NAME bytes.

    Raises NotReadable if neither the zero byte nor LONGEST_NAME bytes follow.
    """
    end = strings.find(b"\0", offset, offset + LONGEST_NAME)
    if end < 0:
        end = offset + LONGEST_NAME
        if end > len(strings):
            raise NotReadable("a name that does not end")
    return strings[offset:end].decode(errors="replace")
