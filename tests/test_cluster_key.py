"""A local cluster speaks TLS or is not started."""

from __future__ import annotations

from pathlib import Path

import pytest

from grader.base.errors import KitError
from grader.staff.cluster import local

pytest.importorskip("distributed")


@pytest.mark.parametrize(
    ("program", "why"),
    [(None, "needs openssl"), ("echo no entropy >&2; exit 1", "no entropy"), ("exit 1", "says nothing")],
)
def test_no_cluster_without_a_key(
    program: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if program is not None:
        (tmp_path / "openssl").write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "openssl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if program else str(tmp_path))
    monkeypatch.setattr(local.LocalMachines, "tend", lambda self: pytest.fail("it was started"))
    with pytest.raises(KitError, match=why) as refused:
        local.LocalMachines(1, tmp_path)
    assert "\n" not in str(refused.value)
