"""`traffic`: loads, stores and moved cache lines of the parts' loops, compared with theory.

Theory of operation. native/cachesim.cpp simulates the loops of a part as the assignment describes them. Each access to
X or O goes to a model of one cache, which evicts the least recently used line. A line is fetched before it is stored
to, and written back when it is evicted. `framework` is the same softmax with one kernel for each operation: maximum,
difference, exp(), sum, quotient. `fused` is the lower limit for all parts: the row stays on the chip between its load
and its store.

In elements of a matrix of M rows and N columns:

    framework   5 MN + 2 M loads, 3 MN + 2 M stores
    naive       2 MN loads, MN stores       (the sum; the quotients)
    safe        3 MN loads, MN stores       (the maximum; the sum; the quotients)
    online      2 MN loads, MN stores       (maximum and sum; the quotients)
    fused       MN loads, MN stores

If a row does not fit into the cache, all loads of its elements reach memory. If it fits, only the first load of each
element reaches memory. Each line of O is fetched before it is stored to, which adds MN loads from memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grader.core.errors import EXIT_PASS, UsageError
from grader.study import facts, helpers, options, outcome
from grader.study.figure import Figure, Plot, Series
from grader.study.helpers import CacheModel as Model
from grader.study.helpers import Traffic
from grader.study.table import Cell, Table

SIMULATOR = Path(__file__).resolve().parent / "native" / "cachesim.cpp"
FLOAT_BYTES = 4
#: Names of the kernels whose loops native/cachesim.cpp simulates.
KERNELS = ("framework", "naive", "safe", "online", "fused")
#: The caches of LADDER are smaller than a row (32 KB), larger than a row, and larger than all tensors (about 8 MB).
USUAL = {"R": 64, "C": 8192}
LADDER = (8 << 10, 256 << 10, 64 << 20)
MOST_ACCESSES = 1 << 33


def theory(kernel: str, rows: int, columns: int) -> tuple[int, int]:
    """Return loads and stores in elements by the formulas in this module's docstring."""
    all_of = rows * columns
    if kernel == "framework":
        return 5 * all_of + 2 * rows, 3 * all_of + 2 * rows
    return {"naive": 2, "safe": 3, "online": 2, "fused": 1}[kernel] * all_of, all_of


def passes(kernel: str, columns: int, model: Model) -> int | None:
    """Return the number of fetched lines by theory, divided by the number of X's lines.

    The theory covers caches of at most half a row and, except for `framework`, caches of at least four rows. Return
    None for other caches.
    """
    row_bytes = columns * FLOAT_BYTES
    loads = {"framework": 5, "naive": 2, "safe": 3, "online": 2, "fused": 1}[kernel]
    if 2 * model.size_bytes <= row_bytes:
        return loads + (3 if kernel == "framework" else 1)
    if kernel != "framework" and model.size_bytes >= 4 * row_bytes:
        return 2
    return None


@dataclass(frozen=True)
class TrafficStudy:
    """Traffic of all KERNELS in several caches, for one size of X. `found` maps (kernel, cache) to the traffic."""

    rows: int
    columns: int
    models: tuple[Model, ...]
    found: Mapping[tuple[str, Model], Traffic]
    about: str

    def table(self) -> Table:
        columns = (
            "cache",
            "loops",
            "loads",
            "by theory",
            "stores",
            "by theory",
            "lines fetched",
            "lines written",
        )
        return Table(
            "traffic",
            f"Traffic of the softmax of each row, R={self.rows} C={self.columns}",
            (*columns, "passes fetched", "by theory"),
            tuple(self._row(kernel, model) for model in self.models for kernel in KERNELS),
            self.caption(),
        )

    def _row(self, kernel: str, model: Model) -> tuple[Cell, ...]:
        found, (loads, stores) = self.found[kernel, model], theory(kernel, self.rows, self.columns)
        counted = (found.loads, loads, found.stores, stores, found.fetched, found.written)
        fetched = (self.passes_fetched(kernel, model), passes(kernel, self.columns, model))
        return (helpers.size_text(model.size_bytes), kernel, *counted, *fetched)

    def passes_fetched(self, kernel: str, model: Model) -> float:
        """Return the number of lines that the simulation fetched, divided by the number of X's lines."""
        lines = self.rows * self.columns * FLOAT_BYTES / model.line_bytes
        return self.found[kernel, model].fetched / lines

    def caption(self) -> str:
        model = self.models[0]
        row, whole = self.columns * FLOAT_BYTES, self.rows * self.columns * FLOAT_BYTES
        return (
            f"{self.about}. Loads and stores are elements of tensors. Simulated: one level, {model.kind}, "
            f"lines of {model.line_bytes} bytes, evicts the least recently used line; a line is fetched before "
            f"it is stored to. A row has {helpers.size_text(row)} bytes, X {helpers.size_text(whole)}. passes "
            "fetched: lines fetched / lines of X. framework: one kernel for each operation, 5 MN + 2 M loads "
            "and 3 MN + 2 M stores for M rows and N columns (publications with 5 MN + M loads leave out one of "
            "two vectors). fused: the row stays on the chip."
        )

    def figures(self) -> tuple[Figure, ...]:
        sizes = tuple(model.size_bytes / 1024 for model in self.models)
        return (
            Plot(
                "traffic",
                f"How often X is fetched, R={self.rows} C={self.columns}",
                f"{self.about} · simulated",
                "size of the cache, KB",
                "lines fetched / lines of X",
                tuple(
                    Series(kernel, sizes, tuple(self.passes_fetched(kernel, model) for model in self.models))
                    for kernel in KERNELS
                ),
                log_x=True,
                x_ticks=sizes,
            ),
        )


def measure(rows: int, columns: int, models: Sequence[Model], about: str) -> TrafficStudy:
    """Simulate every kernel in every cache. Raises KitError if the simulator cannot be built."""
    walks = [(kernel, model) for model in models for kernel in KERNELS]
    found = helpers.simulated(SIMULATOR, [((kernel, rows, columns), model) for kernel, model in walks])
    return TrafficStudy(rows, columns, tuple(models), dict(zip(walks, found, strict=True)), about)


def main(arguments: list[str]) -> int:
    """Run `python gpt149.py lab softmax traffic` and return the exit code."""
    parse = options.parser(
        arguments,
        "traffic",
        "Loads, stores and cache lines of the parts' loops, simulated and by theory.",
    )
    parse.add_argument("--cache", metavar="SIZE,...", help="sizes of the cache (default: 8K,256K,64M)")
    parse.value("--ways", "n", "associativity, 0 for full (default: %(default)s)", default="0")
    given = parse.parse_args(arguments)
    settings = options.settings(given)
    sizes = {**USUAL, **{name: settings.shape[name] for name in USUAL if name in settings.shape}}
    models = helpers.cache_models(given.cache, given.ways, facts.describe().line_bytes, LADDER)
    accesses = 20 * sizes["R"] * sizes["C"] * len(models)
    if accesses > MOST_ACCESSES:
        raise UsageError(f"this simulates about {accesses:.1g} accesses, too many: choose a smaller -R or -C")
    outcome.prepare(settings, "traffic")
    outcome.deliver(measure(sizes["R"], sizes["C"], models, options.about({})), settings)
    return EXIT_PASS
