"""Damaged and hostile inputs for every reader of untrusted bytes: only documented errors, in linear time."""
