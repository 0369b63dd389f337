"""Assignment files: YAML is read and checked into an `Assignment` of parts, cases, limits and rubric.

Gives `loading.load`, and errors that name the file, the line and the key. May import `core`.
"""
