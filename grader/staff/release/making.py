"""The four steps of a release: collect the files, search them for secrets, test the archives, write them.

Secrets are lines of the solution, of the reference and of staff files, and the seeds and names of hidden cases. Short
lines occur by chance, so a secret line has at least LEAST_CHARACTERS besides white space. Comments, lines of the
starter, and lines with only the head of a simple `for` loop are not secret. Neither are preprocessor directives,
because the assignment's text quotes a pragma.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from grader.assignment import labs, regions
from grader.assignment.labs import SOURCE_SUFFIXES
from grader.assignment.loading import load
from grader.assignment.records import Assignment
from grader.core import plainfile
from grader.core.errors import KitError, UsageError, explained
from grader.staff.release import contents, products, proofs
from grader.staff.release.contents import Files, Kit, comment_of, packed
from grader.staff.release.products import Made
from grader.study import helpers

_BOUND = re.compile(r'^\s*m\.def\(\s*"(\w+)"', re.MULTILINE)
#: {(system, machine): cross compiler for this platform}. A cross compiler is used if it is installed.
CROSS_COMPILERS = {("Linux", "aarch64"): "aarch64-linux-gnu-g++", ("Linux", "x86_64"): "x86_64-linux-gnu-g++"}


def release(
    kit: Kit, out: Path, references: Sequence[Path], say: Callable[[str], None], platform: str = "gradescope"
) -> tuple[Path, ...]:
    """Write the files of a platform's release into `out`. Return the paths of its archives and folders.

    `references` are reference objects compiled on other machines. `say` prints a line of progress. If a check fails,
    nothing is written. Raises UsageError for the first failure, and KitError if this machine cannot build or judge.
    """
    product = products.PRODUCTS[platform]
    if product.folder and (out / product.folder).exists():
        raise UsageError(
            f"{out / product.folder} exists already: remove it, or name another folder with --out"
        )
    with tempfile.TemporaryDirectory(prefix="gpt149-release-", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder)
        refuse_unnamed(kit)
        # Search the handout's texts before the slow compilation, to report secrets in them early.
        refuse(contents.handout(kit, {}) | product.in_handout(kit), kit)
        handout = contents.handout(kit, prebuilt(kit, scratch, references, say)) | product.in_handout(kit)
        refuse(handout, kit)
        say(f"searched {len(handout)} files: none has a line of the solution or reference, or a hidden seed")
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
    """Compile the handout's reference and study programs for all platforms for which this machine has a compiler.

    Return the compiled files, and the objects `given` by path, as {path in the handout: bytes}.
    """
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
    say(f"compiled: {names or 'nothing, because the handout does not contain the reference'}")
    return made


def given_objects(
    given: Sequence[Path], own: Mapping[str, bytes], named: Iterable[str] = ()
) -> dict[str, bytes]:
    """Read reference objects compiled on other machines. Return {path in the handout: bytes}.

    `own` are the objects compiled here, by path in the handout. A given file must be called NAME-PLATFORM.o like an own
    object with the same NAME, and gets the same folder. `named` are functions of the reference. Raises UsageError for
    another file name, and if the given object lacks one of these functions that the own object has.
    """
    places = {PurePosixPath(path).name.partition("-")[0]: PurePosixPath(path).parent for path in own}
    wanted = {PurePosixPath(path).name.partition("-")[0]: data for path, data in own.items()}
    found = {}
    for path in given:
        stem = path.name.partition("-")[0]
        if stem not in places or path.suffix != ".o" or "-" not in path.name:
            raise UsageError(
                f"--reference {path}: name it like the release's object, with another platform after the hyphen"
            )
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UsageError(f"--reference: cannot read {error.filename}: {error.strerror}") from error
        # The symbol table of an ELF or Mach-O object contains the names of its functions as plain bytes.
        lacking = [name for name in named if name.encode() in wanted[stem] and name.encode() not in data]
        if lacking:
            raise UsageError(
                f"--reference {path}: function {lacking[0]} is missing: is it the object of another assignment?"
            )
        found[str(places[stem] / path.name)] = data
    return found


def refuse_unnamed(kit: Kit) -> None:
    """Raise UsageError for a function of the reference that no part uses: students could see its name in the object."""
    named = {part.reference for part in kit.assignment.parts}
    for path in kit.reference_sources:
        for name in _BOUND.findall(path.read_text(encoding="utf-8", errors="replace")):
            if name not in named:
                raise UsageError(
                    f"nothing was written, because students could see '{name}' in the compiled object: {path} exports "
                    f"it (m.def), but no part of {kit.assignment.path} has it as its `reference`. Remove this m.def"
                )


def _write(out: Path, made: Made, say: Callable[[str], None]) -> tuple[Path, ...]:
    """Write the folders and archives into `out`. Each appears by one rename, so none is ever incomplete.

    Return their paths.
    """
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
            plainfile.write_bytes(out / name, [data], mode=0o644)
            say(f"wrote {out / name}  {len(data)} bytes  sha256 {hashlib.sha256(data).hexdigest()[:16]}")
    return (*(out / name for name in made.folders), *(out / name for name in made.archives))


LEAST_CHARACTERS = 16
LEAST_OF_SOURCE = 40
#: Smallest seed that is searched for. Smaller numbers occur by chance in any text. Seeds made as in
#: `docs/assignment-rules.md` have 18 digits.
LEAST_SEED = 1 << 24
LEAST_NAME = 6
_PLAIN_LOOP = re.compile(rb"for\((int|size_t)(\w+)=0;\2<\w+;(\2\+\+|\+\+\2)\)\{?")
_IMPORTS = re.compile(r"\s*(?:from\s+[\w.]+\s+)?import\s")
_SPACE = re.compile(rb"\s+")


@dataclass(frozen=True)
class Secret:
    """Bytes (`needle`) that must not occur in a file of a handout. `what` describes them to the staff.

    `compact`: True if white space is removed from the file before the search; `needle` has none.
    """

    what: str
    needle: bytes
    compact: bool = True


def squeezed(data: bytes) -> bytes:
    return _SPACE.sub(b"", data)


def of_master(text: str, name: str) -> list[Secret]:
    """Return the solution's lines in a master's text, without the starter's. `name` is the master's file name."""
    marked = list(regions.lines(text))
    numbered = [(number, line) for number, line, region in marked if region == "SOLUTION"]
    given = squeezed("".join(line for _, line, region in marked if region is None).encode())
    return list(_searched(numbered, f"the solution, {name}", given, comment=comment_of(name)))


def of_source(text: str, name: str, whose: str = "the reference") -> list[Secret]:
    """Return the secrets of a source that students do not get, such as the reference.

    Each secret is one line, or two lines if one is too short: it has at least LEAST_OF_SOURCE characters besides white
    space, because shorter lines may be common C++ or Python. Imports are skipped.
    """
    comment = comment_of(name)
    lines = [
        b"" if comment == "#" and _IMPORTS.match(line) else squeezed(_code(line, comment).encode())
        for line in text.splitlines()
    ]
    pieces = dict(enumerate(lines, 1))
    found = []
    for number, line in pieces.items():
        after = pieces.get(number + 1, b"")
        for piece in (line, line + after if line and after else b""):
            if len(piece) >= LEAST_OF_SOURCE:
                found.append(Secret(f"{whose}, {name}:{number}", piece))
                break
    return found


def of_staff_text(text: str, name: str, public: Sequence[str] = ()) -> list[Secret]:
    """Return the secret lines of a staff text. Lines `- id: PART` with ids in `public` are not secret."""
    openings = {squeezed(f"- id: {part}".encode()) for part in public}
    staff_lines = _searched(
        enumerate(text.splitlines(), 1), f"a text for the staff, {name}", b"", comment="#"
    )
    return [secret for secret in staff_lines if secret.needle not in openings]


def of_assignment(assignment: Assignment) -> list[Secret]:
    """Return secrets for the names of hidden cases and for the seeds, except short names and small seeds.

    A seed is a secret in decimal, in hexadecimal, and as 8 bytes in both byte orders.
    """
    secrets = []
    seeds = [assignment.seed] if assignment.seed is not None else []
    seeds += [case.seed for part in assignment.parts for case in part.cases if case.hidden]
    for seed in dict.fromkeys(seed for seed in seeds if seed >= LEAST_SEED):
        forms = (str(seed), f"{seed:x}", f"{seed:X}")
        secrets += [Secret("a hidden seed", form.encode()) for form in dict.fromkeys(forms)]
        secrets += [
            Secret("a hidden seed, in binary", seed.to_bytes(8, order), compact=False)
            for order in ("little", "big")
        ]
    cases = [case for part in assignment.parts for case in part.cases]
    names = {case.name for case in cases if case.hidden and len(case.name) >= LEAST_NAME}
    names -= {case.name for case in cases if not case.hidden}
    secrets += [
        Secret(f"the name of the hidden case '{name}'", name.encode(), compact=False)
        for name in sorted(names)
    ]
    return secrets


def _searched(lines: Iterable[tuple[int, str]], what: str, given: bytes, *, comment: str) -> Iterator[Secret]:
    for number, line in lines:
        needle = squeezed(_code(line, comment).encode())
        if len(needle) >= LEAST_CHARACTERS and needle not in given and not _PLAIN_LOOP.fullmatch(needle):
            yield Secret(f"{what}:{number}", needle)


def _code(line: str, comment: str) -> str:
    """Return the line without its comment, or "" if it begins with #.

    Such a line is a preprocessor directive, or a comment in Python. `comment` are the characters that begin a comment.
    """
    return "" if line.lstrip().startswith("#") else line.split(comment)[0]


#: Folders of a handout that may contain C++ and CUDA sources other than the starter: the kit's headers and runners.
_KITS_OWN = ("grader/",)


def secrets(kit: Kit) -> list[Secret]:
    """Return all secrets: lines of the solution and of staff files, and the seeds and names of hidden cases."""
    found = [secret for name, text in kit.solutions.items() for secret in of_master(text, name)]
    # A reference may have the same frame as the student's file. So its lines that the starter has, too, are not secret.
    whole = "\n".join(kit.starters.values()).encode()
    given = whole, squeezed(whole)
    references = kit.reference_sources
    for path in kit.staff_files:
        text = path.read_text(encoding="utf-8")
        whose = "the reference" if path in references else "a source for the staff"
        of_path = of_source(text, "/".join(path.parts[-2:]), whose)
        found += [secret for secret in of_path if secret.needle not in given[secret.compact]]
    public = [part.id for part in load(kit.public).parts]
    for path in sorted(kit.config.parent.iterdir()):
        if path.is_file():
            found += of_staff_text(path.read_text(encoding="utf-8"), path.name, public)
    return found + of_assignment(kit.assignment)


def leaks(files: Files, secrets: Iterable[Secret]) -> list[str]:
    """Return one message for each file that contains a secret. It names the first secret found in the file."""
    secrets = list(secrets)
    found = []
    for path, file in sorted(files.items()):
        whole, compact = file.content, squeezed(file.content)
        for secret in secrets:
            if secret.needle in (compact if secret.compact else whole):
                found.append(f"{path}{_line(whole, secret)} holds {secret.what}")
                break
    return found


def strangers(files: Files, kit: Kit) -> list[str]:
    """Return one message for each file whose path shows that it must not be in a handout, such as hidden cases."""
    found = []
    own = PurePosixPath(labs.PACKAGE, kit.lab.name)
    staffs = {own / name for name in kit.assignment.lab.staff}
    for path in sorted(files):
        source = path.endswith(SOURCE_SUFFIXES) and path not in kit.masters
        folder, _, name = path.rpartition("/")
        is_lab_table = folder.startswith("labs/") and (name == "kernels.py" or "threats" in folder.split("/"))
        if (
            "hidden" in path.split("/")
            or path.startswith("tests/")
            or is_lab_table
            or staffs & {*places(path)}
        ):
            found.append(f"{path} is for the staff")
        elif source and not path.startswith(_KITS_OWN):
            found.append(f"{path} is a source that is not the starter")
    return found


def places(path: str) -> tuple[PurePosixPath, ...]:
    """Return a path and all its parent folders."""
    found = PurePosixPath(path)
    return (found, *found.parents)


def refuse(files: Files, kit: Kit) -> None:
    """Raise UsageError if the handout contains a secret or a file for the staff."""
    found = strangers(files, kit) + leaks(files, secrets(kit))
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise UsageError(f"nothing was written, because the handout would reveal a secret: {found[0]}{more}")


def _line(content: bytes, secret: Secret) -> str:
    """Return the line number of a secret in a file as text, such as ":12", or "" if it is not within one line."""
    if not secret.compact:
        return ""
    for number, line in enumerate(content.splitlines(), 1):
        if secret.needle in squeezed(line):
            return f":{number}"
    return ""
