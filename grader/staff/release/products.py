"""Archives of a release for each platform besides the handout, and their proofs.

A row for each platform of `grader.staff.platforms.table` that has a release, by the same names.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grader.core.errors import EXIT_KIT, EXIT_PASS, EXIT_SUBMISSION
from grader.report import prairielearn as renderer
from grader.report.gradescope import KIT_FAULT
from grader.staff.platforms.prairielearn import TIMEOUT_S
from grader.staff.release import contents, proofs, wording
from grader.staff.release.archive import File, Files, packed
from grader.staff.release.contents import AUTOGRADER, HANDOUT, TEMPLATES, Kit
from grader.staff.release.proofs import ProofSetup, Unproved

WORKFLOW = ".github/workflows/classroom.yml"
ENTRY = "run_grader"
IMAGE_KIT = "/gpt149/source"
"""The kit's folder in the image (templates/prairielearn/Dockerfile)."""


@dataclass(frozen=True)
class Made:
    """Content of a release before it is written: archives by name, and folders by name with their files."""

    archives: Mapping[str, bytes]
    folders: Mapping[str, Files] = field(default_factory=dict)


def _nothing(kit: Kit) -> dict[str, File]:
    return {}


@dataclass(frozen=True)
class Product:
    """Product of a release for one platform. `in_handout` returns further files of the handout. `rest` returns the
    files written beside it, given the handout's bytes. `prove` tests the product in use, and raises Unproved."""

    rest: Callable[[Kit, bytes], Made]
    prove: Callable[[ProofSetup, Made], None]
    in_handout: Callable[[Kit], dict[str, File]] = _nothing
    folder: str = ""
    """The folder that is written, "" for none."""


# ---- Gradescope


def _gradescope(kit: Kit, handout: bytes) -> Made:
    return Made({HANDOUT: handout, AUTOGRADER: packed(contents.autograder(kit))})


def _prove_gradescope(bench: ProofSetup, made: Made) -> None:
    proofs.handout(bench, made.archives[HANDOUT])
    proofs.autograder(bench, made.archives[AUTOGRADER])


# ---- GitHub Classroom


def _workflow(kit: Kit) -> dict[str, File]:
    made = contents.texts(TEMPLATES / "github", wording.workflow(kit.assignment))
    return {WORKFLOW: made["classroom.yml"], ".gitignore": made["gitignore"]}


def _prove_github(bench: ProofSetup, made: Made) -> None:
    """Prove that a repository takes every file of the handout. Run the workflow's command in the handout: the starter
    must fail on every part, the solution must pass."""
    proofs.git_takes_all(bench, made.archives[HANDOUT])
    proofs.handout(bench, made.archives[HANDOUT])
    folder = bench.folder / "handout"
    for given, wanted, whose in ((bench.starters, "fail", "starter"), (bench.solutions, "pass", "solution")):
        bench.put(given, folder)
        files = {name: bench.folder / f"{whose}-{name}" for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        said = bench.run(
            ["-m", "grader", "one", ".", "--no-time", "--github"],
            folder,
            accept=(EXIT_PASS, EXIT_SUBMISSION, *((EXIT_KIT,) if bench.lacking else ())),
            variables={name: str(path) for name, path in files.items()},
        )
        if not all(path.is_file() for path in files.values()):
            raise Unproved(
                f"`grader one . --github` left no result of the {whose}: {said.strip().splitlines()[-1:]}"
            )
        told = files["GITHUB_OUTPUT"].read_text(encoding="utf-8").strip().removeprefix("result=")
        found = json.loads(base64.b64decode(told))
        whole = "error" if bench.lacking and wanted == "pass" else wanted
        if found["status"] != whole:
            raise Unproved(
                f"the workflow ends with '{found['status']}' for the {whose}, and not with '{whole}'"
            )
        for test in found["tests"]:
            part = test["name"].partition(":")[0]
            if test["status"] != ("error" if part in bench.lacking else wanted):
                raise Unproved(f"the workflow says '{test['status']}' of {part} for the {whose}")
        scored = sum(test["score"] for test in found["tests"])
        bench.say(
            f"the workflow's result for the {whose}: {whole}, {scored:g} of {found['max_score']:g} points"
        )


# ---- PrairieLearn


def image_name(kit: Kit) -> str:
    return kit.image or f"{kit.assignment.id}-grader"


def _prairielearn(kit: Kit, handout: bytes) -> Made:
    made = contents.texts(TEMPLATES / "prairielearn", wording.question(kit.assignment, image_name(kit)))
    files = {
        **contents.autograder(kit),
        ENTRY: made[ENTRY],
        "not_started.json": File(
            json.dumps(renderer.ungradable(renderer.NOT_STARTED), indent=1).encode() + b"\n",
            origin="results.json without the kit",
        ),
    }
    question = {
        "info.json": File(json.dumps(info(kit), indent=2).encode() + b"\n", origin="info.json"),
        "question.html": made["question.html"],
        "clientFilesQuestion/handout.zip": File(handout, origin=HANDOUT),
        **{f"tests/{path}": file for path, file in contents.configs(kit).items()},
    }
    folder = {f"questions/{kit.assignment.id}/{path}": file for path, file in question.items()}
    folder |= {
        "image/Dockerfile": made["Dockerfile"],
        f"image/{AUTOGRADER}": File(packed(files), origin=AUTOGRADER),
    }
    return Made({HANDOUT: handout}, {"prairielearn": folder})


def info(kit: Kit) -> dict[str, Any]:
    """Return the question's info.json. Its uuid follows from the assignment's id: a later release is the same
    question."""
    return {
        "uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, f"gpt149:{kit.assignment.id}")),
        "title": kit.assignment.title,
        "topic": "Performance",
        "type": "v3",
        "gradingMethod": "External",
        "singleVariant": True,
        "externalGradingOptions": {
            "enabled": True,
            "image": image_name(kit),
            "entrypoint": f"{IMAGE_KIT}/{ENTRY}",
            "timeout": TIMEOUT_S,
            "enableNetworking": False,
        },
    }


def _prove_prairielearn(bench: ProofSetup, made: Made) -> None:
    """Prove the question in the layout of a job, with the kit as in the image. The starter must get 0, the solution
    1, and a file that does not compile must not be gradable. If this machine cannot judge all parts, the solution is
    not tried: its result would prove nothing."""
    proofs.handout(bench, made.archives[HANDOUT])
    files = made.folders["prairielearn"]
    image = proofs.unpacked(bench, files[f"image/{AUTOGRADER}"].content, "image/source")
    tests = {path.partition("/tests/")[2]: file for path, file in files.items() if "/tests/" in path}
    if bench.lacking or bench.untimed:
        # A job in which anything is not judged has no score at all: what is judged is seen part by part.
        proofs.autograder(bench, files[f"image/{AUTOGRADER}"].content)
    first = bench.assignment.source
    broken = {**bench.starters, first: f"{bench.starters[first]}\nthis is no line of C++\n"}
    for given, wanted, whose in (
        (bench.starters, None if bench.lacking else 0.0, "starter"),
        (bench.solutions, 1.0, "solution"),
        (broken, None, "starter with a broken line"),
    ):
        if wanted == 1.0 and (bench.lacking or bench.untimed):
            bench.unseen.append("PrairieLearn's job of the solution (not gradable while anything is open)")
            continue
        root = bench.folder / "grade" / whose.replace(" ", "_")
        for path, file in tests.items():
            (root / "tests" / path).parent.mkdir(parents=True, exist_ok=True)
            (root / "tests" / path).write_bytes(file.content)
        (root / "student").mkdir()
        bench.put(given, root / "student")
        accept = (EXIT_PASS, EXIT_KIT) if bench.lacking else (EXIT_PASS,)
        bench.run(["-m", "grader", "prairielearn", str(root)], image, accept=accept)
        found = json.loads((root / "results" / "results.json").read_text(encoding="utf-8"))
        score = found.get("score") if found.get("gradable") else None
        if bench.lacking and KIT_FAULT.partition(",")[0] in str(found.get("format_errors")):
            raise Unproved(f"PrairieLearn's job ends for the {whose} in a fault of the kit")
        if score != wanted:
            told = found.get("format_errors") or [
                f"{test['name']}: {test['message']}" for test in found["tests"]
            ]
            raise Unproved(f"PrairieLearn's job gives the {whose} {score}, and not {wanted}: {told[0]}")
        bench.say(
            f"PrairieLearn's job: the {whose} {'is not gradable' if score is None else f'gets {score:g}'}"
        )


PRODUCTS: Mapping[str, Product] = {
    "gradescope": Product(_gradescope, _prove_gradescope),
    "github": Product(lambda kit, handout: Made({HANDOUT: handout}), _prove_github, _workflow),
    "prairielearn": Product(_prairielearn, _prove_prairielearn, folder="prairielearn"),
}


def place(platform: str, out: Path) -> Path | None:
    """The folder that a release for a platform writes into `out`, None for none."""
    name = PRODUCTS[platform].folder
    return out / name if name else None
