"""Kernels with known verdicts, by function. Only for the staff; a handout lacks this package."""
