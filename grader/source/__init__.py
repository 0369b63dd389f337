"""Reading of a student's source: functions and lines of C++, and explanations of the compiler's errors for students.

Does not start programs. May import `core`.
"""
