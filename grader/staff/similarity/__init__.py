"""Comparison of submissions: pairs with similar code, and groups with the same wrong outputs."""
