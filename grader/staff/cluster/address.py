"""Address given by `--cluster`: a scheduler (tcp://HOST:PORT, tls://HOST:PORT), or local:N to try it here."""

from __future__ import annotations

import importlib.util
import re
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grader.core.errors import UsageError
from grader.core.harmless import one_line

if TYPE_CHECKING:
    from distributed import Client

MOST_LOCAL = 64
CONNECT_S = 10.0
_SCHEDULER = re.compile(r"(tcp|tls)://(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9_.-]+):(\d{1,5})")


@dataclass(frozen=True)
class Address:
    """A parsed address. `scheduler` is that of a running scheduler, or "" if `machines` processes are to be started
    here."""

    scheduler: str = ""
    machines: int = 0


def parse(text: str) -> Address:
    """Parse the address. Raises UsageError for an invalid one, and if dask.distributed is not installed."""
    local = re.fullmatch(r"local:(\d{1,3})", text)
    found = _SCHEDULER.fullmatch(text)
    if local and 1 <= int(local[1]) <= MOST_LOCAL:
        address = Address(machines=int(local[1]))
    elif found and 0 < int(found[3]) < 1 << 16:
        address = Address(scheduler=text)
    else:
        raise UsageError(
            f"--cluster {one_line(text, 60)}: name a scheduler as tcp://HOST:8786 or tls://HOST:8786, "
            f"or local:N for N machines (1 to {MOST_LOCAL}) that are made of this one"
        )
    if importlib.util.find_spec("distributed") is None:
        raise UsageError(
            "--cluster needs dask.distributed: pip install 'gpt149[cluster]' here and on each machine"
        )
    return address


def connect(scheduler: str, security: Any = None, within_s: float = CONNECT_S) -> Client:
    """Return a client of a scheduler. Without `security` dask's own settings count (~/.config/dask, DASK_ in the
    environment).

    Raises UsageError, in one line, if no scheduler answers or its protocol differs.
    """
    import logging

    from distributed import Client

    # The judge reports lost connections itself.
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in ("distributed", "tornado"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        return Client(
            scheduler,
            timeout=within_s,
            security=security,
            set_as_default=False,
            name="gpt149",
            direct_to_workers=False,
        )
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise UsageError(_why(scheduler, error)) from error


def _why(scheduler: str, error: BaseException) -> str:
    """Return the reason why a client cannot connect. Dask gives it in texts and in causes."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    words = " ".join(str(each) for each in causes)
    settings = "tls_ca_file, tls_client_cert and tls_client_key of dask's own settings (docs/cluster.md)"
    if any(isinstance(each, ssl.SSLError) for each in causes) or "TLS" in words or "SSL" in words:
        if scheduler.startswith("tls"):
            return f"--cluster {scheduler}: TLS fails ({_short(causes)}): look at {settings}"
        return f"--cluster {scheduler}: the scheduler speaks TLS: name it as tls://, with {settings}"
    if scheduler.startswith("tls"):
        return (
            f"--cluster {scheduler}: no scheduler answers by TLS there within {CONNECT_S:g} s ({_short(causes)}): "
            f"start it with --tls-ca-file, --tls-cert and --tls-key, and set {settings}"
        )
    return (
        f"--cluster {scheduler}: no scheduler answers there within {CONNECT_S:g} s: start one with "
        "`dask scheduler`, or name tls:// where it speaks TLS"
    )


def _short(causes: list[BaseException]) -> str:
    told = next((each for each in causes if isinstance(each, ssl.SSLError)), causes[-1])
    return one_line(f"{type(told).__name__}: {told}", 120)
