"""Submissions of independent people, each made from the starter by the many small choices that people make.

Two authors never see each other's text, yet one assignment leaves them few ways: most of their loops agree. That makes
them the hard negatives of a search for copies. Every choice is drawn from the author's own generator, so that an author
is repeatable.
"""

from __future__ import annotations

import random
import re

INDEX = {
    "Q": "((b * H + h) * N + i) * d + k",
    "K": "((b * H + h) * N + j) * d + k",
    "V": "((b * H + h) * N + j) * d + k",
    "O": "((b * H + h) * N + i) * d + k",
}


class Author:
    """One person's habits, and the parts as that person writes them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.access = self.pick("accessor", "accessor", "index", "pointer", "lambda")
        self.step = self.pick("{0}++", "{0}++", "++{0}")
        self.number = self.pick("0.0f", "0", "0.f", "0.0")
        self.braces = self.pick(True, True, False)
        self.minimum = self.pick("std::min({0}, {1})", "({0} < {1} ? {0} : {1})", "std::min<int>({0}, {1})")
        self.exp = self.pick("std::exp({0})", "exp({0})", "expf({0})")
        self.comments = self.pick(0.0, 0.1, 0.4)
        self.helpers: list[str] = []

    def pick(self, *choices: object) -> object:
        return self.rng.choice(choices)

    def maybe(self, chance: float = 0.5) -> bool:
        return self.rng.random() < chance

    # ---- the smallest pieces

    def loop(self, name: str, end: str, body: str, start: str = "0", step: str = "") -> str:
        head = f"for (int {name} = {start}; {name} < {end}; {step or str(self.step).format(name)})"
        single = body.count(";") == 1 and "for" not in body
        if single and not self.braces:
            return f"{self.remark()}{head}\n{body}"
        return f"{self.remark()}{head} {{\n{body}\n}}"

    def remark(self) -> str:
        words = (
            "row",
            "sum",
            "softmax",
            "next",
            "all keys",
            "dot product",
            "normalise",
            "scores",
            "of this head",
        )
        if self.rng.random() >= float(str(self.comments)):
            return ""
        return f"// {' '.join(self.rng.sample(words, 3))}\n"

    def read(self, tensor: str, i: str = "i", j: str = "j", k: str = "k") -> str:
        row = i if tensor in "QO" else j
        if self.access == "accessor":
            return f"fourDimRead({tensor}, b, h, {row}, {k}, H, N, d)"
        if self.access == "lambda":
            return f"{tensor}[at(b, h, {row}, {k})]"
        if self.access == "pointer":
            return f"{tensor.lower()}[{row} * d + {k}]"
        return f"{tensor}[((b * H + h) * N + {row}) * d + {k}]"

    def write(self, value: str, i: str = "i", k: str = "k") -> str:
        if self.access == "accessor":
            return f"fourDimWrite(O, b, h, {i}, {k}, H, N, d, {value});"
        return f"{self.read('O', i, '', k)} = {value};"

    def read2(self, matrix: str, i: str, j: str, width: str) -> str:
        if self.access == "accessor":
            return f"twoDimRead({matrix}, {i}, {j}, {width})"
        return f"{matrix}[{i} * {width} + {j}]"

    def write2(self, matrix: str, i: str, j: str, width: str, value: str) -> str:
        if self.access == "accessor":
            return f"twoDimWrite({matrix}, {i}, {j}, {width}, {value});"
        return f"{matrix}[{i} * {width} + {j}] = {value};"

    def call_exp(self, text: str) -> str:
        return str(self.exp).format(text)

    def least(self, a: str, b: str) -> str:
        return str(self.minimum).format(a, b)

    def heads(self, body: str, pragma: str = "") -> str:
        """The loops over batch and head around a body, with what the way of access needs."""
        offset = str(self.pick("(b * H + h) * N * d", "b * H * N * d + h * N * d", "N * d * (h + H * b)"))
        if self.access == "pointer":
            names = self.rng.sample("QKV", 3)
            pointers = "".join(f"float *{n.lower()} = {n}.data() + {offset};\n" for n in names)
            body = f"{pointers}float *o = O.data() + {offset};\n{body}"
        if self.access == "lambda":
            index = self.pick(
                "((b * H + h) * N + i) * d + k",
                "b * H * N * d + h * N * d + i * d + k",
                "k + d * (i + N * (h + H * b))",
            )
            body = f"auto at = [&](int b, int h, int i, int k) {{ return {index}; }};\n{body}"
        if not pragma and self.access != "accessor" and self.maybe(0.3):
            return self.loop("bh", "B * H", f"int b = bh / H, h = bh % H;\n{body}")
        return pragma + self.loop("b", "B", self.loop("h", "H", body))

    # ---- pieces of attention

    def dot(self) -> str:
        """The body of a loop over j: one score in `s`."""
        product = f"{self.read('Q')} * {self.read('K')}"
        if self.maybe(0.2):
            product = f"{self.read('K')} * {self.read('Q')}"
        if self.maybe(0.25):
            q, v = self.read("Q"), self.read("K")
            return f"float s = {self.number};\n" + self.loop(
                "k", "d", f"float a = {q};\nfloat c = {v};\ns += a * c;"
            )
        added = f"s += {product};" if self.maybe(0.8) else f"s = s + {product};"
        return f"float s = {self.number};\n" + self.loop("k", "d", added)

    def softmax(self, matrix: str, row: str, width: str, end: str = "N", divide: bool = True) -> str:
        """One row in place; the sum stays in `total`."""
        cell, safe = self.read2(matrix, row, "j", width), self.maybe(0.25)
        text, inner = "", cell
        if safe:
            larger = self.pick(f"if ({cell} > top) top = {cell};", f"top = std::max(top, {cell});")
            text += f"float top = {cell.replace(' j,', ' zero,') if False else '-INFINITY'};\n"
            text += self.loop("j", end, str(larger))
            inner = f"{cell} - top"
        store = self.write2(matrix, row, "j", width, "e")
        steps = [store, "total += e;"]
        if self.maybe(0.3):
            steps.reverse()
        if self.maybe(0.3):
            text += self.loop("j", end, self.write2(matrix, row, "j", width, self.call_exp(inner)))
            text += f"\nfloat total = {self.number};\n" + self.loop("j", end, f"total += {cell};")
        else:
            text += f"float total = {self.number};\n"
            text += self.loop("j", end, f"float e = {self.call_exp(inner)};\n" + "\n".join(steps))
        if divide:
            if self.maybe(0.2) and self.access != "accessor":
                text += "\nfloat inverse = 1 / total;\n" + self.loop("j", end, f"{cell} *= inverse;")
            else:
                text += "\n" + self.loop("j", end, self.write2(matrix, row, "j", width, f"{cell} / total"))
        return text

    def values(self, matrix: str, row: str, width: str, divided: bool) -> str:
        """A row of the output from a row of weights."""
        weight = self.read2(matrix, row, "j", width)
        last = "v" if divided else "v / total"
        if self.maybe(0.7):
            inner = f"float v = {self.number};\n" + self.loop("j", "N", f"v += {weight} * {self.read('V')};")
            return self.loop("k", "d", f"{inner}\n{self.write(last)}")
        scale = "" if divided else " / total"
        inner = f"float w = {weight}{scale};\n"
        if self.maybe(0.5):
            inner += self.loop("k", "d", self.write(f"{self.read('O')} + w * {self.read('V')}"))
            return self.loop("j", "N", inner)
        inner += self.loop("k", "d", f"row[k] += w * {self.read('V')};")
        return (
            f"std::vector<float> row(d, {self.number});\n"
            + self.loop("j", "N", inner)
            + "\n"
            + self.loop("k", "d", self.write("row[k]"))
        )

    # ---- the parts

    def part1(self) -> str:
        score = self.loop("j", "N", self.dot() + "\n" + self.write2("QK_t", "i", "j", "N", "s"))
        divided = self.maybe(0.75)
        softmax = self.softmax("QK_t", "i", "N", divide=divided)
        values = self.values("QK_t", "i", "N", divided)
        if divided and self.maybe(0.6):
            return self.heads("\n".join(self.loop("i", "N", piece) for piece in (score, softmax, values)))
        if divided or self.maybe():
            return self.heads(self.loop("i", "N", score) + "\n" + self.loop("i", "N", f"{softmax}\n{values}"))
        return self.heads(self.loop("i", "N", f"{score}\n{softmax}\n{values}"))

    def tiles(self, order: str, ends: dict[str, str], body: str) -> str:
        """Loops over tiles in this order and, inside, over their elements in the order i, then the others."""
        tile = str(self.tile)
        early = self.early_ends
        inner = body
        for name in reversed(order):
            top = f"{name}_end" if early else self.least(f"{name}0 + {tile}", ends[name])
            inner = self.loop(name, top, inner, start=f"{name}0")
        for name in reversed(order):
            if early:
                end = self.least(f"{name}0 + {tile}", ends[name])
                inner = f"int {name}_end = {end};\n{inner}"
            inner = self.loop(f"{name}0", ends[name], inner, step=f"{name}0 += {tile}")
        return inner

    def part2(self) -> str:
        self.tile = self.pick("TILE_SIZE", "T", "16", "bs")
        self.early_ends = self.maybe(0.6)
        ends = {"i": "N", "j": "N", "k": "d"}
        product = f"{self.read('Q')} * {self.read('K')}"
        cell = self.read2("QK_t", "i", "j", "N")
        order = str(self.pick("ijk", "ijk", "ikj", "jik"))
        if self.access == "accessor" or self.maybe(0.4):
            first = self.tiles(
                order, ends, f"float s = {cell};\ns += {product};\n" + self.write2("QK_t", "i", "j", "N", "s")
            )
        else:
            first = self.tiles(order, ends, f"{cell} += {product};")
        clear = str(
            self.pick(
                "std::fill(QK_t.begin(), QK_t.end(), 0.0f);",
                self.loop("e", "N * N", "QK_t[e] = 0;"),
                "QK_t.assign(N * N, 0.0f);",
            )
        )
        softmax = self.loop("i", "N", self.softmax("QK_t", "i", "N"))
        last = self.write(f"{self.read('O')} + {cell} * {self.read('V')}")
        second = self.tiles(str(self.pick("ikj", "ijk", "jik")), ends, last)
        declared = "" if self.tile in ("TILE_SIZE", "16") else f"const int {self.tile} = TILE_SIZE;\n"
        return declared + self.heads("\n".join((clear, first, softmax, second)))

    def part3(self) -> str:
        row = str(self.pick("t", "omp_get_thread_num()", "thread", "own"))
        if self.access == "accessor" and "(" in row:
            row = "t"
        named = "" if "(" in row else f"int {row} = omp_get_thread_num();\n"
        if self.maybe(0.4):
            score = self.dot() + "\n"
            score += f"float e = {self.call_exp('s')};\n" + self.write2("temp", row, "j", "N", "e")
            text = f"float total = {self.number};\n" + self.loop("j", "N", score + "\ntotal += e;")
            divided = False
        else:
            divided = self.maybe()
            text = self.loop("j", "N", self.dot() + "\n" + self.write2("temp", row, "j", "N", "s"))
            text += "\n" + self.softmax("temp", row, "N", divide=divided)
        body = self.loop("i", "N", f"{named}{text}\n{self.values('temp', row, 'N', divided)}")
        collapse = self.pick(" collapse(3)", " collapse(3)", " collapse(2)", " collapse(3) schedule(static)")
        if self.access in ("pointer", "lambda"):
            collapse = self.pick(" collapse(2)", "")
        return self.heads(body, f"#pragma omp parallel for{collapse}\n")

    def part4(self) -> str:
        rows, columns = str(self.pick("rows", "br", "qn")), str(self.pick("columns", "bc", "kn"))
        left = self.maybe()

        def load(target: str, source: str, start: str, x: str) -> str:
            return self.write2(target, x, "k", "d", self.read(source, f"g{x}", f"g{x}"))

        ends = [
            f"int {rows} = "
            + (self.least("Br", "N - i0") if left else self.least("i0 + Br", "N") + " - i0")
            + ";\n",
            f"int {columns} = "
            + (self.least("Bc", "N - j0") if left else self.least("j0 + Bc", "N") + " - j0")
            + ";\n",
        ]
        at_j, at_i = "int gj = j0 + j;\n", "int gi = i0 + i;\n"
        if self.maybe(0.6):
            keys = self.loop(
                "j",
                columns,
                at_j + self.loop("k", "d", load("Kj", "K", "j0", "j") + "\n" + load("Vj", "V", "j0", "j")),
            )
        else:
            keys = "\n".join(
                self.loop("j", columns, at_j + self.loop("k", "d", load(f"{name}j", name, "j0", "j")))
                for name in self.rng.sample("KV", 2)
            )
        queries = load("Qi", "Q", "i0", "i") + "\n" + load("Oi", "O", "i0", "i")
        take = self.pick("Li[i] = L[gi];", "Li[i] = L[i0 + i];")
        queries = self.loop("i", rows, at_i + self.loop("k", "d", queries) + f"\n{take}")
        q, key = self.read2("Qi", "i", "k", "d"), self.read2("Kj", "j", "k", "d")
        dot = f"float s = {self.number};\n" + self.loop("k", "d", f"s += {q} * {key};")
        cell, weight = self.read2("Sij", "i", "j", "Bc"), self.read2("Pij", "i", "j", "Bc")
        if self.maybe(0.3):
            fused = (
                f"{dot}\nfloat e = {self.call_exp('s')};\n"
                + self.write2("Pij", "i", "j", "Bc", "e")
                + "\nsum += e;"
            )
            scores = ""
            sums = f"float sum = {self.number};\n" + self.loop("j", columns, fused)
        else:
            scores = self.loop(
                "i", rows, self.loop("j", columns, dot + "\n" + self.write2("Sij", "i", "j", "Bc", "s"))
            )
            steps = (
                f"float e = {self.call_exp(cell)};\n"
                + self.write2("Pij", "i", "j", "Bc", "e")
                + "\nsum += e;"
            )
            if self.maybe(0.3):
                steps = self.write2("Pij", "i", "j", "Bc", self.call_exp(cell)) + f"\nsum += {weight};"
            sums = f"float sum = {self.number};\n" + self.loop("j", columns, steps)
        sums += "\nLij[i] = sum;"
        new = "Lnew[i] = Li[i] + Lij[i];"
        later = self.maybe(0.4)
        sums = self.loop("i", rows, sums if later else f"{sums}\n{new}")
        if later:
            sums += "\n" + self.loop("i", rows, new)
        product = f"{weight} * {self.read2('Vj', 'j', 'k', 'd')}"
        old = f"Li[i] * {self.read2('Oi', 'i', 'k', 'd')}"
        pv = f"float v = {self.number};\n" + self.loop("j", columns, f"v += {product};")
        if self.maybe(0.4):
            out = self.loop("k", "d", f"{pv}\n" + self.write(f"({old} + v) / Lnew[i]", "gi"))
            update = self.loop("i", rows, f"{at_i}{out}\nL[gi] = Lnew[i];")
        else:
            update = self.loop(
                "i", rows, self.loop("k", "d", f"{pv}\n" + self.write2("PV", "i", "k", "d", "v"))
            )
            done = f"float o = {old} + {self.read2('PV', 'i', 'k', 'd')};\n" + self.write("o / Lnew[i]", "gi")
            if self.maybe():
                done = self.write(f"({old} + {self.read2('PV', 'i', 'k', 'd')}) / Lnew[i]", "gi")
            update += "\n" + self.loop("i", rows, f"{at_i}{self.loop('k', 'd', done)}\nL[gi] = Lnew[i];")
        block = self.loop("i0", "N", ends[0] + "\n".join((queries, scores, sums, update)), step="i0 += Br")
        blocks = self.loop("j0", "N", ends[1] + keys + "\n" + block, step="j0 += Bc")
        clear = self.pick(
            "std::fill(L.begin(), L.end(), 0.0f);", self.loop("x", "N", "L[x] = 0;"), "L.assign(N, 0);"
        )
        return self.heads(f"{clear}\n{blocks}")

    def accessors(self) -> tuple[str, str]:
        index = self.pick(
            "((x * sizeX + y) * sizeY + z) * sizeZ + b",
            "x * sizeX * sizeY * sizeZ + y * sizeY * sizeZ + z * sizeZ + b",
            "x * (sizeX * sizeY * sizeZ) + y * (sizeY * sizeZ) + z * sizeZ + b",
        )
        if self.maybe(0.3):
            return f"int at = {index};\nreturn tensor[at];", f"int at = {index};\ntensor[at] = val;"
        return f"return tensor[{index}];", f"tensor[{index}] = val;"

    def names(self, body: str) -> str:
        """Local names as this author would choose them."""
        chosen = {
            "s": ("sum", "score", "dot", "acc", "s"),
            "v": ("val", "value", "result", "acc", "v"),
            "e": ("e", "ex", "weight", "expVal", "p"),
            "total": ("total", "rowSum", "sumExp", "denominator"),
            "gi": ("gi", "row", "globalRow", "qi"),
            "gj": ("gj", "column", "globalCol", "kj"),
            "i0": ("i0", "ib", "iBlock", "ii"),
            "j0": ("j0", "jb", "jBlock", "jj"),
            "k0": ("k0", "kb", "kBlock", "kk"),
        }
        for name, others in chosen.items():
            body = re.sub(rf"\b{name}\b", str(self.pick(*others)), body)
        return body


PARTS = ("part1", "part2", "part3", "part4")
_REGION = re.compile(r" *// BEGIN SOLUTION\n.*?// END SOLUTION\n", re.DOTALL)
_STARTER = re.compile(r"^ *// BEGIN STARTER\n.*?// END STARTER\n", re.DOTALL | re.MULTILINE)


def bodies(seed: int) -> list[str]:
    """The six bodies of one author, in the order of the master's regions."""
    author = Author(seed)
    return [*author.accessors(), *(author.names(getattr(author, part)()) for part in PARTS)]


def submission(master: str, parts: list[str]) -> str:
    """The master with these bodies in place of the staff's."""
    rest = iter(parts)
    return _REGION.sub(lambda _: next(rest) + "\n", _STARTER.sub("", master))
