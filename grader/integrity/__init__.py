"""Flags for people: signs of cheating in a submission's object file and in its process."""
