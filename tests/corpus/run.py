"""Score the classifier on a CSV of real exceptions.

    make corpus, or: python tests/corpus/run.py [cases.csv ...]

Needs a virtualenv with the libraries of `requirements.txt`. A row whose library is missing is skipped and counted.
Exits 1 below 97 %.
"""

from __future__ import annotations

import csv
import importlib
import pathlib
import re
import sys
from collections import Counter
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from celery_resilience.failure import Classifier, Failure  # noqa: E402  # the checkout, not an installed copy

BOUND = 0.97
DATE_TOLERANCE_SECONDS = 1.5  # dates in headers have no fractions, and time passes while a row is built
TOLERANCE_SECONDS = 0.001
MISTAKES = (TypeError, AttributeError, NameError, ImportError)
_MODULE = re.compile(r"\b([a-zA-Z_][\w]*(?:\.[a-zA-Z_]\w*)*)")


def main(paths: list[str]) -> int:
    """Score each CSV; give the exit code."""
    _prepare()
    return max([_score(pathlib.Path(path)) for path in paths or [str(HERE / "cases.csv")]])


def _prepare() -> None:
    try:
        import django
        from django.conf import settings

        settings.configure(USE_I18N=False, DATABASES={})
        django.setup()
    except ImportError:
        pass


def _score(path: pathlib.Path) -> int:
    with path.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    verdicts: Counter[str] = Counter()
    for row in rows:
        verdict, words = _check(row)
        verdicts[verdict] += 1
        if verdict != "right":
            print(f"{verdict:8} {row['library']}: {row['python_expr_to_build'][:150]}\n         {words}")
    judged = verdicts["right"] + verdicts["wrong"]
    share = verdicts["right"] / judged if judged else 0.0
    print(
        f"{path.name}: {len(rows)} rows, {verdicts['skipped']} skipped, {verdicts['broken']} broken, "
        f"{judged} judged, {share:.1%} right"
    )
    return 0 if share >= BOUND and not verdicts["broken"] else 1


def _check(row: dict[str, str]) -> tuple[str, str]:
    exc = _build(row["python_expr_to_build"])
    if not isinstance(exc, BaseException):
        return "skipped", str(exc)
    if row["library"] != "stdlib" and type(exc) in MISTAKES:  # PERMANENT too, so it could pass for a right answer
        return "broken", f"the expression does not build what it means: {exc!r}"
    failure = Classifier.default().classify(exc)
    problem = _problem(row, failure)
    if not problem:
        return "right", ""
    return "wrong", f"{problem}; because {failure.reason}; {failure.error_type}: {failure.message[:100]}"


def _problem(row: dict[str, str], failure: Failure) -> str:
    if failure.failure_class.value not in row["expected_class"].split("|"):
        return f"{failure.failure_class} instead of {row['expected_class']}"
    expected = float(row["retry_after_expected"]) if row["retry_after_expected"] else None
    if expected is None or failure.retry_after is None:
        return "" if expected is failure.retry_after else f"hint {failure.retry_after} instead of {expected}"
    is_date = "time.time" in row["python_expr_to_build"]
    close = abs(failure.retry_after - expected) <= (DATE_TOLERANCE_SECONDS if is_date else TOLERANCE_SECONDS)
    return "" if close else f"hint {failure.retry_after} instead of {expected}"


def _build(expression: str) -> object:
    """Give the exception that the expression returns or raises, or a text that says why there is none."""
    names: dict[str, Any] = {}
    missing = _import_all(expression, names)
    try:
        made = eval(expression, names)
    except NameError as error:
        return f"missing: {missing or error}"
    except BaseException as raised:
        return raised
    return made if isinstance(made, BaseException) else f"made {made!r:.100}, not an exception"


def _import_all(expression: str, names: dict[str, Any]) -> list[str]:
    """Import every dotted name of the expression as far as it is modules."""
    missing = []
    for dotted in dict.fromkeys(_MODULE.findall(expression)):
        parts = dotted.split(".")
        if len(parts) == 1:
            continue  # a word inside a text, or a name that needs no import
        for count in range(1, len(parts) + 1):
            try:
                module = importlib.import_module(".".join(parts[:count]))
            except Exception:
                if count == 1:
                    missing.append(parts[0])
                break
            if count == 1:
                names.setdefault(parts[0], module)
    return missing


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
