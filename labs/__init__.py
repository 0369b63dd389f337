"""One folder for each assignment, with everything that it alone knows. The engine loads a lab by its name
(`grader.assignment.labs`) and imports none; a lab imports what it likes of the engine.

A course keeps its own labs outside of the kit and names their folder.
"""

MAIN = "attention"
"""The lab of an assignment file that names none."""
