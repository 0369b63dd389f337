"""Parts whose kernels run on a GPU: who starts their runners, how they are timed, what they call of others' work."""
