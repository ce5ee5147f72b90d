"""Messages and tasks: kombu, AMQP, Kafka, Celery and the pools below it."""

from __future__ import annotations

from celery_resilience.libraries import look
from celery_resilience.libraries.rows import (
    by_number,
    by_status,
    by_text,
    inside,
    numbers,
    same_for,
    when,
)
from celery_resilience.libraries.verdict import (
    AUTHENTICATION,
    NETWORK,
    NOT_A_FAILURE,
    PERMANENT,
    RATE_LIMITED,
    STRUCTURAL,
    SYSTEM,
    TRANSIENT,
    VALIDATION,
    Answer,
    Rows,
    Tables,
)

_AMQP_CODES = numbers(
    {
        NETWORK: (320,),
        VALIDATION: (311,),
        TRANSIENT: (313, 405),
        AUTHENTICATION: (403,),
        PERMANENT: (312, 402, 404, 406, 530, 540),
        STRUCTURAL: (501, 502, 503, 505),
        SYSTEM: (504, 506, 541),
    }
)
"""Reply codes of AMQP 0.9.1. They look like HTTP statuses and are none."""

_ACCESS = by_text((r"ACCESS_REFUSED|access.* refused|login was refused|not authorized", AUTHENTICATION))
_BY_REPLY = (_ACCESS, by_number(_AMQP_CODES, "reply_code", "code"))

_AMQP: Rows = {
    "AccessRefused": AUTHENTICATION,
    "ConsumerCancelled": TRANSIENT,
    **same_for("NotFound PreconditionFailed NoConsumers ContentTooLarge", by_number(_AMQP_CODES, "reply_code", "code")),
    "ResourceLocked": TRANSIENT,
    **same_for("Blocked ResourceError InternalError", SYSTEM),
    "NotAllowed": (_ACCESS, PERMANENT),
    "InvalidPath": PERMANENT,
    **same_for("FrameSyntaxError InvalidCommand UnexpectedFrame FrameError", STRUCTURAL),
    "AMQPNotImplementedError": PERMANENT,
    "MessageNacked": TRANSIENT,
    "RecoverableChannelError": TRANSIENT,
    "IrrecoverableChannelError": PERMANENT,
    "ConnectionError": (*_BY_REPLY, NETWORK),
    "ChannelError": (*_BY_REPLY, TRANSIENT),
    "AMQPError": (*_BY_REPLY, NETWORK),
}

_PIKA: Rows = {
    **same_for("AuthenticationError ProbableAuthenticationError ProbableAccessDeniedError", AUTHENTICATION),
    **same_for("ConnectionBlockedTimeout NoFreeChannels", SYSTEM),
    **same_for("IncompatibleProtocolError ProtocolSyntaxError", STRUCTURAL),
    **same_for(
        "UnroutableError DuplicateConsumerTag MethodNotImplemented InvalidChannelNumber ReentrancyError", PERMANENT
    ),
    **same_for("NackError ConsumerCancelled ChannelWrongStateError", TRANSIENT),
    "ShortStringTooLong": VALIDATION,
    "ChannelClosedByClient": TRANSIENT,
    "ChannelClosed": (*_BY_REPLY, TRANSIENT),
    "ConnectionClosed": (*_BY_REPLY, NETWORK),
    "AMQPConnectionError": (inside("args.0"), NETWORK),
    "AMQPChannelError": TRANSIENT,
    "ChannelError": TRANSIENT,
    "AMQPError": NETWORK,
}

_KAFKA_CODES = numbers(
    {
        NETWORK: (13, -195, -187, -193),
        RATE_LIMITED: (89,),
        AUTHENTICATION: (29, 30, 31, 33, 34, 53, 54, 58, 61, 62, 63, 64, 65, 66, 93, -169),
        TRANSIENT: (
            3, 5, 6, 7, 8, 9, 14, 15, 16, 19, 20, 22, 25, 27, 41, 51, 56, 60, 70, 71, 72, 74, 75, 77, 78, 79, 80, 83,
            88, 100,
            103, 110, 113, 120, 122, 123, 129, -185, -192, -153, -166, -180, -164, -163, -178, -177, -147, -142,
            -172, -196, -1,
        ),
        SYSTEM: (-194, -184, -189, -197, 81, 133),
        VALIDATION: (2, 4, 10, 12, 17, 18, 21, 24, 26, 28, 32, 37, 38, 39, 40, 42, 87, 118, 128, -186, -199, -198,
                     -162, -161,
                     -154, -138),
        STRUCTURAL: (23, 35, 43, 76, 112, 130, -165, -170, -160, -159, -171),
        PERMANENT: (1, 36, 44, 45, 46, 47, 48, 49, 50, 52, 57, 59, 68, 69, 73, 82, 90, 91, 92, -188, -190, -144,
                    -150, -168,
                    -140, -139),
    }
)  # fmt: skip
"""Codes of the Kafka protocol, and the negative ones of librdkafka."""


def _confluent(exc: BaseException) -> Answer:
    error = look.dig(exc, "args.0")
    code = look.number(look.call(error, "code"))
    if code is not None and code in _KAFKA_CODES:
        return _KAFKA_CODES[code]
    if look.call(error, "fatal") is True:
        return PERMANENT
    if look.call(error, "retriable") is True or look.call(error, "txn_requires_abort") is True:
        return TRANSIENT
    return None if code is None else NETWORK if code == -181 else PERMANENT


_KAFKA: Rows = {
    **same_for("KafkaConnectionError NoBrokersAvailable BrokerConnectionError NodeNotReadyError", NETWORK),
    "KafkaTimeoutError": TRANSIENT,
    "AuthorizationError": AUTHENTICATION,
    **same_for("QuotaViolationError", RATE_LIMITED),
    **same_for("IllegalArgumentError MessageSizeTooLargeError", VALIDATION),
    **same_for("UnrecognizedBrokerVersion IncompatibleBrokerVersion UnsupportedCodecError", STRUCTURAL),
    "InvalidReceiveError": NETWORK,
    "CommitFailedError": TRANSIENT,  # the group has rebalanced
    "KafkaError": (
        by_number(_KAFKA_CODES, "errno"),
        when("retriable", True, TRANSIENT),
        PERMANENT,
    ),
}

_KOMBU: Rows = {
    "OperationalError": (inside("__cause__"), _ACCESS, NETWORK),
    "LimitExceeded": SYSTEM,
    "InconsistencyError": SYSTEM,
    **same_for("EncodeError DecodeError SerializationError ContentDisallowed SerializerNotInstalled", PERMANENT),
    **same_for("NotBoundError MessageStateError VersionMismatch", PERMANENT),
    "AccessDeniedQueueException": AUTHENTICATION,
    "KombuError": PERMANENT,
}


def _unpickled(exc: BaseException) -> Answer:
    """Give a stand-in with the module and name of the exception that could not be pickled."""
    module, name = look.word(look.peek(exc, "exc_module")), look.word(look.peek(exc, "exc_cls_name"))
    if not module or not name or not name.isidentifier():
        return None
    said = look.peek(exc, "exc_args")
    stand_in: type[Exception] = type(name, (Exception,), {"__module__": module})
    return stand_in(*(look.a(tuple, said) or look.a(list, said) or ()))


_CELERY: Rows = {
    "TaskPredicate": NOT_A_FAILURE,  # Retry, Ignore, Reject
    **same_for("WorkerShutdown WorkerTerminate", NOT_A_FAILURE),
    "TimeoutError": TRANSIENT,
    **same_for("BackendError", SYSTEM),
    "IncompleteStream": NETWORK,
    "InvalidTaskError": VALIDATION,
    "SecurityError": AUTHENTICATION,
    **same_for("ChordError NotRegistered AlreadyRegistered QueueNotFound MaxRetriesExceededError", PERMANENT),
    **same_for("TaskRevokedError ImproperlyConfigured", PERMANENT),
    "UnpickleableExceptionWrapper": (_unpickled, PERMANENT),
    "CeleryError": PERMANENT,
}

_TIME_LIMITS: Rows = {
    "SoftTimeLimitExceeded": TRANSIENT,
    **same_for("TimeLimitExceeded WorkerLostError RestartFreqExceeded CoroStop WorkersJoined", SYSTEM),
    "Terminated": NOT_A_FAILURE,  # an operator revoked the task with terminate=True
    "MaybeEncodingError": PERMANENT,
    "TimeoutError": TRANSIENT,
    "AuthenticationError": AUTHENTICATION,
    "ProcessError": SYSTEM,
}

MESSAGING: Tables = {
    "kombu": _KOMBU,
    "amqp": _AMQP,
    "pika": _PIKA,
    "aiormq": {
        **_AMQP,
        "AMQPConnectionError": NETWORK,
        "ChannelInvalidStateError": TRANSIENT,
        "DeliveryError": TRANSIENT,
    },
    "kafka": _KAFKA,
    "aiokafka": _KAFKA,
    "cimpl": {"KafkaException": (_confluent, TRANSIENT)},
    "confluent_kafka": {
        **same_for("KeySerializationError ValueSerializationError", VALIDATION),
        **same_for("KeyDeserializationError ValueDeserializationError", STRUCTURAL),
        "SchemaRegistryError": (by_status, TRANSIENT),
        "SerializationError": (_confluent, VALIDATION),
    },
    "celery": _CELERY,
    "billiard": _TIME_LIMITS,
    "gevent": {
        "Timeout": TRANSIENT,
        "LoopExit": SYSTEM,
        "HubDestroyed": NOT_A_FAILURE,
        "BlockingSwitchOutError": PERMANENT,
    },
    "greenlet": {"GreenletExit": NOT_A_FAILURE},
    "eventlet": {"Timeout": TRANSIENT},
    "nats": {"TimeoutError": NETWORK, "NoServersError": NETWORK, "AuthorizationError": AUTHENTICATION},
    "zmq": {"Again": TRANSIENT},
}
