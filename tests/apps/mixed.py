"""ResilientTask mixed with the bases that users bring: an application context, a lock, Django's task."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from celery import Task

from celery_resilience import ResilientTask, RetryPolicy
from tests.apps.configuration import celery_app
from tests.apps.resilient import QUICK, record

app = celery_app("mixed", task_cls=ResilientTask)
app.conf.resilience_retry_policy = RetryPolicy(**QUICK)  # type: ignore[arg-type]
URL = os.environ.get("RECORD_URL", "")
context: list[str] = []


@contextlib.contextmanager
def application_context(name: str) -> Any:
    """Be inside, as `with flask_app.app_context()` is."""
    context.append(name)
    try:
        yield
    finally:
        context.pop()


class FlaskStyle(ResilientTask):
    """Flask's own pattern: `self.run` in an application context."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with application_context("flask"):
            return self.run(*args, **kwargs)


class CallsSuper(ResilientTask):
    """The polite pattern: up the line in a context."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with application_context("super"):
            return super().__call__(*args, **kwargs)


class Below(CallsSuper):
    """Two contexts, one around the other."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with application_context("below"):
            return super().__call__(*args, **kwargs)


class PlainMixin(Task):
    """A base of somebody who does not know of us."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with application_context("mixin"):
            return self.run(*args, **kwargs)


class MixedFirst(PlainMixin, ResilientTask):
    """The mixin first."""

    abstract = True


class FailsInContext(ResilientTask):
    """A context that is down itself at first."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.request.retries < 1:
            raise ConnectionError("the context is down")
        return self.run(*args, **kwargs)


def body(self: Any, key: str) -> str:
    """Fail once, noting the context."""
    record(URL).rpush(f"run:{key}", json.dumps({"attempt": self.request.retries + 1, "context": list(context)}))
    if self.request.retries < 1:
        raise ConnectionError("down")
    return "done"


def direct(self: Any, key: str) -> Any:
    """Call another task as a plain function, which must not retry by itself."""
    try:
        return app.tasks["mixed.flask"](key)
    except ConnectionError:
        return "plain"


for name, base in {
    "flask": FlaskStyle,
    "super": CallsSuper,
    "below": Below,
    "mixin": MixedFirst,
    "failing": FailsInContext,
}.items():
    app.task(body, name=f"mixed.{name}", bind=True, base=base, shared=False)
app.task(direct, name="mixed.direct", bind=True, shared=False)

with contextlib.suppress(ImportError):
    import django
    from celery.contrib.django.task import DjangoTask
    from django.conf import settings

    if not settings.configured:
        settings.configure(
            DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}, INSTALLED_APPS=[]
        )
        django.setup()

    class ResilientDjangoTask(ResilientTask, DjangoTask):
        """What a Django project would write."""

        abstract = True

    class DjangoFirst(DjangoTask, ResilientTask):
        """The other way round."""

        abstract = True

    app.task(body, name="mixed.django", bind=True, base=ResilientDjangoTask, shared=False)
    app.task(body, name="mixed.django_first", bind=True, base=DjangoFirst, shared=False)
