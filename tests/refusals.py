"""An assertion that several test files share: bad input is refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from grader.base.errors import UsageError


def refused(
    why: str, act: Callable[..., object], *given: Any, of: type[Exception] = UsageError, **named: Any
) -> str:
    """Assert that a call raises an error of one line in which the expression `why`, if any, is found. Return it."""
    with pytest.raises(of, match=why or None) as error:
        act(*given, **named)
    assert "\n" not in str(error.value)
    return str(error.value)
