"""Suspects of the lab, possible mistakes, in a module for each kind of operator. Each has words for students and
predicts the whole output of a kernel with this mistake."""
