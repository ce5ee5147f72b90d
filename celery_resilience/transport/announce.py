"""Tells Celery's event stream of something; a broker that is away or hangs costs a moment and no more."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from celery import Celery

PATIENCE_SECONDS = 0.1
# Celery's own pool would try to connect again and again, in the midst of a user's call.
_IMPATIENT = {"max_retries": 0, "socket_timeout": PATIENCE_SECONDS, "socket_connect_timeout": PATIENCE_SECONDS}


def announce(app: Celery, event: str, fields: Mapping[str, Any]) -> None:
    """Send one event, over a connection of its own. Never raises: what cannot be sent is not."""
    with contextlib.suppress(Exception):
        connection: Any = app.connection_for_write(connect_timeout=PATIENCE_SECONDS, transport_options=_IMPATIENT)
        with connection, app.events.Dispatcher(connection, buffer_while_offline=False) as dispatcher:
            dispatcher.send(event, **fields)
