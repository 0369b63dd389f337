"""Suspects of the lab: possible mistakes, each with a message to the student and a prediction of the wrong output.

Predictions for rows and products take a `grader.explain.suspect.Situation` and return the whole output. Predictions for
attention take a `scene.Heads` and return outputs by name. To add a suspect, write a row in the module of its subject.
"""
