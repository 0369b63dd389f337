"""The two ways in which the kit itself refuses to go on, and the exit codes of every command line. A fault of the
submission is a verdict, never an exception."""

EXIT_PASS, EXIT_SUBMISSION, EXIT_USAGE, EXIT_KIT = 0, 1, 2, 3


class UsageError(Exception):
    """A mistake of the person at the command line or in a config file: one line that says what to change (exit 2)."""


class KitError(Exception):
    """The kit or the machine cannot do its work: what is missing and what to do next (exit 3)."""
