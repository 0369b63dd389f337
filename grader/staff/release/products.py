"""Files of a release for each platform, and the tests of these files.

`PRODUCTS` has an entry for each platform in `grader.staff.platforms.table` that needs a release, by the same name.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grader.core.errors import EXIT_KIT, EXIT_PASS, EXIT_SUBMISSION
from grader.report import classroom50, github
from grader.report import prairielearn as renderer
from grader.report.gradescope import KIT_FAULT
from grader.staff.platforms import classroom50 as bundled
from grader.staff.platforms.prairielearn import TIMEOUT_S
from grader.staff.release import contents, proofs, wording
from grader.staff.release.contents import AUTOGRADER, HANDOUT, TEMPLATES, File, Files, Kit, packed
from grader.staff.release.proofs import ProofSetup, Unproved

WORKFLOW = ".github/workflows/public-tests.yml"
BUNDLE_SCRIPT = "autograder.py"
#: Sample values of the environment variables that Classroom 50's runner sets, for the test of its bundle.
CLASSROOM50_SAMPLE = {
    "CLASSROOM": "sample",
    "ASSIGNMENT": "sample",
    "ASSIGNMENT_TYPE": "individual",
    "OWNER": "student",
    "SUBMISSION_TAG": "submit/1",
    **{f"{name}_URL": "https://example.org/" for name in ("COMMIT", "RELEASE", "REVIEW")},
}
ENTRY = "run_grader"
IMAGE_KIT = "/gpt149/source"
"""Folder of the kit in PrairieLearn's image (templates/prairielearn/Dockerfile)."""


@dataclass(frozen=True)
class Made:
    """Files of a release before they are written: {archive: bytes} and {folder: its files by path}."""

    archives: Mapping[str, bytes]
    folders: Mapping[str, Files] = field(default_factory=dict)


@dataclass(frozen=True)
class Product:
    """Functions that make and test one platform's release.

    `in_handout(kit)` returns files to add to the handout. `rest(kit, handout)` makes the release from the sources and
    the bytes of handout.zip. `prove(setup, made)` tests the release, and raises Unproved if a test fails.
    """

    rest: Callable[[Kit, bytes], Made]
    prove: Callable[[ProofSetup, Made], None]
    in_handout: Callable[[Kit], dict[str, File]] = lambda kit: {}
    folder: str = ""
    """Name of the folder that the release writes; "" if it writes only archives."""


# ---- Gradescope


def _gradescope(kit: Kit, handout: bytes) -> Made:
    return Made({HANDOUT: handout, AUTOGRADER: packed(contents.autograder(kit))})


def _prove_gradescope(bench: ProofSetup, made: Made) -> None:
    proofs.handout(bench, made.archives[HANDOUT])
    proofs.autograder(bench, made.archives[AUTOGRADER])


# ---- repositories on GitHub


def _gitignore(kit: Kit) -> dict[str, File]:
    return {".gitignore": contents.texts(TEMPLATES / "github", {})["gitignore"]}


def _workflow(kit: Kit) -> dict[str, File]:
    made = contents.texts(TEMPLATES / "github", wording.workflow(kit.assignment))
    return {WORKFLOW: made["public-tests.yml"], **_gitignore(kit)}


def _prove_github(bench: ProofSetup, made: Made) -> None:
    """Test the handout as a repository on GitHub, with the command of its workflow.

    Git must not ignore a file of the handout. The starter must fail every part, and the solution must pass.
    """
    proofs.git_takes_all(bench, made.archives[HANDOUT])
    proofs.handout(bench, made.archives[HANDOUT])
    folder = bench.folder / "handout"
    for given, wanted, whose in ((bench.starters, "fail", "starter"), (bench.solutions, "pass", "solution")):
        bench.put(given, folder)
        files = {name: bench.folder / f"{whose}-{name}" for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        judged = bench.folder / f"{whose}.json"
        said = bench.run(
            ["-m", "grader", "one", ".", "--no-time", "--github", "--json", str(judged)],
            folder,
            accept=(EXIT_PASS, EXIT_SUBMISSION, *((EXIT_KIT,) if bench.lacking else ())),
            variables={name: str(path) for name, path in files.items()},
        )
        if not all(path.is_file() for path in (judged, *files.values())):
            raise Unproved(
                f"`grader one . --github` wrote no result for the {whose}: {said.strip().splitlines()[-1:]}"
            )
        parts = {part["id"]: part for part in json.loads(judged.read_text(encoding="utf-8"))["parts"]}
        check = proofs.earns_nothing if wanted == "fail" else proofs.earns_all
        check(parts, f"the {whose} in the workflow")
        found = dict(
            line.partition("=")[::2]
            for line in files["GITHUB_OUTPUT"].read_text(encoding="utf-8").splitlines()
        )
        whole = "error" if bench.lacking and wanted == "pass" else wanted
        if found["status"] != whole:
            raise Unproved(f"the workflow ends with '{found['status']}' for the {whose} instead of '{whole}'")
        bench.say(f"the workflow's result for the {whose}: {whole}, {found['summary']}")


# ---- Classroom 50


def _classroom50(kit: Kit, handout: bytes) -> Made:
    bundle = {
        BUNDLE_SCRIPT: Path(bundled.__file__).read_bytes(),
        bundled.HANDOUT: handout,
        bundled.PACKAGES: wording.packages(kit.assignment).encode(),
    }
    folder = {f"autograders/{kit.assignment.id}/{name}": File(content) for name, content in bundle.items()}
    # assignment.json has settings that the staff enter in Classroom 50: the machine, the files to hand in, and the
    # files of a result.
    written = ["writeup.md"] if kit.writeup is not None else []
    block = {
        "runtime": wording.runtime(kit.assignment),
        "allowed_files": [*kit.assignment.sources, *written],
        "release_assets": ["verdict.html"],
    }
    folder["assignment.json"] = contents.json_file(block)
    return Made({HANDOUT: handout}, {"classroom50": folder})


def _prove_classroom50(bench: ProofSetup, made: Made) -> None:
    """Test the bundle in three checkouts: with the starter, with the solution, and without a source.

    Each checkout also contains a forged result. The scores must be 0, the maximum, and 0.
    """
    proofs.git_takes_all(bench, made.archives[HANDOUT])
    proofs.handout(bench, made.archives[HANDOUT])
    bundle = bench.folder / "classroom50"
    contents.write(made.folders["classroom50"], bundle)
    script = bundle / "autograders" / bench.assignment.id / BUNDLE_SCRIPT
    for given, whose in (
        (bench.starters, "starter"),
        (bench.solutions, "solution"),
        ({}, "empty repository"),
    ):
        checkout = bench.folder / f"checkout of {whose}"
        checkout.mkdir()
        bench.put({**given, classroom50.RESULT: '{"score": 1000000}'}, checkout)
        files = {name: str(checkout / name) for name in github.FILES}
        bench.run([str(script)], checkout, accept=(EXIT_PASS,), variables={**CLASSROOM50_SAMPLE, **files})
        found = json.loads((checkout / classroom50.RESULT).read_text(encoding="utf-8"))
        lacking = {part.id for part in bench.assignment.parts if part.id in bench.lacking}
        for test in found["tests"]:
            wanted = test["max-score"] if given is bench.solutions else 0
            part = test["test-name"].partition(":")[0]
            if part not in lacking and test["score"] != wanted:
                raise Unproved(
                    f"Classroom 50's result gives the {whose} {test['score']} of {test['max-score']} on {part} "
                    f"instead of {wanted}"
                )
        bench.say(f"Classroom 50's result for the {whose}: {found['score']} of {found['max-score']}")


# ---- PrairieLearn


def image_name(kit: Kit) -> str:
    return kit.image or f"{kit.assignment.id}-grader"


def _prairielearn(kit: Kit, handout: bytes) -> Made:
    made = contents.texts(TEMPLATES / "prairielearn", wording.question(kit.assignment, image_name(kit)))
    files = {
        **contents.autograder(kit),
        ENTRY: made[ENTRY],
        "not_started.json": contents.json_file(renderer.ungradable(renderer.NOT_STARTED)),
    }
    question = {
        "info.json": contents.json_file(info(kit)),
        "question.html": made["question.html"],
        "clientFilesQuestion/handout.zip": File(handout),
        **{f"tests/{path}": file for path, file in contents.configs(kit).items()},
    }
    folder = {f"questions/{kit.assignment.id}/{path}": file for path, file in question.items()}
    folder |= {
        "image/Dockerfile": made["Dockerfile"],
        f"image/{AUTOGRADER}": File(packed(files)),
    }
    return Made({HANDOUT: handout}, {"prairielearn": folder})


def info(kit: Kit) -> dict[str, Any]:
    """Return the question's info.json as JSON values.

    The uuid depends only on the assignment's id, so PrairieLearn takes a new release as a new version of the question.
    """
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
    """Test the question in the folders of a PrairieLearn job, with the kit's files as in the image.

    The starter must get the score 0, the solution 1, and a file that does not compile must be "not gradable". If this
    machine cannot judge all parts and times, the solution is skipped, because its job would have no score.
    """
    proofs.handout(bench, made.archives[HANDOUT])
    files = made.folders["prairielearn"]
    image = proofs.unpacked(bench, files[f"image/{AUTOGRADER}"].content, "image/source")
    tests = {path.partition("/tests/")[2]: file for path, file in files.items() if "/tests/" in path}
    if bench.lacking or bench.untimed:
        # Jobs with an unjudged part have no score. The test of the autograder checks each judged part instead.
        proofs.autograder(bench, files[f"image/{AUTOGRADER}"].content)
    first = bench.assignment.source
    broken = {**bench.starters, first: f"{bench.starters[first]}\nthis is no line of C++\n"}
    for given, wanted, whose in (
        (bench.starters, None if bench.lacking else 0.0, "starter"),
        (bench.solutions, 1.0, "solution"),
        (broken, None, "starter with a syntax error"),
    ):
        if wanted == 1.0 and (bench.lacking or bench.untimed):
            bench.unseen.append("PrairieLearn's job of the solution (not gradable while a part is unjudged)")
            continue
        root = bench.folder / "grade" / whose.replace(" ", "_")
        contents.write(tests, root / "tests")
        (root / "student").mkdir()
        bench.put(given, root / "student")
        accept = (EXIT_PASS, EXIT_KIT) if bench.lacking else (EXIT_PASS,)
        bench.run(["-m", "grader", "prairielearn", str(root)], image, accept=accept)
        found = json.loads((root / "results" / "results.json").read_text(encoding="utf-8"))
        score = found.get("score") if found.get("gradable") else None
        if bench.lacking and KIT_FAULT.partition(",")[0] in str(found.get("format_errors")):
            raise Unproved(f"PrairieLearn's job reports a fault of the kit for the {whose}")
        if score != wanted:
            reasons = found.get("format_errors") or [
                f"{test['name']}: {test['message']}" for test in found["tests"]
            ]
            raise Unproved(f"PrairieLearn's job gives the {whose} {score} instead of {wanted}: {reasons[0]}")
        bench.say(
            f"PrairieLearn's job: the {whose} {'is not gradable' if score is None else f'gets {score:g}'}"
        )


PRODUCTS: Mapping[str, Product] = {
    "gradescope": Product(_gradescope, _prove_gradescope),
    "github": Product(lambda kit, handout: Made({HANDOUT: handout}), _prove_github, _workflow),
    "classroom50": Product(_classroom50, _prove_classroom50, _gitignore, folder="classroom50"),
    "prairielearn": Product(_prairielearn, _prove_prairielearn, folder="prairielearn"),
}
