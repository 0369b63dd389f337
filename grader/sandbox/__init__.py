"""Confinement of the two untrusted things a submission is: text for a compiler, and native code in a runner.

Theory of operation. All secrets are in another process: the judge has the inputs, the expected values, the rubric and
the clock. The sandbox keeps untrusted code inside its own process, in layers. A tier is a set of them:

    limits      memory, CPU and wall time, file sizes, processes (setrlimit and the judge's clock)        A B C D
    filter      seccomp: no process but one's own, no signal but to oneself, no network                   A B C
    uid         a user id that nobody else has, if the judge is root                                      A B C
    files       Landlock: the system's libraries, Python, one's own object; one folder to write to        A B
    namespaces  bubblewrap: those files are all that is there, the processes and the network too          A

A compiler is started by the judge through `run_limited`: own session, output read through a pipe up to a bound, the
whole process group killed at the end. In a sandbox it goes through `lock.py`, a script that locks itself and becomes
the compiler; it then sees the submission's text, the headers and an empty folder for its object, never the cache.

Native runners lock themselves before they become the student's program: `native.nativehost` lists the layers of each
tier there. They have a filter in tier D, too. The rest of this text is about runners with torch. These are forked by a
zygote (`torch.forkserver`), which has imported torch and holds no student code. In tier A it lives in namespaces from
its start. Each runner puts on the filter, the uid and Landlock after the fork and before it loads the student's object,
by the same `lock.py`. That order makes a runner cheap: Python and torch start once without a lock, and the locked
process only has to compute. The zygote keeps its own uid (or, where there is just one, is protected by the filter and
Landlock), so a kernel cannot reach it. The judge watches a runner from outside by its id, which the kernel translates
between the namespaces.

A runner's leftovers are removed with it. Its folder is its own, and a tier A zygote takes its whole file system along.
Processes can only be left behind in tier D, where the zygote kills them.

`choose` tries each tier before it believes it: a process inside must fail to read a file outside and to open a socket.
"""

from grader.sandbox.command import Finished, TimeLimit, patience_s, run_limited
from grader.sandbox.limits import GIB, Limits, process_limit, signal_limit
from grader.sandbox.tiers import INSIDE, LOCK, OPEN, Sandbox, Tier, choose, of_file

__all__ = [
    "GIB",
    "INSIDE",
    "LOCK",
    "OPEN",
    "Finished",
    "Limits",
    "Sandbox",
    "Tier",
    "TimeLimit",
    "choose",
    "describe",
    "of_file",
    "patience_s",
    "process_limit",
    "run_limited",
    "signal_limit",
]


def describe() -> dict[str, object]:
    """Return the tier of a student's own run, for the result file."""
    return OPEN.describe()
