"""Tools for all packages, independent of any assignment: errors, result records, atomic files, machine facts.

Holds the verdicts (`results`), the errors with their exit codes (`errors`) and the cleaning of untrusted text
(`harmless`). Also contains the formatting of sizes (`quantities`), readers of /proc and of plain files with size
limits, arrays, random numbers and the object cache. Imports no other package of the kit.
"""
