"""A lab's reference in the form of a student's file: `reference.cpp` in the lab's folder, built like a student's file.

A handout holds the compiled object in place of the source. A lab's studies may compare the student's kernel with other
kernels of this form, which are built and handed out in the same way.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from grader.assignment.labs import Platform
from grader.backends.native import nativebuild
from grader.backends.native.toolchain import toolchain
from grader.backends.torch import torchbuild
from grader.core import objectcache
from grader.core.errors import KitError
from grader.core.places import ROOT

SOURCE, PREBUILT = "reference.cpp", "prebuilt"


class SourceReference:
    """The reference of a lab in `folder`. `assignment.labs.Reference` describes its methods.

    `source` is compiled with `flags` after the kit's own flags. `level` is added to the object's name in a handout, to
    distinguish objects that are compiled from one source with different flags. `others` are further sources, whose
    objects are handed out together with this one.
    """

    def __init__(
        self,
        folder: Path,
        source: str = SOURCE,
        *,
        level: str = "",
        flags: Sequence[str] = (),
        others: Sequence[SourceReference] = (),
    ) -> None:
        self.folder, self.source, self.flags, self.others = folder, folder / source, tuple(flags), others
        self.stem = f"lib{self.source.stem}{f'_{level}' if level else ''}"

    @functools.cached_property
    def _native(self) -> nativebuild.NativeBuild:
        made = nativebuild.build(self.source, flags=self.flags)
        if not made.ok:
            raise KitError(f"the staff's {self.source} does not compile: {made.diagnostics.splitlines()[0]}")
        return made

    def program(self) -> Path:
        if self.source.is_file():
            made = self._native.program
            assert made is not None
            return made
        return nativebuild.linked(
            objectcache.prebuilt(self.folder / PREBUILT, self.stem, f"compiled {self.source.stem}")
        )

    def for_torch(self) -> tuple[Literal["student"], Path] | None:
        if not self.source.is_file():
            return None
        made = torchbuild.build(self.source, flags=self.flags)
        if made.object_path is None:
            raise KitError(
                f"the staff's {self.source} does not compile with torch: {made.diagnostics.splitlines()[0]}"
            )
        return "student", made.object_path

    def sources(self) -> list[Path]:
        own = [self.source] if self.source.is_file() else []
        return list(dict.fromkeys([*own, *(path for other in self.others for path in other.sources())]))

    def compiled(self, folder: Path, compilers: Mapping[Platform, str]) -> dict[str, Path]:
        """Write the objects for this platform to `folder`. Return their files by the objects' paths in the kit.

        Objects for another platform must be made on a machine of that platform.
        """
        tools, found = toolchain(), self._native.object_path
        assert found is not None
        made = folder / objectcache.prebuilt_name(self.stem, tools.system, tools.machine)
        # Students get this object: remove local names, which would show the structure of the source.
        nativebuild.joined(found, made)
        place = (
            self.folder.relative_to(ROOT)
            if self.folder.is_relative_to(ROOT)
            else Path("labs", self.folder.name)
        )
        objects = {(place / PREBUILT / made.name).as_posix(): made}
        for other in self.others:
            objects |= other.compiled(folder, compilers)
        return objects
