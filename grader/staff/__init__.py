"""Rooms for the staff: classes, platforms, similarity, write-ups, the kit's own trial, and releases.

Never in a handout. May import every room.
"""
