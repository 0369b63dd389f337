"""Kernels whose end is known, by function: for the staff, not handed out."""
