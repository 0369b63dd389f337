"""Suspected mistakes: each a small function from inputs to the outputs that a kernel with this mistake would give.

Suspects for rows and products take a `suspect.Situation` and return the whole output. Suspects for attention take a
`scene.Heads` and return outputs by name. To add one, write a function with `@mistake(code, words)` in the module of its
subject.
"""
