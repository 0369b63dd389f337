"""The student's text: functions and lines of C++, and the compiler's errors in words for students.

Nothing here starts a program. May import `core`.
"""
