"""From a wrong output or a crash to a cause, a place and lines.

Knows expected values, one call's outputs, suspects, and the student's text. Offers `Oracle` for labs, `CaseRun`,
`diagnose`, and `closer_look.Closer`. May import `core` to `backends`; the judge's classes fit its protocols.
"""
