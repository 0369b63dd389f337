"""Labs: one folder for each assignment, with everything that is specific to this assignment.

The engine (`grader/`) has no import of a lab: `grader.assignment.labs` loads a lab by its name. A lab may import any
module of the engine. A course may keep its own labs outside of the kit and name their folder.
"""

MAIN = "attention"
"""Lab of an assignment file that names no lab."""
