"""Many machines: a class graded by the workers of a dask.distributed scheduler, behind the classroom's `Executor`.

Theory of operation. Dask carries messages; the judge alone places the jobs and handles losses.

    judge (ledger, queue: `executor`)  --jobs-->  dask scheduler  -->  dask worker (`tasks`)  --pipe-->  node (`node`)
                                                                                             workers -- sandbox -- code

A node is a child process of each dask worker. It runs the local executor with its workers, and exchanges lines of JSON
with the dask worker. So the processes below it have neither the connection to the scheduler nor its keys. A job carries
the submission's files; the whole result comes back and is put into the ledger. The assignment is not sent: each machine
has the kit and the assignment, which is checked (`proof`) before the machine gets a job.

The judge chooses the machine of each job, and dask never repeats a job by itself. If a machine is gone, silent or
stopped, its jobs go to other machines, and its late answers are ignored. A submission that was being judged on a lost
machine is judged again, alone on another machine. If two more machines are lost that way, the submission counts as the
cause.
"""
