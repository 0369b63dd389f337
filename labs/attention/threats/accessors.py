"""Rows C1 of an accessor, whose runner replies with a table: forged tables, beside a right and a wrong accessor."""

from __future__ import annotations

from .containment import CRASH, FORGE
from .sources import function
from .threat import End, Threat

_FILE = """
#include <torch/extension.h>
#include <fcntl.h>
#include <unistd.h>
#include <string>
#include <vector>

float {name}(std::vector<float> &tensor, int &x, int &y, int &z, int &b, const int &sizeX, const int &sizeY,
             const int &sizeZ) {{
    {body}
}}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def("{name}", &{name}); }}
"""
_RIGHT = "return tensor[((x * sizeX + y) * sizeY + z) * sizeZ + b];"
_NO_RESULT = End(("crash",), says="sent back something that is no result")


def _row(row: str, name: str, end: End, body: str) -> Threat:
    return Threat(row, name, end, source=_FILE.format(name=function("row0"), body=body), part="4Dread")


def _forged(name: str, end: End, table: str, payload_bytes: str) -> Threat:
    header = rf"{{\"status\": \"ok\", \"kind\": 1, {table}}}"
    return _row("C1", f"a forged table {name}", end, FORGE % (header, payload_bytes) + _RIGHT)


ACCESSORS = [
    _forged("of a type without numbers", _NO_RESULT, r"\"dtype\": 15, \"shape\": [3]", "1 << 16"),
    _forged("of another type", _NO_RESULT, r"\"dtype\": 6, \"shape\": [3]", "1 << 16"),
    _forged("of another length", _NO_RESULT, r"\"dtype\": 7, \"shape\": [1]", "1 << 16"),
    _forged("of another shape", _NO_RESULT, r"\"dtype\": 7, \"shape\": [1, 1, 1]", "1 << 16"),
    _forged("without its numbers", CRASH, r"\"dtype\": 7, \"shape\": [100]", "8"),
]
ACCESSOR_CONTROLS = [
    _row("", "a right accessor", End(("pass",)), _RIGHT),
    _row("", "a wrong accessor", End(("wrong",)), _RIGHT.replace("+ b]", "]")),
]
