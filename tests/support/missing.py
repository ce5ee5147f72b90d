"""A server that is not installed: a loud skip at home, a failure in CI."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(server: str, remedy: str) -> NoReturn:
    """Skip the test for lack of a server; with CI=true fail it, because nobody reads skips there."""
    text = f"{server} is not installed: {remedy}"
    if os.environ.get("CI", "").lower() in {"true", "1"}:
        pytest.fail(f"{text} (a failure because CI is set)", pytrace=False)
    pytest.skip(f"*** {text} ***")
