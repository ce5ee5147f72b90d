"""SQL databases: drivers, SQLAlchemy and the Django ORM.

A driver raises the same class for a lost connection, a wrong password and a deadlock: the code tells, then the text.
"""

from __future__ import annotations

import re

from celery_resilience.libraries import look
from celery_resilience.libraries.rows import by_number, by_text, inside, same_for, when
from celery_resilience.libraries.sqlstate import (
    DATABASE_TEXT,
    MYSQL,
    ORACLE,
    SQL_SERVER,
    SQLITE_NAMES,
    SQLITE_TEXT,
    class_of_sqlstate,
)
from celery_resilience.libraries.verdict import (
    AUTHENTICATION,
    NETWORK,
    PERMANENT,
    STRUCTURAL,
    SYSTEM,
    TRANSIENT,
    VALIDATION,
    Answer,
    Reader,
    Row,
    Rows,
    Tables,
)

_TEXT = by_text(*DATABASE_TEXT)
_ORACLE_NUMBER = re.compile(r"\b(ORA|DPY|DPI)-(\d{4,5})\b")
_ORACLE_THIN = {
    **dict.fromkeys((4005, 4024), SYSTEM),
    **dict.fromkeys((1001, 4011, 4027, 6000, 6001, 6003, 6005, 6006, 1067, 1080), NETWORK),
    **dict.fromkeys((4001, 4010), VALIDATION),
}


def _sqlstate(exc: BaseException) -> Answer:
    for name in ("sqlstate", "pgcode"):
        code = look.word(look.peek(exc, name))
        if code is not None and (found := class_of_sqlstate(code)) is not None:
            return found
    return None


def _odbc(exc: BaseException) -> Answer:
    code = look.word(look.dig(exc, "args.0"))
    return None if code is None else class_of_sqlstate(code)


def _sqlite(exc: BaseException) -> Answer:
    name = look.word(look.peek(exc, "sqlite_errorname")) or ""  # extended: SQLITE_BUSY_SNAPSHOT
    return SQLITE_NAMES.get("_".join(name.split("_")[:2]))


def _oracle(exc: BaseException) -> Answer:
    code = look.number(look.dig(exc, "args.0.code"))
    if code:
        return ORACLE.get(code)
    said = _ORACLE_NUMBER.search(look.word(look.dig(exc, "args.0.full_code")) or "") or _ORACLE_NUMBER.search(
        look.text(exc)
    )
    if said is None:
        return None
    return (ORACLE if said[1] == "ORA" else _ORACLE_THIN).get(int(said[2]))


def _dbapi(*codes: Reader) -> dict[str, Row]:
    """Give rows for the classes every DB-API driver has: the code first, then the text, then the class."""
    return {
        "IntegrityError": (*codes, PERMANENT),
        "DataError": (*codes, VALIDATION),
        "ProgrammingError": (*codes, _TEXT, STRUCTURAL),
        "NotSupportedError": (*codes, PERMANENT),
        "InternalError": (*codes, _TEXT, SYSTEM),
        "OperationalError": (*codes, _TEXT, SYSTEM),
        "InterfaceError": (*codes, _TEXT, SYSTEM),
        "DatabaseError": (*codes, _TEXT, SYSTEM),
        "Error": (*codes, _TEXT, SYSTEM),
    }


_POSTGRES = _dbapi(_sqlstate)
_MYSQL = _dbapi(by_number(MYSQL, "args.0", "errno"), _sqlstate)

# psycopg names a class per SQLSTATE; one that was made by hand or pickled may have lost the code, not the name.
_BY_POSTGRES_NAME: Rows = {
    **same_for("LockNotAvailable ObjectInUse QueryCanceled IdleInTransactionSessionTimeout PipelineAborted", TRANSIENT),
    **same_for("SerializationFailure DeadlockDetected TransactionRollback TransactionRollbackError", TRANSIENT),
    **same_for("InvalidPassword InvalidAuthorizationSpecification InsufficientPrivilege", AUTHENTICATION),
    **same_for("ConnectionException ConnectionFailure ConnectionDoesNotExist ProtocolViolation", NETWORK),
    **same_for("SqlclientUnableToEstablishSqlconnection SqlserverRejectedEstablishmentOfSqlconnection", NETWORK),
    **same_for("ConnectionTimeout CancellationTimeout", NETWORK),
    **same_for("RaiseException NoDataFound InFailedSqlTransaction DatabaseDropped DataCorrupted", PERMANENT),
    **same_for("FeatureNotSupported", PERMANENT),
}

_ASYNCPG: Rows = {
    "ConnectionDoesNotExistError": NETWORK,
    "ClientConfigurationError": PERMANENT,
    "TargetServerAttributeNotMatched": SYSTEM,
    "ProtocolError": NETWORK,
    "UnsupportedClientFeatureError": PERMANENT,
    "UnsupportedServerFeatureError": PERMANENT,
    "OutdatedSchemaCacheError": TRANSIENT,
    "InternalClientError": SYSTEM,
    "DataError": VALIDATION,
    "InterfaceError": (
        by_text((r"another operation|pool is clos|connection (is|was) (closed|lost)", NETWORK)),
        PERMANENT,
    ),
    "PostgresError": (_sqlstate, _TEXT, SYSTEM),
    "PostgresConnectionError": (_sqlstate, NETWORK),
    "FatalPostgresError": (_sqlstate, SYSTEM),
}

_DISCONNECTED = when("connection_invalidated", True, NETWORK)
_ORIGINAL = inside("orig")

_SQLALCHEMY: Rows = {
    "TimeoutError": SYSTEM,  # our own pool is exhausted
    "DisconnectionError": NETWORK,
    "StaleDataError": TRANSIENT,  # another transaction was faster
    "PendingRollbackError": (_ORIGINAL, inside("__cause__"), TRANSIENT),
    "ObjectDeletedError": PERMANENT,
    "NoSuchTableError": STRUCTURAL,
    "NoSuchColumnError": STRUCTURAL,
    "UnreflectableTableError": STRUCTURAL,
    "NoReferenceError": STRUCTURAL,
    "DBAPIError": (_DISCONNECTED, _ORIGINAL, _TEXT, SYSTEM),
    "IntegrityError": (_DISCONNECTED, _ORIGINAL, PERMANENT),
    "NotSupportedError": (_DISCONNECTED, _ORIGINAL, PERMANENT),
    "DataError": (_DISCONNECTED, _ORIGINAL, VALIDATION),
    "ProgrammingError": (_DISCONNECTED, _ORIGINAL, _TEXT, STRUCTURAL),
    "StatementError": (_ORIGINAL, PERMANENT),
    "ResourceClosedError": PERMANENT,
    "SQLAlchemyError": PERMANENT,
}

_DJANGO: Rows = {
    name: (inside("__cause__"), *(row if isinstance(row, tuple) else (row,)))
    for name, row in _dbapi(by_number(MYSQL, "args.0")).items()
}

DATABASES: Tables = {
    "psycopg": {**_POSTGRES, **_BY_POSTGRES_NAME},
    "psycopg_pool": same_for("PoolTimeout TooManyRequests PoolClosed OperationalError", SYSTEM),
    "psycopg2": {**_POSTGRES, **_BY_POSTGRES_NAME, "QueryCanceledError": TRANSIENT, "PoolError": SYSTEM},
    "asyncpg": _ASYNCPG,
    "pymysql": _MYSQL,
    "aiomysql": _MYSQL,
    "asyncmy": _MYSQL,
    "MySQLdb": _MYSQL,
    "mysql.connector": {"PoolError": SYSTEM, **_MYSQL},
    "sqlite3": _dbapi(_sqlite, by_text(*SQLITE_TEXT)),
    "aiosqlite": _dbapi(_sqlite, by_text(*SQLITE_TEXT)),
    "oracledb": _dbapi(_oracle),
    "cx_Oracle": _dbapi(_oracle),
    "pymssql": _dbapi(by_number(SQL_SERVER, "args.0", "args.0.0", "number")),
    "pyodbc": _dbapi(_odbc),
    "sqlalchemy": _SQLALCHEMY,
    "django.db.utils": {**_DJANGO, "ConnectionDoesNotExist": PERMANENT},
    "django.db": {
        "TransactionManagementError": PERMANENT,
        "ProtectedError": PERMANENT,
        "RestrictedError": PERMANENT,
        "NotRelationField": PERMANENT,
        "MigrationSchemaMissing": STRUCTURAL,
    },
    "peewee": _DJANGO,
}
