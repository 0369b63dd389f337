"""Reader of assignment files: checks the YAML and makes an `Assignment` of parts, cases, limits and rubric.

Offers `loading.load`, whose errors name the file, the line and the key. This package may import `core`.
"""
