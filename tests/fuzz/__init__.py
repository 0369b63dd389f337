"""Tests of every reader of untrusted bytes with damaged and hostile inputs: only documented errors, linear time."""
