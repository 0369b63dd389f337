"""`autograder.py` for Classroom 50: a release puts this file and `handout.zip` into one folder, the bundle.

Theory of operation. Classroom 50's runner starts this program in the student's checkout. The program first deletes
files in the checkout that have the names of its results. It unpacks the handout, which has only public cases, into a
folder outside of the checkout. It runs `gpt149.py` there, so no module of the checkout can be imported. Then it copies
`result.json`, `release-body.md` and `verdict.html` into the checkout. `gpt149.py` itself writes GitHub's summary,
annotations and outputs.

The exit code is 0 if `result.json` was written, and 3 if the kit could not grade. This program does not import the kit.
It runs on Python 3.10 or newer, and installs packages that are missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HANDOUT = "handout.zip"
RESULT = "result.json"
WRITTEN = (RESULT, "release-body.md", "verdict.html")
PACKAGES = "packages.txt"
"""File in this folder with the packages that judging needs, one per line."""
TIMEOUT_S = 1500
FAILED = 3


def main() -> int:
    """Grade the checkout in the working directory. Return the exit code."""
    checkout = Path.cwd()
    for name in WRITTEN:
        remove(checkout / name)
    with tempfile.TemporaryDirectory(prefix="gpt149-", ignore_cleanup_errors=True) as folder:
        try:
            why = grade(checkout, Path(folder))
        except (OSError, subprocess.SubprocessError, zipfile.BadZipFile) as error:
            why = str(error)
        if why:
            print(
                f"autograder.py: grading failed: {why}. This is not the fault of the submission.",
                file=sys.stderr,
            )
            return FAILED
    return 0


def grade(checkout: Path, scratch: Path) -> str:
    """Grade the checkout, and copy the files of the result into it. Return "", or the reason why the result is missing.

    The kit is unpacked into the empty folder `scratch`.
    """
    bundle = Path(__file__).resolve().parent
    kit, out, packages = (scratch / name for name in ("kit", "out", "packages"))
    out.mkdir()
    with zipfile.ZipFile(bundle / HANDOUT) as archive:
        archive.extractall(kit)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["PYTHONPATH"] = str(packages)
    environment.setdefault("GPT149_CACHE", str(scratch / "cache"))
    environment.setdefault("GITHUB_WORKSPACE", str(checkout))
    if not has_packages(kit, environment):
        wanted = ["--quiet", "--target", str(packages), "--requirement", str(bundle / PACKAGES)]
        install = [sys.executable, "-m", "pip", "install", *wanted]
        if subprocess.run(install, cwd=kit, env=environment, timeout=TIMEOUT_S).returncode != 0:
            return "pip could not install the packages that grading needs"
    command = ["all", "--no-time", "--no-table", "--github", "--module", str(checkout)]
    command += ["--classroom50", str(out), "--html", str(out / "verdict.html")]
    sys.stdout.flush()
    ended = subprocess.run(
        [sys.executable, "gpt149.py", *command],
        cwd=kit,
        env=environment,
        stdin=subprocess.DEVNULL,
        timeout=TIMEOUT_S,
    )
    if not (out / RESULT).is_file():
        return f"the grader ended with exit code {ended.returncode} and without a result"
    for name in WRITTEN:
        remove(checkout / name)
        if (out / name).is_file():
            shutil.copyfile(out / name, checkout / name)
    return ""


def has_packages(kit: Path, environment: dict[str, str]) -> bool:
    """Return True if this Python can import every package that the file PACKAGES lists."""
    lines = Path(__file__).resolve().with_name(PACKAGES).read_text(encoding="utf-8").splitlines()
    names = [found[0] for line in lines if (found := re.match(r"[A-Za-z0-9_.]+", line))]
    ask = "import importlib.metadata, sys; [importlib.metadata.version(name) for name in sys.argv[1:]]"
    tried = [sys.executable, "-c", ask, *names]
    return subprocess.run(tried, cwd=kit, env=environment, stderr=subprocess.DEVNULL).returncode == 0


def remove(path: Path) -> None:
    """Remove a file, a link or a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
