"""Kernels of the mixed lab with known verdicts."""

from grader.assignment.mutations import Mutation

SUMS = "        for (int c = 0; c < C; c++) sum += std::exp(x[r * C + c]);\n"
ROWS = "    for (int r = 0; r < R; r++) {\n        float sum = 0;\n" + SUMS
COLUMN = "for (int k = 0; k < R; k++) sum += std::exp(x[k * C + c]);"

OUTPUTS = "for (int c = 0; c < C; c++) "
SUMS_OF_COLUMNS = ((SUMS, ""), (f"{OUTPUTS}o", f"{OUTPUTS}sum = 0, [&] {{ {COLUMN} }}(), o"))
COUNTED, OVERWRITTEN = "counted[label[r]]++", "X.data_ptr<float>()[0] = 0"
FLOATS = (("{R}, at::kLong", "{R}, at::kFloat"), ("O.data_ptr<int64_t>()", "O.data_ptr<float>()"))


def one(name: str, part: str, old: str, new: str, *codes: str) -> Mutation:
    return Mutation(name, part, ((old, new),), codes)


WRONG = (
    one("sum not kept", "softmax", "sum += std::exp", "sum = std::exp"),
    Mutation("sums of columns", "softmax", SUMS_OF_COLUMNS, ("wrong_axis",)),
    one("rows exchanged with columns", "softmax", "o[r * C + c] = ", "o[c * R + r] = ", "wrong_layout"),
    one("one row forgotten", "softmax", ROWS, ROWS.replace("r < R", "r < R - 1"), "row_range"),
    one("mean is the sum", "moments", "= sum / C", "= sum", "constant_factor"),
    one("mean never written", "moments", "        mean.data_ptr<float>()[r] = sum / C;\n", "", "not_written"),
    one("counts not begun at 0", "moments", "    for (int k = 0; k < 5; k++) counted[k] = 0;\n", ""),
    one("one label counted", "moments", COUNTED, "counted[0]++"),
    one("an input overwritten", "moments", COUNTED, f"{COUNTED}, {OVERWRITTEN}", "inputs_overwritten"),
    one("not in place", "scale", "x[r * C + c] *= factor", "factor * x[r * C + c]", "not_written"),
    one("factor forgotten", "scale", "*= factor *", "*=", "constant_factor"),
    one("padding forgotten in the stride", "outer", "(r * (C + pad) + c)", "(r * C + c)"),
    one("place forgotten", "counts", " + places.data_ptr<int>()[r]", ""),
    Mutation("whole numbers as floats", "counts", FLOATS, ("wrong_dtype",)),
)

IDLE = "        volatile float idle = 0;\n        for (int c = 0; c < 100 * C; c++) idle = idle + std::exp(x[r * C]);\n"
SLOW = one("a hundred times", "softmax", SUMS, IDLE + SUMS)
