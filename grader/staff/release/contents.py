"""Contents of a release's two archives: the students' handout and the autograder.

A handout has the modules of the students' command lines and all modules that these import, except those in the packages
STAFF_ROOMS.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import resolve_name
from pathlib import Path, PurePosixPath

from grader.assignment import labs, layers
from grader.assignment.labs import SOURCE_SUFFIXES
from grader.assignment.loading import load
from grader.assignment.records import Assignment
from grader.assignment.regions import strip_solution
from grader.core import imports, version
from grader.core.commandline import read_text
from grader.core.errors import KitError, UsageError
from grader.report import gradescope
from grader.staff.release import wording

#: Modification time of every file in an archive, the earliest that a zip can store. A fixed time makes archives of
#: equal files equal.
_MOMENT = (1980, 1, 1, 0, 0, 0)
_UNIX = 3
_REGULAR_FILE = 0o100000


@dataclass(frozen=True)
class File:
    """One file of an archive. Its mode is 755 if `executable`, else 644."""

    content: bytes
    executable: bool = False


#: {path in the archive, with forward slashes: file}.
Files = Mapping[str, File]


def packed(files: Files) -> bytes:
    """Return the bytes of a zip of the files, sorted by path. Raises KitError for a path that leads outside."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(files):
            if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
                raise KitError(f"a release must not contain a path that leads out of its folder: {path}")
            entry = zipfile.ZipInfo(path, _MOMENT)
            entry.create_system = _UNIX
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (_REGULAR_FILE | _mode(files[path])) << 16
            archive.writestr(entry, files[path].content)
    return buffer.getvalue()


def unpack(data: bytes, folder: Path) -> None:
    """Unpack a zip made by `packed` into an empty folder, with the files' modes."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files = {
            entry.filename: File(archive.read(entry), executable=bool(entry.external_attr >> 16 & 0o100))
            for entry in archive.infolist()
        }
    write(files, folder)


def write(files: Files, folder: Path) -> None:
    """Write files below a folder, with their modes."""
    for path, file in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(file.content)
        (folder / path).chmod(_mode(file))


def _mode(file: File) -> int:
    return 0o755 if file.executable else 0o644


#: Name of the assignment file in an archive. The command lines look for this name.
CONFIG = "gpt149.yaml"
_EXTENDS = re.compile(rb"^extends:.*$", re.MULTILINE)
HANDOUT, AUTOGRADER = "handout.zip", "autograder.zip"
TEMPLATES = Path(__file__).resolve().parent / "templates"
#: Modules and packages that every handout has. It also has the modules that these import.
STUDENT_ROOMS = ("gpt149", "grader.__main__", "grader.doctor", "grader.study", "textgen")
#: Packages that no handout has. `grader.__main__` imports them only for commands of the staff.
STAFF_ROOMS = ("grader.staff", "grader.submission")
#: {module: patterns of the data files that it reads}. An archive with the module needs these files.
DATA = {
    "grader.backends.torch.torchbuild": ("grader/backends/native/shim/**/*",),
    "grader.backends.native.nativebuild": ("grader/backends/native/inside/*",),
    "grader.backends.native.standin": ("grader/backends/native/inside/plain/*",),
    "grader.report.html": ("grader/report/templates/*",),
    "grader.backends.gpu.card.arena": ("grader/backends/gpu/card/kernels.*",),
    "grader.study": ("grader/study/native/*",),
    "textgen": ("textgen/data/*",),
}
#: Message for the staff, which run_autograder writes into results.json if setup.sh did not install the kit's packages.
NOT_STARTED = (
    "The autograder could not be started. Most likely setup.sh failed, so that source/.venv with the kit's packages is "
    "missing: read the image's build log, and build the image again. The output of run_autograder has details."
)
#: Folders of an autograder that only the user who grades may enter: hidden cases, references, known kernels.
PRIVATE = ("configs/hidden", "labs", "module_ref_stub")
LARGEST_MASTER = 1 << 20
#: Path of VS Code's tasks in a handout. They judge the parts and find the compiler's errors in the output.
EDITOR_TASKS = ".vscode/tasks.json"
LICENSE = "LICENSE"
#: Pages that a handout has only if its lab has the text generation demo.
MAIN_PAGES = ("docs/demo.md", "docs/judging.md")


@dataclass(frozen=True)
class Kit:
    """Sources of a release. `root` is the kit's checkout.

    `config` is the assignment file with hidden cases, which extends `public`, the file that students get. `text` is the
    path of the assignment's text for students. `writeup` is the path of the write-up's template, or None.
    """

    root: Path
    config: Path
    public: Path
    assignment: Assignment
    masters: Mapping[str, Path]
    """Paths of the masters (sources with the solution), by the name of the file to hand in; the main one is first."""
    solutions: Mapping[str, str]
    """Text of each master, including the solution, by the names of `masters`."""
    starters: Mapping[str, str]
    """Text of each file without the solution, as students get it, by the names of `masters`."""
    text: Path
    writeup: Path | None
    image: str = ""
    """Name of PrairieLearn's image; "" for the assignment's id followed by "-grader"."""

    @property
    def reference_sources(self) -> list[Path]:
        """The source files of the reference, as the lab lists them."""
        return self.assignment.lab.reference().sources()

    @property
    def program_sources(self) -> list[Path]:
        """The sources of the lab's study programs. A handout lacks them, because they contain loops of the solution."""
        return [self.lab / name for name in self.assignment.lab.programs]

    @property
    def lab(self) -> Path:
        """The folder of the lab, with its Python package, texts and reference."""
        return self.assignment.lab_folder

    @property
    def staff_files(self) -> list[Path]:
        """Paths of sources whose text must not be in a handout, except for the masters.

        They are the reference, study programs, kernels with known verdicts, and other files for the staff
        (`Lab.staff`).
        """
        named = ("kernels.py", *self.assignment.lab.staff)
        found = {*self.reference_sources, *self.program_sources}
        for path in (self.lab / name for name in named):
            found.update(path.rglob("*") if path.is_dir() else [path])
        sources = (".py", *SOURCE_SUFFIXES)
        masters = {path.resolve() for path in self.masters.values()}
        return sorted(
            path
            for path in found
            if path.is_file() and path.suffix in sources and path.resolve() not in masters
        )

    @property
    def elsewhere(self) -> Path | None:
        """The lab's folder if the lab is not part of the kit, else None."""
        return None if self.lab.parent == labs.LABS else self.lab


def kit(
    root: Path,
    config: Path,
    master: Path | None = None,
    text: Path | None = None,
    writeup: Path | None = None,
) -> Kit:
    """Read the sources of a release. `master` is the path of the main source with the solution.

    If `master`, `text` or `writeup` is None, the lab's file is used, else the kit's. Raises UsageError if `config`
    extends no file for students, if a master contains no marked solution, or if a file is missing.
    """
    assignment = load(config)
    files = layers.read(config).files
    if len(files) < 2:
        raise UsageError(
            f"{config}: a release needs the staff's file, which extends the students' file by hidden cases"
        )
    masters = _masters(assignment, master)
    own = assignment.lab_folder / "handout.md"
    text = text or (own if own.is_file() else root / "docs" / "handout.md")
    writeup = writeup or _writeup(root, assignment)
    for path in (*masters.values(), text, writeup):
        if path is not None and not path.is_file():
            raise UsageError(f"no such file: {path}")
    solutions = {
        name: read_text(path, LARGEST_MASTER, no="source", advice="save it as UTF-8")
        for name, path in masters.items()
    }
    starters = {name: _starter(masters[name], solution) for name, solution in solutions.items()}
    return Kit(root, config, files[-1], assignment, masters, solutions, starters, text, writeup)


def comment_of(name: str) -> str:
    """Return the characters that start a comment in the language of this file name."""
    return "#" if name.endswith(".py") else "//"


def _starter(master: Path, solution: str) -> str:
    """Return the text `solution` of a master without the solution.

    Raises UsageError, with the path `master`, if lines such as `// BEGIN SOLUTION` are missing or wrong.
    """
    try:
        made = strip_solution(solution)
    except UsageError as error:
        raise UsageError(f"{master}: {error}") from error
    if made == solution:
        sign = comment_of(master.name)
        raise UsageError(
            f"{master}: it has no line '{sign} BEGIN SOLUTION': name the source with the solution"
        )
    return made


def _masters(assignment: Assignment, given: Path | None) -> dict[str, Path]:
    """Return {file to hand in: path of its master}, the main one first.

    If `given` is a path, it is the main master, and the others are in the same folder.
    """
    first, *further = assignment.sources
    if given is not None:
        return {first: given, **{name: given.with_name(name) for name in further}}
    return {name: labs.master(assignment.lab_folder, name) for name in assignment.sources}


def _writeup(root: Path, assignment: Assignment) -> Path | None:
    """Return the path of the lab's write-up template or None. For the main lab, the kit's template is the fallback."""
    own = assignment.lab_folder / "writeup_template.md"
    if own.is_file():
        return own
    return root / "writeup_template.md" if assignment.lab_folder.name == labs.main() else None


# ---- the handout


def handout(kit: Kit, compiled: Mapping[str, bytes]) -> dict[str, File]:
    """Return handout.zip's files. `compiled` has the reference and study programs as bytes by path in the archive."""
    lab = _lab_modules(kit, staff=False)
    chosen = _asked_of_kit(kit, lab) if kit.elsewhere else _entrances(kit)
    rooms = student_rooms(kit.root, chosen)
    files = _sources(kit.root, rooms) | _lab_sources(kit, lab)
    files |= texts(TEMPLATES / "handout", wording.handout(kit.assignment, compiled, kit.writeup is not None))
    files[EDITOR_TASKS] = files.pop("tasks.json")
    documents = (LICENSE, *MAIN_PAGES) if kit.assignment.lab.has_demo else (LICENSE,)
    files |= {name: _file(kit.root / name) for name in documents if (kit.root / name).is_file()}
    files["docs/handout.md"] = _file(kit.text)
    files[version.NOTE] = _note()
    if kit.writeup is not None:
        files["writeup_template.md"] = _file(kit.writeup)
    files[f"configs/{CONFIG}"] = _file(kit.public)
    for name, text in kit.starters.items():
        files[name] = File(text.encode())
    for path, content in compiled.items():
        files[path] = File(content, executable=not path.endswith(".o"))
    return files


def student_rooms(root: Path, chosen: Iterable[str] = ()) -> set[str]:
    """Return a handout's modules: STUDENT_ROOMS, `chosen` and all that these import, except those in STAFF_ROOMS."""
    known = imports.modules(root)
    wanted = [name for name in known if within(name, STUDENT_ROOMS)] + [*chosen]
    return {name for name in imports.closure(root, wanted, stop=STAFF_ROOMS) if not within(name, STAFF_ROOMS)}


def within(name: str, rooms: Iterable[str]) -> bool:
    """Return True if the module is one of the packages `rooms`, or lies in one of them."""
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def _entrances(kit: Kit) -> list[str]:
    """Return the names of the lab's package and of its studies' modules, which are imported by name at run time."""
    package = f"{labs.PACKAGE}.{kit.lab.name}"
    return [package, *(resolve_name(module, package) for module, _ in kit.assignment.lab.studies.values())]


def _lab_modules(kit: Kit, *, staff: bool) -> dict[str, Path]:
    """Return {import name: path} of an outside lab's modules: all if `staff`, else those that students need."""
    if kit.elsewhere is None:
        return {}
    package = f"{labs.PACKAGE}.{kit.lab.name}"
    there = {
        ".".join([package, *path.relative_to(kit.elsewhere).with_suffix("").parts]).removesuffix(
            ".__init__"
        ): path
        for path in kit.elsewhere.rglob("*.py")
    }
    if staff:
        return there
    found: dict[str, Path] = {}
    pending = _entrances(kit)
    while pending:
        name = pending.pop()
        if name in there and name not in found:
            found[name] = there[name]
            pending += [each.imported for each in imports.imports(name, there[name], there)]
            pending.append(name.rpartition(".")[0])
    return found


def _asked_of_kit(kit: Kit, modules: Mapping[str, Path]) -> list[str]:
    """Return the kit's modules that an outside lab's `modules` import, by name, and "labs"; [] without modules."""
    known = imports.modules(kit.root).keys() - modules.keys()
    asked = [each.imported for name, path in modules.items() for each in imports.imports(name, path, known)]
    return [name for name in asked if name in known] + [labs.PACKAGE] * bool(modules)


def _lab_sources(kit: Kit, modules: Mapping[str, Path]) -> dict[str, File]:
    """Return the files below `labs/`: the lab's `modules`, and `labs/__init__.py`, which makes it the main lab."""
    own = Path(labs.PACKAGE, kit.lab.name)
    files = {(own / path.relative_to(kit.lab)).as_posix(): _file(path) for path in modules.values()}
    package = kit.root / labs.PACKAGE / "__init__.py"
    text = package.read_text(encoding="utf-8").replace(f'"{labs.main()}"', f'"{kit.lab.name}"')
    return {**files, f"{labs.PACKAGE}/__init__.py": File(text.encode())}


# ---- the autograder


def autograder(kit: Kit) -> dict[str, File]:
    """Return the files of autograder.zip: all that grading needs, and the attacks that the self-test judges."""
    own = () if kit.elsewhere else (f"{labs.PACKAGE}.{kit.lab.name}",)
    wanted = [name for name in imports.modules(kit.root) if within(name, ("grader", *own))]
    lab = _lab_modules(kit, staff=True)
    rooms = imports.closure(kit.root, [*wanted, *_asked_of_kit(kit, lab)])
    files = _sources(kit.root, {name for name in rooms if not within(name, ("grader.staff.release",))})
    files |= _lab_sources(kit, lab)
    points = sum(part.points for part in kit.assignment.parts)
    found = gradescope.kit_fault(NOT_STARTED, seconds=0.0, max_points=points)
    files["not_started.json"] = json_file(found)
    for path in (*kit.reference_sources, *kit.program_sources):
        own = kit.elsewhere is not None and path.is_relative_to(kit.elsewhere)
        place = (
            Path(labs.PACKAGE, kit.lab.name, path.relative_to(kit.lab)) if own else path.relative_to(kit.root)
        )
        files[place.as_posix()] = _file(path)
    files |= configs(kit)
    for name, path in kit.masters.items():
        # A master in Python is also a module of the lab. The archive has it only as a file to hand in.
        files.pop((Path(labs.PACKAGE) / kit.lab.name / name).as_posix(), None)
        files[name] = _file(path)
    files["LICENSE"] = _file(kit.root / "LICENSE")
    files[version.NOTE] = _note()
    private = [name for name in PRIVATE if any(path.startswith(f"{name}/") for path in files)]
    return files | texts(TEMPLATES / "autograder", wording.autograder(kit.assignment, private))


def configs(kit: Kit) -> dict[str, File]:
    """Return the assignment's files for grading: the public file, and the one with hidden cases that extends it."""
    above = _EXTENDS.sub(f"extends: ../{CONFIG}".encode(), kit.config.read_bytes())
    return {
        f"configs/{CONFIG}": _file(kit.public),
        f"configs/hidden/{CONFIG}": File(above),
    }


def json_file(value: object) -> File:
    return File(json.dumps(value, indent=2, allow_nan=False).encode() + b"\n")


# ---- files of both archives


def _sources(root: Path, rooms: Iterable[str]) -> dict[str, File]:
    """Return the sources of the modules `rooms`, and the data files that these read, by path relative to `root`."""
    known = imports.modules(root)
    rooms = set(rooms)
    paths = [known[name] for name in rooms]
    for room, patterns in DATA.items():
        if room in rooms:
            paths += [
                path
                for pattern in patterns
                for path in root.glob(pattern)
                if path.is_file() and path.suffix not in (".py", ".pyc") and not path.name.startswith(".")
            ]
    return {path.relative_to(root).as_posix(): _file(path) for path in paths}


def _note() -> File:
    """Return a file with the kit's commit, for the results of an archive, in which no git repository gives it."""
    return File(f"{version.commit()}\n".encode())


def texts(folder: Path, words: Mapping[str, str]) -> dict[str, File]:
    """Return the templates in a folder by file name. Each placeholder `{word}` is replaced by `words[word]`."""
    files = {}
    for path in folder.iterdir():
        text = path.read_text(encoding="utf-8")
        for word, value in words.items():
            text = text.replace(f"{{{word}}}", value)
        files[path.name] = File(text.encode(), executable=text.startswith("#!"))
    return files


def _file(path: Path) -> File:
    content = path.read_bytes()
    return File(content, executable=path.name == f"{imports.SCRIPT}.py")
