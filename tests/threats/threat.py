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
    """One attempt. `row` is its row in THREATS.md, "" for a control.

    `body` are the statements of a kernel (see `threats.sources.PRELUDE` for the names it has), `top` stands before all
    functions, `source` replaces the whole file. `{name}` of `judging.places` (the reference library, a secret file, a
    folder for leftovers) is filled in. `part` names the part whose kernel this must be. `timed` rows are measured as
    well. `open_end` is the end in tier D, which only limits time and memory. `files` lie beside module.cpp. `calls`
    names what functions it calls that no kernel needs: such rows share files only among themselves, since an object
    is flagged as a whole.
    """

    row: str
    name: str
    end: End
    body: str = ""
    top: str = ""
    source: str = ""
    part: str = ""
    timed: bool = False
    shape: Mapping[str, int] = field(default_factory=dict)
    open_end: End | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    calls: str = ""

    def end_in(self, tier: str) -> End:
        return self.open_end if tier == "D" and self.open_end is not None else self.end

    @property
    def has_own_file(self) -> bool:
        return bool(self.top or self.source or self.files)
