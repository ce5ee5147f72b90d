"""Stores other than SQL: Redis, MongoDB, Elasticsearch and OpenSearch."""

from __future__ import annotations

from celery_resilience.libraries import look
from celery_resilience.libraries.rows import by_number, by_own_name, by_status, by_text, inside, numbers, same_for
from celery_resilience.libraries.status import class_of_status
from celery_resilience.libraries.verdict import (
    AUTHENTICATION,
    NETWORK,
    PERMANENT,
    RATE_LIMITED,
    STRUCTURAL,
    SYSTEM,
    TRANSIENT,
    VALIDATION,
    Answer,
    FailureClass,
    Rows,
    Tables,
)

_REDIS_TEXT = by_text(
    (
        r"NOAUTH|WRONGPASS|NOPERM|invalid (username-)?password|Authentication required|without any password",
        AUTHENTICATION,
    ),
    (r"max number of clients|Too many connections|OOM|MISCONF|No connection available", SYSTEM),
    (
        r"READONLY|LOADING|CLUSTERDOWN|MASTERDOWN|TRYAGAIN|^BUSY |^MOVED |^ASK |NOREPLICAS|UNBLOCKED|-?FAILOVER",
        TRANSIENT,
    ),
    (r"not an integer|not a valid float|out of range|overflow|invalid expire", VALIDATION),
)

_REDIS: Rows = {
    **same_for("AuthenticationError AuthorizationError NoPermissionError ExternalAuthProviderError", AUTHENTICATION),
    **same_for(
        "AuthenticationWrongNumberOfArgsError RequestTokenErr TokenRenewalErr InvalidTokenSchemaErr", AUTHENTICATION
    ),
    **same_for("MaxConnectionsError OutOfMemoryError", SYSTEM),
    **same_for("BusyLoadingError ReadOnlyError WatchError ClusterDownError MasterDownError TryAgainError", TRANSIENT),
    **same_for("AskError MovedError ClusterError TemporaryUnavailableException NoScriptError", TRANSIENT),
    "LockError": TRANSIENT,  # a ValueError by inheritance
    **same_for("ClusterCrossSlotError CrossSlotTransactionError ExecAbortError ModuleError PubSubError", PERMANENT),
    "DataError": VALIDATION,
    "InvalidResponse": STRUCTURAL,
    "TimeoutError": NETWORK,
    "ConnectionError": (_REDIS_TEXT, NETWORK),
    "ResponseError": (_REDIS_TEXT, PERMANENT),
    "SlotNotCoveredError": TRANSIENT,
    "RedisClusterException": (by_text((r"cannot be connected|not available|no reachable", NETWORK)), SYSTEM),
    **same_for("NoValidDatabaseException UnhealthyDatabaseException InitialHealthCheckFailedError", NETWORK),
    "ChildDeadlockedError": SYSTEM,
    "RedisError": (_REDIS_TEXT, TRANSIENT),
}

_MONGO_CODES = numbers(
    {
        NETWORK: (6, 7, 89, 9001, 109, 384),
        TRANSIENT: (
            24, 43, 46, 50, 63, 64, 79, 100, 112, 117, 133, 134, 150, 175, 187, 189, 202, 222, 225, 226, 234, 237,
            246, 251,
            262, 267, 290, 317, 358, 391, 412, 448, 461, 10107, 11602, 13388, 13435, 13436, 50915, 10058, 11601,
        ),
        SYSTEM: (39, 91, 96, 125, 146, 291, 11600, 14031, 28651),
        RATE_LIMITED: (16500, 462),  # 16500: the MongoDB API of Azure Cosmos
        AUTHENTICATION: (11, 13, 18, 31, 33, 334, 335, 390, 8000, 211, 15, 61000),
        VALIDATION: (2, 4, 5, 9, 14, 16, 17, 20, 22, 34, 45, 52, 53, 54, 55, 56, 57, 58, 66, 72, 73, 121, 168, 224,
                     10334,
                     16410, 17280, 17419, 17420, 40353),
        STRUCTURAL: (26, 27, 28, 59, 115, 40324, 40352, 85, 86),
        PERMANENT: (11000, 11001, 12582, 48, 51, 10003, 67, 68, 80, 263, 303),
    }
)  # fmt: skip
_MONGO_HEALING_LABELS = {"TransientTransactionError", "RetryableWriteError", "RetryableError", "SystemOverloadedError"}
_HEALING = (RATE_LIMITED, SYSTEM, NETWORK, TRANSIENT)
_MONGO_BUSY_LABEL = "SystemOverloadedError"


def _mongo_labels(exc: BaseException) -> Answer:
    labels = look.peek(exc, "_error_labels")
    if not issubclass(type(labels), (set, frozenset, list, tuple)):
        labels = look.a(list, look.dig(exc, "details.errorLabels")) or []
    found = {look.word(label) for label in list(labels)[:20]}  # type: ignore[call-overload]  # a collection it is
    if _MONGO_BUSY_LABEL in found:
        return RATE_LIMITED
    return TRANSIENT if found & _MONGO_HEALING_LABELS else None


def _mongo_bulk(exc: BaseException) -> Answer:
    """Read the codes of a bulk write; one write that cannot heal decides."""
    failed = look.a(list, look.dig(exc, "details.writeErrors")) or []
    codes = (look.number(look.dig(one, "code")) for one in failed[:100])
    return _worst([_MONGO_CODES.get(code) for code in codes if code is not None])


def _elastic_bulk(exc: BaseException) -> Answer:
    items = look.a(list, look.peek(exc, "errors")) or []
    found: list[FailureClass | None] = []
    for item in items[:100]:
        operations = list((look.a(dict, item) or {}).values())[:1]
        status = look.number(look.dig(operations[0], "status")) if operations else None
        found.append(None if status is None else class_of_status(status, {}))
    return _worst(found)


def _worst(found: list[FailureClass | None]) -> FailureClass | None:
    """Give the first class that does not heal, else the one that needs the longest wait."""
    lasting = (answer for answer in found if answer is not None and answer not in _HEALING)
    return next(lasting, None) or next((answer for answer in _HEALING if answer in found), None)


_MONGO_CODE = by_number(_MONGO_CODES, "code", "details.code")
_MONGO: Rows = {
    "DuplicateKeyError": PERMANENT,
    **same_for("WTimeoutError ExecutionTimeout CursorNotFound", TRANSIENT),
    "BulkWriteError": (_mongo_labels, _mongo_bulk, PERMANENT),
    "ClientBulkWriteException": (_mongo_labels, inside("error"), PERMANENT),
    "WriteConcernError": (_mongo_labels, _MONGO_CODE, TRANSIENT),
    "OperationFailure": (_mongo_labels, _MONGO_CODE, PERMANENT),
    "WaitQueueTimeoutError": SYSTEM,  # our own pool
    "NotPrimaryError": TRANSIENT,
    "ServerSelectionTimeoutError": NETWORK,
    "ConnectionFailure": (by_text((r"authentication failed", AUTHENTICATION)), NETWORK),
    **same_for("InvalidURI InvalidName DocumentTooLarge", VALIDATION),
    **same_for("ConfigurationError InvalidOperation CollectionInvalid", PERMANENT),
    "EncryptionError": (inside("cause", "__cause__"), PERMANENT),
    "ProtocolError": STRUCTURAL,
    "PyMongoError": (_mongo_labels, TRANSIENT),
}

_ELASTIC: Rows = {
    "TlsError": (by_text((r"CERTIFICATE_VERIFY|certificate verify", PERMANENT)), NETWORK),
    **same_for("ConnectionError ConnectionTimeout SniffingError", NETWORK),
    "SerializationError": STRUCTURAL,
    "UnsupportedProductError": PERMANENT,
    "ConflictError": TRANSIENT,
    **same_for("AuthenticationException AuthorizationException", AUTHENTICATION),
    "NotFoundError": PERMANENT,
    "RequestError": VALIDATION,
    "BulkIndexError": (_elastic_bulk, PERMANENT),
    "ScanError": TRANSIENT,
    "ValidationException": VALIDATION,
    **same_for("IllegalOperation UnknownDslObject ImproperlyConfigured", PERMANENT),
    "ApiError": (by_status, by_own_name, TRANSIENT),
    "TransportError": (by_status, NETWORK),
}

STORES: Tables = {
    "redis": _REDIS,
    "valkey": _REDIS,
    "aioredis": _REDIS,
    "rediscluster": _REDIS,
    "pymongo": _MONGO,
    "bson": {"InvalidBSON": STRUCTURAL, "BSONError": VALIDATION},
    "gridfs": {"NoFile": PERMANENT, "FileExists": PERMANENT, "CorruptGridFile": PERMANENT},
    "mongoengine": {"ValidationError": VALIDATION, "NotUniqueError": PERMANENT, "DoesNotExist": PERMANENT},
    "elasticsearch": _ELASTIC,
    "elastic_transport": _ELASTIC,
    "opensearchpy": _ELASTIC,
    "cassandra": {
        **same_for("Unavailable Timeout OperationTimedOut CoordinationFailure", TRANSIENT),
        "NoHostAvailable": NETWORK,
        "InvalidRequest": VALIDATION,
        **same_for("AlreadyExists ConfigurationException", PERMANENT),
        **same_for("Unauthorized AuthenticationFailed", AUTHENTICATION),
    },
    "filelock": {"Timeout": TRANSIENT},
    "portalocker": {"LockException": TRANSIENT},
}
