"""The four steps of a release: collect the files, search them for secrets, test the archives, write them."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from grader.assignment import labs
from grader.core import wholefile
from grader.core.errors import KitError, UsageError, explained
from grader.staff.release import contents, products, proofs, search
from grader.staff.release.contents import Kit, packed
from grader.staff.release.products import Made
from grader.study import helpers

_BOUND = re.compile(r'^\s*m\.def\(\s*"(\w+)"', re.MULTILINE)
#: Cross compilers for other platforms, used if they are installed.
CROSS_COMPILERS = {("Linux", "aarch64"): "aarch64-linux-gnu-g++", ("Linux", "x86_64"): "x86_64-linux-gnu-g++"}


def release(
    kit: Kit, out: Path, references: Sequence[Path], say: Callable[[str], None], platform: str = "gradescope"
) -> tuple[Path, ...]:
    """Write all files of a platform's release into `out`, or none. `references` are objects compiled on other machines.

    Raises UsageError, in one line, for the first fault, and KitError if this machine cannot build or judge.
    """
    product = products.PRODUCTS[platform]
    place = products.place(platform, out)
    if place is not None and place.exists():
        raise UsageError(f"{place} exists already: remove it, or name another folder with --out")
    with tempfile.TemporaryDirectory(prefix="gpt149-release-", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder)
        refuse_unnamed(kit)
        # Report secrets in texts before the slow compilation.
        search.refuse(contents.handout(kit, {}) | product.in_handout(kit), kit)
        handout = contents.handout(kit, prebuilt(kit, scratch, references, say)) | product.in_handout(kit)
        search.refuse(handout, kit)
        say(f"searched {len(handout)} files: no line of the solution or reference and no hidden seed")
        made = product.rest(kit, packed(handout))
        bench = proofs.ProofSetup(kit.assignment, kit.starters, kit.solutions, scratch / "proofs", say)
        bench.folder.mkdir()
        try:
            product.prove(bench, made)
        except proofs.Unproved as error:
            raise UsageError(f"nothing was written: {error}") from error
        bench.say_what_is_open()
        return _write(out, made, say)


def prebuilt(kit: Kit, scratch: Path, given: Sequence[Path], say: Callable[[str], None]) -> dict[str, bytes]:
    """Compile the handout's references and programs, for this platform and those with a cross compiler. Return them by
    path, with the `given` objects."""
    from grader.backends.native.toolchain import toolchain

    tools = toolchain()
    compilers = {
        (system, machine): compiler
        for (system, machine), compiler in CROSS_COMPILERS.items()
        if system == tools.system and shutil.which(compiler)
    }
    compilers[tools.system, tools.machine] = str(tools.compiler)
    folder = scratch / "prebuilt"
    folder.mkdir()
    objects = kit.assignment.lab.reference().compiled(folder, compilers)
    made = {path: file.read_bytes() for path, file in objects.items()}
    for place, compiler in compilers.items():
        for source in kit.program_sources:
            path = helpers.build_prebuilt(folder, *place, compiler, source)
            held = Path(labs.PACKAGE, kit.lab.name, source.relative_to(kit.lab).parent, helpers.PREBUILT)
            made[(held / path.name).as_posix()] = path.read_bytes()
    named = [part.reference for part in kit.assignment.parts if part.reference]
    made |= given_objects(given, made, named)
    names = ", ".join(sorted(Path(path).name for path in made))
    say(f"compiled: {names or 'nothing, since this reference is not handed out'}")
    return made


def given_objects(
    given: Sequence[Path], own: Mapping[str, bytes], named: Iterable[str] = ()
) -> dict[str, bytes]:
    """Read references compiled on other machines. Return them by path in the handout, in the folder of our `own`.

    Raises UsageError if a file's name before the hyphen is not that of one of our `own`. Also raises it if an object
    lacks one of the `named` functions that ours has.
    """
    places = {PurePosixPath(path).name.partition("-")[0]: PurePosixPath(path).parent for path in own}
    wanted = {PurePosixPath(path).name.partition("-")[0]: data for path, data in own.items()}
    found = {}
    for path in given:
        stem = path.name.partition("-")[0]
        if stem not in places or path.suffix != ".o" or "-" not in path.name:
            raise UsageError(
                f"--reference {path}: name it like the release's own object, with its platform after the hyphen"
            )
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UsageError(f"--reference: cannot read {error.filename}: {error.strerror}") from error
        # An ELF or Mach-O object has its functions' names in its symbol table.
        lacking = [name for name in named if name.encode() in wanted[stem] and name.encode() not in data]
        if lacking:
            raise UsageError(
                f"--reference {path}: function {lacking[0]} is missing: is it the object of another assignment?"
            )
        found[str(places[stem] / path.name)] = data
    return found


def refuse_unnamed(kit: Kit) -> None:
    """Raise UsageError if a part does not use some function of the reference: its object would show it to students."""
    named = {part.reference for part in kit.assignment.parts}
    for path in kit.reference_sources:
        for name in _BOUND.findall(path.read_text(encoding="utf-8", errors="replace")):
            if name not in named:
                raise UsageError(
                    f"nothing was written: {path} binds '{name}', but no part of {kit.assignment.path} has it as "
                    "`reference`: remove the binding, since students get the compiled object"
                )


def _write(out: Path, made: Made, say: Callable[[str], None]) -> tuple[Path, ...]:
    """Write archives and folders, each in one step. Return their paths."""
    with explained(f"cannot write into {out}", KitError, "name another folder with --out"):
        out.mkdir(parents=True, exist_ok=True)
        for name, files in made.folders.items():
            with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=out) as folder:
                whole = Path(folder) / name
                contents.write(files, whole)
                whole.rename(out / name)
            digest = hashlib.sha256(packed(files)).hexdigest()[:16]
            say(f"wrote {out / name}/  {len(files)} files  sha256 {digest} as a zip")
        for name, data in made.archives.items():
            wholefile.write_bytes(out / name, [data], mode=0o644)
            say(f"wrote {out / name}  {len(data)} bytes  sha256 {hashlib.sha256(data).hexdigest()[:16]}")
    return (*(out / name for name in made.folders), *(out / name for name in made.archives))
