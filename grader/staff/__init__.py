"""Commands for the staff: classes, platforms, similarity, write-ups, the self-test, and releases.

No handout contains this package. It may import every other package.
"""
