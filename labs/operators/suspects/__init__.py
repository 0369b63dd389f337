"""Mistakes that explain wrong results: each predicts the whole output that it would give, by the kind of operator."""
