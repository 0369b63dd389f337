"""Tasks and points: from an assignment's YAML to a checked `Assignment` of parts, cases, limits and rubric.

Gives `loading.load`, and errors that name the file, the line and the key. May import `core`.
"""
