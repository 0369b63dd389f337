"""Suspects of the lab, in a module for each kind of operator.

A suspect is a possible mistake. It has a message to the student, and predicts the whole output of a kernel with the
mistake.
"""
