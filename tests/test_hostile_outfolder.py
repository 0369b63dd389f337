"""A hostile results or scratch folder (threats E3, E7) causes one message with the file's name, and no other harm."""

import json
import math
import os
import re
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from classes.acting_class import HOLDS_LEDGER, RUN, Class, holding, record, wait_until
from classes.acting_worker import nest
from conftest import COURSE, put, refused, write

from grader.assignment.loading import load
from grader.core import errors, removal
from grader.report import result_json
from grader.sandbox import leftovers, limits
from grader.staff.classroom import gradebook, ledger, planning

NOTES = [b"[" * 4000, b"null", b'{"scratch": 3}', b'{"scratch": "/"}', b"\xff" * 5000, b'{"pid": 1e999}']
#: Depth of nested folders. It exceeds the longest path of Linux and Python's limit on nested calls.
DEEP_FOLDERS = 2100


def briefly(content: bytes) -> str:
    return f"{content[:70]!r}, {len(content)} bytes"


def test_folders_of_any_depth_are_removed_and_very_deep_ones_exceed_the_limit(tmp_path: Path) -> None:
    top = tmp_path / "top"
    for name, depth in (("d", DEEP_FOLDERS), ("d" * 200, 1100)):
        top.mkdir()
        nest(top, depth, name)
        (top / "link").symlink_to(tmp_path)
        removal.remove(top)
        assert not top.exists() and tmp_path.is_dir()
    scratch = leftovers.Scratch(tmp_path, limits.Limits())
    nest(tmp_path, 400, "d")
    assert scratch.excess() == "", "800 entries are allowed, however deep"
    nest(tmp_path, 30, "d" * 200)
    assert "too deep" in scratch.excess()
    removal.empty(tmp_path)


def test_removal_follows_no_links_and_ignores_modes_and_names(tmp_path: Path) -> None:
    top, kept = tmp_path / "top", tmp_path / "kept"
    # To remove a deep folder, the kit moves inner folders up and names them by numbers. Make folders with such names.
    for path in ("a/b/0/1/2", "0/1/a", "1", "2/3/0"):
        (top / path).mkdir(parents=True)
    put(tmp_path, {"kept/file": b"kept", "top/3": b"a file"})
    (top / "a" / "b" / "link").symlink_to(kept)
    (top / "a" / "link").symlink_to(kept / "file")
    os.mkfifo(top / "a" / "fifo")
    for path in ("a/b/0/1", "a/b/0", "a/b", "a", "0", "."):
        (top / path).chmod(0)
    removal.remove(top)
    assert not top.exists() and (kept / "file").read_text() == "kept"
    removal.remove(tmp_path / "nothing")
    for name in ("stays", "goes"):
        nest(kept, 3, name)
    removal.empty(kept, [str(kept / "stays")])
    assert [path.name for path in kept.iterdir()] == ["stays"]
    mounted = tmp_path / "way" / "mounted"
    for folder in (mounted / "inside", tmp_path / "way to nowhere"):
        folder.mkdir(parents=True)
    (tmp_path / "way" / "file").touch()
    mounted.chmod(0o555)
    removal.empty(tmp_path, [str(mounted)])
    assert sys.platform != "linux" or "/proc" in removal.mount_points()
    left = [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))]
    assert left == ["way", "way/mounted", "way/mounted/inside"] and mounted.stat().st_mode & 0o777 == 0o555


@pytest.mark.full
def test_a_class_continues_after_a_worker_nests_very_deep_folders(acting: Class) -> None:
    acting.add_all({"ada": "", "eve": f"nest {DEEP_FOLDERS}\ndie 1", "zoe": "slow"})
    acting.grade()
    assert acting.totals() == {"ada": "30", "eve": "30", "zoe": "18"}
    acting.add("eve", f"nest {DEEP_FOLDERS}", "freeze", "slow")
    judge = acting.start()
    wait_until((acting.state / "nested-again").exists, judge)
    acting.kill(judge)
    acting.add("eve", "slow")
    acting.grade()
    assert acting.totals()["eve"] == "18" and not list(acting.temporary.iterdir())


def test_a_copied_results_folder_does_not_remove_the_originals_scratch(tmp_path: Path) -> None:
    live, copy = tmp_path / "live", tmp_path / "copy"
    with holding(HOLDS_LEDGER, live) as (_, said):
        scratch = Path(said)
        shutil.copytree(live, copy)
        with ledger.hold(copy) as book:
            assert book.scratch != scratch and (scratch / "file").read_text() == "x"
        # A forged lock file in the copy names the original's scratch folder. It must be kept while its judge lives.
        forged = json.loads((live / ledger.LOCK).read_text())
        status = (copy / ledger.LOCK).stat()
        (copy / ledger.LOCK).write_text(json.dumps({**forged, "lock": f"{status.st_dev}:{status.st_ino}"}))
        with ledger.hold(copy):
            assert (scratch / "file").exists()
    with ledger.hold(live):
        assert not scratch.exists()


@pytest.mark.parametrize("note", NOTES, ids=briefly)
def test_a_malformed_lock_note_removes_nothing(note: bytes, tmp_path: Path) -> None:
    (tmp_path / ledger.LOCK).write_bytes(note)
    with ledger.hold(tmp_path) as book:
        assert book.scratch.is_dir()
    assert not book.scratch.exists()


@pytest.fixture
def treasure(tmp_path: Path) -> Iterator[Path]:
    """Yield a file outside of the results. Check afterwards that it is unchanged and still alone in its folder."""
    path = put(tmp_path, {"elsewhere/treasure": b"mine"}) / "elsewhere" / "treasure"
    yield path
    assert path.read_text() == "mine" and list(path.parent.iterdir()) == [path]


def put_in_the_way(how: str, place: Path, treasure: Path) -> None:
    targets = {"link": treasure, "dangling link": treasure.with_name("new"), "device": Path("/dev/zero")}
    if how in targets:
        place.symlink_to(targets[how])
    else:
        {"pipe": os.mkfifo, "folder": os.mkdir, "hard link": partial(os.link, treasure)}[how](place)


@pytest.mark.parametrize("name", [ledger.LOCK, ledger.LEDGER])
@pytest.mark.parametrize("how", ["link", "hard link", "dangling link", "pipe", "folder"])
def test_ledger_and_lock_are_plain_files(name: str, how: str, tmp_path: Path, treasure: Path) -> None:
    place = tmp_path / "out" / name
    place.parent.mkdir()
    put_in_the_way(how, place, treasure)
    with pytest.raises(errors.UsageError, match=rf"^.*{place}.*\Z"), ledger.hold(place.parent):
        pass
    if name == ledger.LEDGER and how != "hard link":
        refused(str(place), ledger.read, place.parent)


def test_a_students_files_are_written_only_into_their_own_folder(tmp_path: Path, treasure: Path) -> None:
    out, graded = tmp_path / "out", put(tmp_path / "graded", {"module.cpp": b"the student's"})
    (out / "ada").mkdir(parents=True)
    for name in ("module.cpp", "module.cpp.partial", ".module.cpp.partial", ledger.RESULT, "feedback.txt"):
        (out / "ada" / name).symlink_to(treasure)
    (out / "bob").symlink_to(treasure.parent)
    with ledger.hold(out) as book:
        book.finish(record("ada"), {"points": 1.0}, graded)
        refused(r"bob|link", book.finish, record("bob"), {"points": 1.0}, graded, of=errors.KitError)
    kept = out / "ada" / "module.cpp"
    assert kept.read_text() == "the student's" and not kept.is_symlink()


def test_links_and_folders_in_place_of_results_are_found_first(acting: Class, treasure: Path) -> None:
    """A link that is planted after grading only costs its owner's feedback."""
    acting.add_all({"ada": "", "bob": ""})
    for name, how in {"ada": "link", "grades.csv": "folder", "ada/result.json": "folder"}.items():
        place = acting.out / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(treasure.parent) if how == "link" else place.mkdir()
        assert f"UsageError: cannot write {place}: it is a {how}" in acting.grade(exit_code=1)
        assert not acting.graded()
        place.unlink() if how == "link" else place.rmdir()
    acting.grade()
    assert len(acting.graded()) == 2
    (acting.out / "ada").rename(acting.out / "moved")
    (acting.out / "ada").symlink_to(treasure.parent)
    (acting.out / "grades.csv").unlink()
    (acting.out / "grades.csv").symlink_to(treasure)
    assert "no feedback for 'ada': it is a link" in acting.report()
    assert acting.totals() == {"ada": "", "bob": "30"} and "it is a link" in acting.grades()["ada"]["trouble"]


DEEP = b"[" * 200_000
PART = {"id": "part1", "title": "T", "verdict": "pass", "points": 1, "max_points": 2}
PLACE: dict[str, object] = {"machine": {}, "toolchain": {}, "sandbox": {}}
SUBMISSION = {"submission": {"id": "ada", "sha256": ""}, "assignment": "small"}
RESULT = {"schema_version": 1, **SUBMISSION, "parts": [PART], **PLACE}
FOUND = {"fingerprints": {"source": "", "assignment": "", "kit": "", "settings": ""}}
ROSTER = {"kind": "roster", "at": "", "manual": 3, "totals": {}, "submissions": 3}
X = {"submission_id": "a", "name": "x"}
RESULT_LINE = {"kind": "result", "submission_id": "ada", "at": "", "seconds": {}, "attempt": 1, **FOUND}


def damaged(item: dict[str, Any], **bad: list[object]) -> list[bytes]:
    """Return damaged copies of the item as JSON: in each, one key has one of the values that `bad` lists for it."""
    return [json.dumps({**item, key: value}).encode() for key, values in bad.items() for value in values]


def is_brief(error: object) -> str:
    assert "\n" not in str(error) and len(str(error)) < 500
    return str(error)


NO_RESULTS = [DEEP, b'{"a": ' * 100_000, b"\xff\xfe\x00", b"", b"null", b"{", b"[]", b'{"schema_version": 1}']
NO_RESULTS += [b'{"schema_version": ' + b"9" * 5000 + b"}", b'{"schema_version": 1e999}']
NO_RESULTS += damaged(RESULT, max_points=[10**400], parts=[{"id": 3}], flags=[[{"code": []}]])
NO_RESULTS += damaged(RESULT, machine=[json.loads("[" * 900 + "]" * 900)])


@pytest.mark.parametrize("content", [*NO_RESULTS, b" " * (result_json.MOST_BYTES + 1)], ids=briefly)
def test_a_malformed_result_is_reported_in_one_line(content: bytes, tmp_path: Path) -> None:
    path = put(tmp_path, {f"ada/{ledger.RESULT}": json.dumps(RESULT).encode()}) / "ada" / ledger.RESULT
    assert result_json.read(path).parts[0].max_points == 2
    path.write_bytes(content)
    assert str(path) in is_brief(refused("", result_json.read, path))
    assert gradebook.result_of(tmp_path, ledger.Entry("ada", "Ada"), record("ada"))[0] is None


@pytest.mark.parametrize("how", ["pipe", "link", "device"])
def test_a_result_that_is_not_a_regular_file_is_refused(how: str, tmp_path: Path, treasure: Path) -> None:
    path = tmp_path / "ada" / ledger.RESULT
    path.parent.mkdir()
    put_in_the_way(how, path, treasure)
    refused("cannot read", result_json.read, path)


NO_LINES = [DEEP, b"3", b"[]", json.dumps(RESULT_LINE).encode()[:-1] + b', "points": ' + b"9" * 5000 + b"}"]
NO_LINES += damaged(RESULT_LINE, kind=["else"], submission_id=["../../escape", ["ada"]], attempt=["many"])
NO_LINES += damaged(RESULT_LINE, seconds=[[1]], verdicts=[{"part1": {}}], fault=["ada's"], points=[math.inf])
NO_LINES += damaged(ROSTER, kind=["roster", "report"], submissions=[[{**X, "name": 3}], [X, X]])
NO_LINES += damaged(ROSTER, submissions=[[{**X, "submission_id": "a/b"}], [{**X, "submitted_at": "now"}]])


@pytest.mark.parametrize("content", [*NO_LINES, b'{"kind": "' + b"x" * ledger.MOST_LINE_BYTES], ids=briefly)
def test_a_malformed_ledger_line_is_reported_with_its_line_number(content: bytes, tmp_path: Path) -> None:
    with ledger.hold(tmp_path) as book:
        book.open_run(RUN, [ledger.Entry("ada", "Ada")])
        book.finish(record("ada"), {})
    with (tmp_path / ledger.LEDGER).open("ab") as file:
        file.write(content + b"\n")
    assert "delete it" in is_brief(refused(r"ledger\.jsonl:4: ", ledger.read, tmp_path, of=errors.KitError))


@pytest.mark.timeout(120)
def test_every_command_ends_in_one_line_on_a_folder_of_pipes(acting: Class) -> None:
    acting.add("ada")
    acting.grade()
    for name in ("ada/result.json", "ada/feedback.txt", "report.html", "manual.csv", "ledger.jsonl"):
        path = acting.out / name
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        for command in (lambda: acting.show("ada"), acting.report):
            try:
                command()
            except (errors.KitError, errors.UsageError) as error:  # noqa: PERF203
                assert path.name in is_brief(error)


def graded_with(config: object, out: Path) -> Path:
    """Return a results folder whose ledger names `config` as its assignment file."""
    item = {"kind": "run", **vars(RUN), "config": str(config)}
    return put(out, {ledger.LEDGER: json.dumps(item).encode() + b"\n"})


def test_a_ledger_whose_assignment_is_not_a_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    no_file, no_more = "is a folder, a pipe or a device", "no longer exists"
    places = dict.fromkeys(("/dev/zero", tmp_path / "pipe.yaml", tmp_path), no_file)
    places |= dict.fromkeys(("nul\0", tmp_path / "absent"), no_more)
    for k, (config, why) in enumerate(places.items()):
        refused(f"which {why}", gradebook.open_book, graded_with(config, tmp_path / f"out{k}"))
    # An assignment that extends a pipe or a device is refused, too: the reader neither waits nor reads without end.
    for below in ("pipe.yaml", "/dev/zero"):
        (tmp_path / "own.yaml").write_text(f"extends: {below}\n")
        refused("a pipe or a device", load, tmp_path / "own.yaml")


def test_a_forged_ledger_cannot_make_a_command_print_a_file(tmp_path: Path) -> None:
    secret = write(tmp_path, "admin:$6$salt$hash:19000:0:99999:7:::\n", "shadow")
    for k, text in enumerate((None, f"extends: {secret}\n", "token: 0123\n", "schema_version: 1\n")):
        config = secret if text is None else tmp_path / f"{k}.yaml"
        config.write_text(text or secret.read_text())
        out = graded_with(config, tmp_path / f"out{k}")
        resume = partial(planning.settle, planning.RunOptions(out, out, 1, resume=True), ledger.read(out))
        for command in (partial(gradebook.open_book, out), resume):
            message = refused("no longer an assignment file: restore it", command)
            assert not re.search(r"admin|hash|token|schema", message), message
    mistaken = write(tmp_path, COURSE.read_text() + "lates: 1\n", "mistaken.yaml")
    refused("unknown key 'lates'", gradebook.open_book, graded_with(mistaken, tmp_path / "mistakes"))
