"""Flags from a submission's object and process; untrusted files are read within limits."""
