"""Tools that read a student's source: they find functions and lines of C++, and explain the compiler's errors.

Does not start programs. May import `core` and `sandbox`.
"""
