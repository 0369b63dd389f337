"""Parts whose kernels run on a GPU: who starts their runners, how they are timed, and what they call of others' work."""
