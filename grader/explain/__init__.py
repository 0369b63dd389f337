"""Explanation of a wrong output or a crash: its cause, its place in the output, and lines of the student's file.

Knows expected values, one call's outputs, suspects (usual mistakes) and the student's text. Offers `Oracle`, `CaseRun`,
`diagnose` and `closer_look.Closer`. May import the packages from `core` to `backends`. It does not import `judge`, and
uses classes of `judge` through the protocols in `judged_part`.
"""
