"""Grading on many machines: the workers of a dask.distributed scheduler, behind the classroom's `Executor` interface.

Theory of operation. Dask carries messages. The judge (`grader run`) chooses the machines and handles their losses.

    judge (ledger, queue: `executor`)  --jobs-->  dask scheduler  -->  dask worker (`tasks`)  --pipe-->  node (`node`)
                                                                                             workers -- sandbox -- code

Each dask worker has a child process, the node. The node runs the local executor with its workers, and exchanges JSON
lines with the dask worker. So untrusted code runs in processes that have neither the connection to the scheduler nor
its keys. A job contains the submission's files. The answer to a job contains the whole result, for the ledger. The kit
and the assignment are not sent: each machine must have both, and the judge checks this (`proof`) before it sends a job.

The judge chooses the machine of each job, and dask never repeats a job by itself. If a machine is gone, silent or
stopped, its jobs go to other machines, and its late answers are ignored. If a machine is lost while it judges a
submission, the submission is judged again on a machine without other jobs. If two more machines are lost in this way,
the submission counts as the cause and fails.
"""
