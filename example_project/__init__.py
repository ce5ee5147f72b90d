"""A small shop with flaky services. `make demo` runs it; `celery -A example_project worker` is its worker."""

from example_project.app import app

__all__ = ["app"]
