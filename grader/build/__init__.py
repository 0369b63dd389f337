"""From a source to what can be run: the program that is judged, and the object for a process with torch.

Gives builds from the cache, and the compiler's errors in words for students. Nothing here runs a student's code. May
import `base`, `assignment` and `sandbox`.
"""
