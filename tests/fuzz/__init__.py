"""Damaged and hostile inputs for every reader of a stranger's bytes: no error but the promised one, in linear time."""
