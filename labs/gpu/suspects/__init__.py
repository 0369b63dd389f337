"""Suspects of the lab, possible mistakes: each has words for students and predicts the outputs of a wrong kernel.

Suspects for rows and products take a `suspect.Situation` and return the whole output. Suspects for attention take a
`scene.Heads` and return outputs by name. To add a suspect, write a row in the module of its subject.
"""
