"""One attempt as data: what the code does, and how it must end in a strong sandbox and in the weakest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class End:
    """`verdicts` are the acceptable ones. One of the flags `flags` (codes) must be raised where there are any; without
    them the part must carry no flag for people at all, unless `any_flag` says that a sign of suspicion is welcome.
    `silent` are texts that must appear nowhere in the result, `says` one that must be in what the kernel printed or in
    the diagnosis."""

    verdicts: tuple[str, ...]
    flags: tuple[str, ...] = ()
    any_flag: bool = False
    silent: tuple[str, ...] = ()
    says: str = ""


@dataclass(frozen=True)
class Threat:
    """One attempt. `row` is the kind of attempt, "" for a control.

    `body` are the statements of a kernel (see `sources.PRELUDE` for the names it has), `top` stands before all
    functions, `binds` behind the file's other bindings, `source` replaces the whole file. `{name}` of
    `judging.places` (the reference library, a secret file, a name for leftovers) is filled in. It is judged as
    `part` of the assignment is; `timed` rows are measured as well. `open_end` is the end in tier D, where a
    compiler sees the judge's files. `files` lie beside module.cpp; `build_s` is what compilers may take. `calls`
    names what functions it calls that no kernel needs: such rows share files only among themselves, since an object
    is flagged as a whole. `alone` rows share with none. `beside` is a part of the file that is judged first, by its
    own name. `wall_s` is what judging the file may take, 0 for no limit.
    """

    row: str
    name: str
    end: End
    body: str = ""
    top: str = ""
    binds: str = ""
    source: str = ""
    part: str = "part1"
    timed: bool = False
    open_end: End | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    calls: str = ""
    build_s: float = 60.0
    alone: bool = False
    beside: str = ""
    wall_s: float = 0.0

    def end_in(self, tier: str) -> End:
        return self.open_end if tier == "D" and self.open_end is not None else self.end

    @property
    def has_own_file(self) -> bool:
        return bool(self.alone or self.source or self.files)

    @property
    def depends_on_tier(self) -> bool:
        """Return True if a sandbox is what answers it."""
        return self.row >= "C" or self.open_end is not None
