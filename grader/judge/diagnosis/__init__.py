"""Diagnosis of a wrong result: where, how much of it, and which mistake would give exactly that."""
