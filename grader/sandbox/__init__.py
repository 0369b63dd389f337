"""Sandboxes for a submission: for the compiler that reads its text, and for the runner that runs its native code.

Theory of operation. All secrets are in another process, the judge: inputs, expected values, rubric and clock. The
sandbox confines untrusted code to its own process, in layers. Each tier (A to D) has some of these layers:

    limits      memory, CPU and wall time, file sizes, processes (setrlimit and the judge's clock)        A B C D
    filter      seccomp: no other processes, no signals to other processes, no network                    A B C
    uid         a user id that no other process has, if the judge is root                                 A B C
    files       Landlock: only the system's libraries, Python and the built object; one writable folder   A B
    namespaces  bubblewrap: only those files exist, other processes and the network are invisible         A

The judge starts a compiler through `run_limited`: in its own session, with its output read from a pipe up to a limit.
At the end the whole process group is killed. In tiers A to C the judge starts `lock.py`, a script that locks itself and
becomes the compiler. The compiler sees the submission's text, headers and an empty folder for its object, but no cache.

Native runners lock themselves before they become the student's program; `grader.backends.native.nativehost` lists their
layers. These runners have a filter in tier D, too. The rest of this text is about runners with torch. These are forked
by a zygote (`grader.backends.torch.forkserver`), a process that has imported torch and holds no student code. In tier A
the zygote is started in namespaces.
After the fork, and before it loads the student's object, a runner locks itself with `lock.py`: filter, uid, Landlock.
This makes a new runner cheap, because Python and torch start only once. The zygote keeps its own uid, so a kernel
cannot reach it. If there is only one uid, the filter and Landlock protect the zygote. The judge watches a runner from
outside by its process id, which the Linux kernel translates between the namespaces.

When a runner ends, its folder is removed with all that it left there. In tier A the zygote's whole file system vanishes
when the zygote ends. Only in tier D can a runner leave processes behind; the zygote kills them.

`choose` tries each tier before use: a test program in the sandbox must fail to read a secret and to open a socket.
"""

from grader.sandbox.command import Finished, TimeLimit, patience_s, run_limited
from grader.sandbox.limits import GIB, Limits, process_limit
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
    "of_file",
    "patience_s",
    "process_limit",
    "run_limited",
]
