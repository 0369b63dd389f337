"""Table of the supported course platforms, with one row each, for `grader platforms`, `grader report` and tests."""

from __future__ import annotations

from dataclasses import dataclass

from grader.report.classroom50 import LARGEST_BYTES as LARGEST_CLASSROOM50_BYTES
from grader.report.prairielearn import LARGEST_BYTES
from grader.staff.platforms import gradebook_formats, gradescope, prairielearn
from grader.staff.platforms.container import Container
from grader.staff.platforms.gradebook import Gradebook


@dataclass(frozen=True)
class Limits:
    """Limits of a platform for one submission: time, bytes of the results file, and a text on CPUs. None: unknown."""

    seconds: float | None = None
    bytes_back: int | None = None
    cpus: str = ""

    def __str__(self) -> str:
        limits = [f"{self.seconds:g} s"] if self.seconds else []
        limits += [f"{self.bytes_back} bytes back"] if self.bytes_back else []
        return ", ".join([*limits, *([self.cpus] if self.cpus else [])]) or "none"


@dataclass(frozen=True)
class Platform:
    """One platform. The texts are printed by `grader platforms NAME`: see `whole`. `container` and `gradebook` are None
    if the platform has no such feature. `release` describes the files that `release --platform NAME` writes.
    """

    name: str
    title: str
    hands_in: str
    wants_back: str
    matched_by: str
    shown: str
    limits: Limits
    command: str
    container: Container | None = None
    gradebook: Gradebook | None = None
    release: str = ""


AS_FEEDBACK = "the text of feedback.txt: public cases in full; for hidden cases only that one failed"

PLATFORMS = (
    Platform(
        name="gradescope",
        title="Gradescope",
        hands_in="submission/ in a container; an export of the class",
        wants_back="results/results.json from its container",
        matched_by="Gradescope itself",
        shown=AS_FEEDBACK + "; hidden cases in full and flags in tests that only the staff sees",
        limits=Limits(seconds=600, cpus="CPUs and memory as configured in Gradescope"),
        command="release --out DIST; in the container: gradescope",
        container=gradescope.CONTAINER,
        release="handout.zip and autograder.zip",
    ),
    Platform(
        name="github",
        title="GitHub Actions",
        hands_in="one checkout in a workflow; for a class, a folder of clones",
        wants_back="annotations, a summary and outputs of the workflow",
        matched_by="the clone's folder",
        shown=AS_FEEDBACK + "; the run in a student's repository has only public cases and is not a grade",
        limits=Limits(cpus="CPUs of GitHub's runner"),
        command="release --platform github; one PATH --github; run CLONES --commit-times",
        release="handout.zip with a workflow in it",
    ),
    Platform(
        name="classroom50",
        title="Classroom 50",
        hands_in="a folder of clones with roster.csv; one checkout, in which GitHub's runner calls autograder.py",
        wants_back="result.json, release-body.md, verdict.html",
        matched_by="clone CLASSROOM-ASSIGNMENT-USERNAME, roster.csv's username, github_id and email",
        shown=AS_FEEDBACK + "; the run of a submission has only public cases and is not a grade",
        limits=Limits(bytes_back=LARGEST_CLASSROOM50_BYTES, cpus="CPUs of GitHub's runner"),
        command="release --platform classroom50; run CLONES --commit-times",
        release="handout.zip and a folder with the bundle of autograder.py",
    ),
    Platform(
        name="prairielearn",
        title="PrairieLearn",
        hands_in="student/ in a container, with the question's tests/",
        wants_back="results/results.json from its container",
        matched_by="PrairieLearn itself",
        shown=AS_FEEDBACK + "; pictures of where public cases are wrong",
        limits=Limits(
            seconds=prairielearn.TIMEOUT_S,
            bytes_back=LARGEST_BYTES,
            cpus="CPUs as configured in PrairieLearn",
        ),
        command="release --platform prairielearn; in the container: prairielearn",
        container=prairielearn.CONTAINER,
        release="handout.zip and a folder with a question and its image",
    ),
    Platform(
        name="canvas",
        title="Canvas",
        hands_in="a download of submissions; the gradebook's export",
        wants_back="the gradebook's export with the totals in one column",
        matched_by="SIS User ID, SIS Login ID (as an e-mail address), ID; else the folder's name",
        shown="the total; you send feedback.txt yourself",
        limits=Limits(),
        command="report DIR --canvas EXPORT.csv",
        gradebook=gradebook_formats.CANVAS,
    ),
    Platform(
        name="moodle",
        title="Moodle",
        hands_in="a download of submissions; the offline grading worksheet",
        wants_back="the offline grading worksheet with the totals in the column Grade",
        matched_by="the participant's number, the e-mail address with its case; else the folder's name",
        shown="the total; you send feedback.txt yourself",
        limits=Limits(),
        command="report DIR --moodle WORKSHEET.csv",
        gradebook=gradebook_formats.MOODLE,
    ),
)


def gradebooks() -> dict[str, Gradebook]:
    """Return the gradebook formats by platform name."""
    return {row.name: row.gradebook for row in PLATFORMS if row.gradebook is not None}


def line(row: Platform) -> str:
    """Return a platform's name, the files that it wants back, and the command for it, in one line."""
    return f"{row.name:13} {row.wants_back}: {row.command}"


def whole(row: Platform) -> str:
    """Return all facts about a platform as text, one fact per line."""
    facts = {
        "hands in": row.hands_in,
        "wants back": row.wants_back,
        "ids": row.matched_by,
        "students see": row.shown,
        "limits": str(row.limits),
        "commands": row.command,
        "release": row.release or "none: use the release of any other platform",
    }
    return "\n".join([row.title, *(f"  {name:13} {text}" for name, text in facts.items())])
