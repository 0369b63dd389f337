"""Labs: one folder for each assignment, with everything that is specific to this assignment.

The engine (`grader/`) imports no lab: `grader.assignment.labs` loads a lab by its name. A lab may import any module of
the engine. A course may keep its own labs in a folder outside of the kit, and name it with `--labs`.
"""

MAIN = "attention"
"""Lab of an assignment file that names no lab."""
