"""Messages of a cluster: a job to a machine, and the result of its task."""

from __future__ import annotations

import base64
from typing import Any

from grader.core import plainfile
from grader.core.harmless import one_line
from grader.staff.classroom.executor import Job

FETCH_WITHIN_S = 30.0
MOST_RESULT_BYTES = 8 << 20


def request(job: Job, *, only_source: bool) -> dict[str, Any]:
    """Serialize a job: the submission's files, or the source alone; and the earlier result if only a part is judged."""
    files = {path.name: path for path in sorted(job.source.parent.iterdir()) if path.is_file()}
    if only_source:
        files = {job.source.name: job.source}
    found: dict[str, Any] = {
        "submission_id": job.known_as or job.submission_id,
        "source": job.source.name,
        "files": {name: base64.b64encode(path.read_bytes()).decode() for name, path in files.items()},
    }
    if job.left and job.before:
        found["left"] = {part: list(cases) for part, cases in job.left.parts.items()}
        found["before"] = plainfile.read(job.before, MOST_RESULT_BYTES).decode()
    return found


def fetched(future: Any) -> dict[str, Any]:
    """Return a task's result, or a description of its failure."""
    try:
        if future.status == "finished":
            return dict(future.result(timeout=FETCH_WITHIN_S))
        if future.status == "error":
            error = future.exception(timeout=FETCH_WITHIN_S)
            lost = type(error).__name__ in ("KilledWorker", "NoValidWorkerError")
            told = one_line(f"{type(error).__name__}: {error}", 200)
            return {"lost": told} if lost else {"failed": f"it cannot judge: {told}", "refused": told}
    except Exception as error:  # whatever dask raises where a worker is gone in between
        return {"lost": one_line(f"{type(error).__name__}: {error}", 200)}
    return {"lost": f"its task was {future.status}"}
