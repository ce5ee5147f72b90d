"""The registration: which database is the fleet's, written down in Redis so that two hosts cannot use two.

A host whose database is another is refused, with both named; its letters wait in the DLQ until that is mended.
"""

from __future__ import annotations

import json

from ..errors import SplitDatabaseError, StoreUnavailableError
from ..redis_store import RedisStore
from ..sql_store import Database

_GROUP = "database"


class Registration:
    """The fleet's database by the name it gave itself. Without Redis there is nothing to check."""

    def __init__(self, store: RedisStore | None, database: Database, app_name: str) -> None:
        self._store = store
        self._database = database
        self._app_name = app_name

    def check(self) -> None:
        """Register this database if none is; raises SplitDatabaseError if another is."""
        mine = self._database.identity
        if self._store is None:
            return
        try:
            known = self._store.command("GET", self._key)
            if known is None:
                self._store.command("SET", self._key, self._text(), "NX")
                known = self._store.command("GET", self._key)
        except StoreUnavailableError:
            return  # a Redis that is away must not keep an operator from reading; it is asked again next time
        registered = json.loads(known) if known else {"identity": mine}
        if registered["identity"] != mine:
            raise SplitDatabaseError(self._database.url, str(registered.get("url")))

    def adopt(self) -> str | None:
        """Register this database in place of another; gives the URL of that one, None if there was none."""
        if self._store is None:
            return None
        text = self._text()  # the database first: it may be away
        known = self._store.command("GET", self._key)
        self._store.command("SET", self._key, text)
        return str(json.loads(known).get("url")) if known else None

    def is_our_turn(self, what: str, seconds: float) -> bool:
        """Say whether this process is the one in the fleet to do something now; without Redis it always is."""
        if self._store is None:
            return True
        key = self._store.key(_GROUP, "turn", what)
        return bool(self._store.command("SET", key, 1, "NX", "EX", int(seconds)))

    @property
    def _key(self) -> str:
        assert self._store is not None
        return self._store.key(_GROUP, "registered", self._app_name)

    def _text(self) -> str:
        return json.dumps({"identity": self._database.identity, "url": self._database.url})
