"""Many machines: a class graded by the workers of a dask.distributed scheduler, behind the classroom's `Executor`.

Theory of operation. Dask carries messages; the judge alone places the jobs and handles losses.

    judge (ledger, queue: `executor`)  --jobs-->  dask scheduler  -->  dask worker (`tasks`)  --pipe-->  node (`node`)
                                                                                             workers -- sandbox -- code

A node is a child process of each dask worker. It holds the local executor with its workers, and answers in
lines of JSON: nothing below it has the connection to the scheduler, or the keys of it. A job carries the submission's
files; its verdict comes back whole and is put in the ledger as any other. The assignment does not travel: each
machine has the kit and the assignment, and proves it (`proof`), before it is given a job.

Each job is pinned to the machine that the judge has chosen, and dask never repeats one by itself. A machine that is
gone, silent or stopped loses its jobs, which go elsewhere; its late answers are ignored. A submission that was being
judged on a lost machine is judged again, alone on its machine. If two more machines are lost that way, the submission
counts as the cause.
"""
