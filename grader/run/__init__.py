"""Runs a program or an object and holds the clock: one request, one reply, and what was seen from outside.

`inside/`, `runner`, `loaded`, `delays` and `forkserver` stand beside a stranger's code and import nothing of the
kit; the rest is the trusted side. May import `base`, `sandbox` and `build`.
"""
