"""Looks closer at a part that is wrong or crashes: its lines, the sizes that matter, and
what checked builds see. None of it changes a verdict or points."""
