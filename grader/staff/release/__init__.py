"""Release of an assignment: the students' handout and a platform's files, made from the staff's sources and tested.

Theory of operation. `contents` collects the files of handout and autograder from a checkout. `products` lists the files
for each platform. `making` looks for lines of the solution and for hidden seeds in the handout. `proofs` unpacks the
archives into empty folders and judges the starter and the solution there. If all these steps succeed, `making` writes
the files. The same sources and commit always give archives with the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from grader.core.errors import EXIT_PASS, UsageError
from grader.core.places import GRADER_COMMAND, ROOT


def main(arguments: Sequence[str]) -> int:
    """Run `python -m grader release --out DIR`. Return 0. Raises UsageError for a missing file or a failed test."""
    from grader.core.commandline import Parser, add_lab

    parse = Parser(prog=f"{GRADER_COMMAND} release", description=(__doc__ or "").splitlines()[0])
    parse.path("--out", "folder for the archives", "DIR", required=True)
    parse.path(
        "--config",
        "the assignment file with hidden cases (default: configs/hidden/gpt149.yaml)",
        default=ROOT / "configs" / "hidden" / "gpt149.yaml",
    )
    add_lab(parse)
    parse.path("--master", "the source with the solution (default: the assignment's)")
    parse.path("--text", "the assignment's text (default: docs/handout.md)")
    parse.path("--writeup", "the write-up's template (default: writeup_template.md)")
    parse.path(
        "--reference",
        "reference objects for other platforms, compiled there by `python -m module_ref_stub FOLDER`",
        nargs="+",
        default=[],
    )
    parse.value(
        "--platform",
        "NAME",
        "platform to release for: github, classroom50, prairielearn (default: gradescope); see `platforms`",
        default="gradescope",
    )
    parse.add_argument("--image", metavar="NAME", default="", help="PrairieLearn image (default: ID-grader)")
    given = parse.parse_args(arguments)

    from grader.staff.release import contents, making, products

    if given.platform not in products.PRODUCTS:
        raise UsageError(
            f"--platform takes {', '.join(products.PRODUCTS)}, not '{given.platform}' "
            f"(gradebooks need no release: see `{GRADER_COMMAND} platforms`)"
        )
    kit = contents.kit(ROOT, given.config, given.master, given.text, given.writeup)
    if given.image and given.platform != "prairielearn":
        raise UsageError(f"--image is only for prairielearn: {given.platform} uses no image")
    kit = replace(kit, image=given.image)
    making.release(kit, given.out, given.reference, print, given.platform)
    return EXIT_PASS
