"""Many machines: a class graded by the workers of a dask.distributed scheduler, behind the classroom's `Executor`.

Theory of operation. Dask carries messages; what is judged where, and what a loss means, is decided by the judge alone.

    judge (ledger, queue: `executor`)  --jobs-->  dask scheduler  -->  dask worker (`tasks`)  --pipe-->  node (`node`)
                                                                                             workers -- sandbox -- code

A node is a process of its own below each dask worker. It holds the local executor with its workers, and answers in
lines of JSON: nothing below it has the connection to the scheduler, or the keys of it. A job carries the submission's
files; its verdict comes back whole and is put in the ledger as any other. The assignment does not travel: each
machine has the kit and the assignment, and proves it (`proof`), before it is given a job.

Each job is pinned to the machine that the judge has chosen, and dask never repeats one by itself. A machine that is
gone, silent or stopped loses its jobs, which go elsewhere; its late answers count nothing. Who was being judged when
a machine was lost is judged again alone on its machine: only when that is lost twice more is it the submission that
does it.
"""
