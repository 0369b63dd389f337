"""Texts of the master that several edits replace."""

from __future__ import annotations

MOST = """        float most = -INFINITY;
        for (int j = 0; j < C; j++) {
            most = std::max(most, x[j]);
        }
"""
"""The first pass of `safe`."""
NAIVE_SUM = """        for (int j = 0; j < C; j++) {
            sum += std::exp(x[j]);
        }
"""
NAIVE_WRITE = """        for (int j = 0; j < C; j++) {
            o[j] = std::exp(x[j]) / sum;
        }
"""
SAFE_SUM = """        for (int j = 0; j < C; j++) {
            sum += std::exp(x[j] - most);
        }
"""
WRITE = """        for (int j = 0; j < C; j++) {
            o[j] = std::exp(x[j] - most) / total;
        }
"""
"""The last pass of `safe` and `online`."""
SKIP = "            if (x[j] == -INFINITY) continue;  // it adds nothing, and -inf - -inf is no number\n"
NOW = "            const float now = std::max(most, x[j]);\n"
UPDATE = "            sum = sum * std::exp(most - now) + std::exp(x[j] - now);\n"
KEEP = "            most = now;\n"
START = "        float most = -INFINITY;\n        double sum = 0.0;\n"
ONLINE_PASS = "        for (int j = 0; j < C; j++) {\n" + SKIP + NOW + UPDATE + KEEP + "        }\n"
ROWS = "    for (int i = 0; i < R; i++) {\n"
ROW = "        const float *x = X + (size_t)i * C;\n        float *o = O + (size_t)i * C;\n"
J = "(int j = 0; j < C; j++)"
BLOCKS_OF_8 = "(int j = 0; j < C / 8 * 8; j++)"
