"""`python -m module_ref_stub`: build the reference library if need be and print where it is. Exit code 3 on failure."""

from __future__ import annotations

import sys

from grader.errors import KitError
from grader.results import EXIT_KIT, EXIT_PASS
from module_ref_stub.library import library_path


def main() -> int:
    try:
        print(library_path())
    except KitError as error:
        print(error, file=sys.stderr)
        return EXIT_KIT
    return EXIT_PASS


if __name__ == "__main__":
    sys.exit(main())
