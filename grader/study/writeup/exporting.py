"""Export of a write-up to HTML or PDF, if pandoc is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from grader.core.errors import KitError
from grader.core.harmless import one_line

TIMEOUT_S = 120.0
#: GitHub's Markdown without raw HTML, so that untrusted text cannot run code in a browser.
FROM = "gfm-raw_html"


def export(path: Path, kind: str) -> str:
    """Write `path` as "html" or "pdf" beside it. Return a line with the new file, or that pandoc is missing.

    Raises KitError if pandoc fails.
    """
    program = shutil.which("pandoc")
    if program is None:
        return f"no {kind.upper()} was written: pandoc is not installed (apt install pandoc); you can hand in the text"
    target = path.with_suffix(f".{kind}")
    title = path.stem.replace("_", " ")
    command = [program, f"--from={FROM}", "--standalone", f"--metadata=pagetitle:{title}", "--output"]
    try:
        ended = subprocess.run(
            [*command, str(target.absolute()), str(path.absolute())],
            cwd=path.absolute().parent,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise KitError(f"pandoc did not end within {TIMEOUT_S:.0f} s on {path}") from error
    if ended.returncode != 0:
        first = one_line((ended.stderr.strip().splitlines() or ["it printed no reason"])[0], 300)
        hint = "; a PDF needs LaTeX as well: try --export html" if kind == "pdf" else ""
        raise KitError(f"pandoc cannot export {path}: {first}{hint}")
    return f"wrote {target}"
