"""What a submission's object and its process give away, as flags; strangers' files are read within limits."""
