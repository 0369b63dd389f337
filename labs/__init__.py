"""One folder for each assignment, with everything that is specific to it. The engine loads a lab by its name
(`grader.assignment.labs`) and imports none; a lab may import any module of the engine.

A course keeps its own labs outside of the kit and names their folder.
"""

MAIN = "attention"
"""Lab of an assignment file that names no lab."""
