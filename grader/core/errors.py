"""Exceptions for the kit's own failures, and the exit codes of every command line.

A fault of the submission is a verdict, never an exception.
"""

EXIT_PASS, EXIT_SUBMISSION, EXIT_USAGE, EXIT_KIT = 0, 1, 2, 3


class UsageError(Exception):
    """A mistake on the command line or in a config file: one line that says what to change (exit 2)."""


class KitError(Exception):
    """Failure of the kit or of the machine: what is missing and what to do next (exit 3)."""
