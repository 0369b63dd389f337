"""Suspected mistakes: each a small function from inputs to the outputs that a kernel with this mistake would give.

Those of rows and products take a `suspect.Situation` and give the whole output. Those of attention take a `scene.Heads`
and give outputs by name. To add one, write a function with `@mistake(code, words)` in the module that it is about.
"""
