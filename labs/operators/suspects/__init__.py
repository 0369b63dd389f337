"""Suspects of the lab, a module for each kind of operator. Each predicts the whole output of a kernel with one
mistake."""
