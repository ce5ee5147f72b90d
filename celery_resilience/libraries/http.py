"""HTTP and WebSocket clients and servers."""

from __future__ import annotations

import re

from celery_resilience.libraries import look
from celery_resilience.libraries.rows import (
    by_http_number,
    by_status,
    by_text,
    inside,
    same_for,
)
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
    Rows,
    Tables,
)

_TOO_MANY = re.compile(r"too many (\d{3}) error responses")


def _status_in_text(exc: BaseException) -> Answer:
    # urllib3 tells the status of its last try only in words.
    said = _TOO_MANY.search(look.text(exc))
    return None if said is None else class_of_status(int(said[1]), {})


def _last_attempt(exc: BaseException) -> Answer:
    """Give the exception of tenacity's last try; asking an unfinished future would block, so its state is read."""
    future = look.peek(exc, "last_attempt")
    if look.word(look.peek(future, "_state")) != "FINISHED":
        return None
    return look.a(BaseException, look.peek(future, "_exception"))


def _close_code(exc: BaseException) -> Answer:
    """Read a WebSocket close code; those of the peer (`rcvd`) first."""
    for path in ("rcvd.code", "sent.code", "code"):
        code = look.number(look.dig(exc, path))
        if code is not None and code in _CLOSE_CODES:
            return _CLOSE_CODES[code]
    return None


_CLOSE_CODES = {
    **dict.fromkeys((1002, 1003, 1007, 1010), STRUCTURAL),
    **dict.fromkeys((1008, 3000, 3003), AUTHENTICATION),
    1009: VALIDATION,
    **dict.fromkeys((1011, 1012, 1013, 1014), TRANSIENT),
    3008: TRANSIENT,
    **dict.fromkeys((1000, 1001, 1005, 1006, 1015), NETWORK),
}

_CERTIFICATE = by_text(
    (
        r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|certificate has expired|hostname mismatch|doesn't match",
        PERMANENT,
    ),
)

_REQUESTS: Rows = {
    **same_for("URLRequired MissingSchema InvalidSchema InvalidURL InvalidHeader InvalidProxyURL", VALIDATION),
    "InvalidJSONError": VALIDATION,  # of the request
    "JSONDecodeError": STRUCTURAL,
    "TooManyRedirects": PERMANENT,
    "ContentDecodingError": STRUCTURAL,
    "ChunkedEncodingError": NETWORK,
    "StreamConsumedError": PERMANENT,
    "UnrewindableBodyError": PERMANENT,
    "RetryError": (by_status, inside("args.0.reason"), _status_in_text, inside("args.0"), TRANSIENT),
    "SSLError": (_CERTIFICATE, NETWORK),
    "ProxyError": (by_text((r"407|authentication required", AUTHENTICATION)), NETWORK),
    **same_for("ConnectionError Timeout", NETWORK),
    "HTTPError": (by_status, TRANSIENT),
    "RequestException": (by_status, inside("__cause__"), NETWORK),
}

_HTTPX: Rows = {
    **same_for("InvalidURL UnsupportedProtocol", VALIDATION),
    "LocalProtocolError": VALIDATION,  # we sent what HTTP does not allow
    "TooManyRedirects": PERMANENT,
    "DecodingError": STRUCTURAL,
    "CookieConflict": PERMANENT,
    "StreamError": PERMANENT,
    "PoolTimeout": SYSTEM,  # our own pool
    "ConnectionNotAvailable": SYSTEM,
    "ConnectError": (_CERTIFICATE, NETWORK),
    "ProxyError": (by_text((r"\b407\b", AUTHENTICATION)), NETWORK),
    "HTTPStatusError": (by_status, PERMANENT),  # a redirect nobody followed
    **same_for("RemoteProtocolError NetworkError TimeoutException TransportError", NETWORK),
    **same_for("RequestError HTTPError", NETWORK),
    "WebSocketDisconnect": (_close_code, NETWORK),
    "WebSocketUpgradeError": (by_status, NETWORK),
    "WebSocketNetworkError": NETWORK,
    "WebSocketInvalidTypeReceived": STRUCTURAL,
}

_AIOHTTP: Rows = {
    "TooManyRedirects": PERMANENT,
    # The status is that of the answer, mostly 200; what failed is its shape.
    "ContentTypeError": (by_status, STRUCTURAL),
    "ClientResponseError": (by_status, TRANSIENT),
    **same_for("InvalidURL NonHttpUrlClientError", VALIDATION),
    "RedirectClientError": PERMANENT,
    "ClientConnectorCertificateError": PERMANENT,
    "ServerFingerprintMismatch": PERMANENT,
    "ClientSSLError": (_CERTIFICATE, NETWORK),
    **same_for("ClientConnectionError ClientPayloadError ClientError WebSocketError", NETWORK),
    "WSMessageTypeError": STRUCTURAL,
    "HTTPException": by_status,  # of the server side
    "PayloadEncodingError": NETWORK,
    "HttpBadRequest": VALIDATION,
    "HttpProcessingError": STRUCTURAL,
    "EofStream": NETWORK,
}

_URLLIB3: Rows = {
    "MaxRetryError": (inside("reason"), _status_in_text, NETWORK),
    "ResponseError": (_status_in_text, by_text((r"too many redirects", PERMANENT)), TRANSIENT),
    "LocationValueError": VALIDATION,
    **same_for("InvalidHeader ProxySchemeUnsupported ProxySchemeUnknown", VALIDATION),
    "DecodeError": STRUCTURAL,
    "HeaderParsingError": STRUCTURAL,
    "ResponseNotChunked": STRUCTURAL,
    "BodyNotHttplibCompatible": STRUCTURAL,
    **same_for("UnrewindableBodyError TimeoutStateError HostChangedError CertificateError", PERMANENT),
    **same_for("EmptyPoolError FullPoolError ClosedPoolError", SYSTEM),
    "SSLError": (_CERTIFICATE, NETWORK),
    "ProxyError": (by_text((r"\b407\b", AUTHENTICATION)), NETWORK),
    "HTTPError": NETWORK,
}

_WEBSOCKETS: Rows = {
    "InvalidURI": VALIDATION,
    "InvalidProxy": VALIDATION,
    "InvalidStatus": (by_status, NETWORK),
    "InvalidStatusCode": (by_status, NETWORK),
    "InvalidProxyStatus": (by_status, NETWORK),
    "ProxyError": NETWORK,
    "InvalidMessage": NETWORK,  # the line broke inside the handshake, or it is no WebSocket server
    "AbortHandshake": (by_status, NETWORK),
    "SecurityError": PERMANENT,
    "InvalidHandshake": STRUCTURAL,
    "ConnectionClosed": (_close_code, NETWORK),
    "PayloadTooBig": VALIDATION,
    "ProtocolError": STRUCTURAL,
    "InvalidState": PERMANENT,
    "ConcurrencyError": PERMANENT,
    "WebSocketException": NETWORK,
}

_DRF: Rows = {
    "Throttled": RATE_LIMITED,
    "ValidationError": VALIDATION,
    "ParseError": VALIDATION,
    "AuthenticationFailed": AUTHENTICATION,
    "NotAuthenticated": AUTHENTICATION,
    "PermissionDenied": AUTHENTICATION,
    "APIException": by_status,
}

HTTP: Tables = {
    "requests": _REQUESTS,
    "requests_toolbelt": {"StreamingError": NETWORK},
    "httpx": _HTTPX,
    "httpx2": _HTTPX,
    "httpcore": _HTTPX,
    "httpcore2": _HTTPX,
    "h11": {"RemoteProtocolError": NETWORK, "LocalProtocolError": VALIDATION},
    "aiohttp": _AIOHTTP,
    "urllib3": _URLLIB3,
    "httplib2": {
        "ServerNotFoundError": NETWORK,
        "RelativeURIError": VALIDATION,
        "MalformedHeader": STRUCTURAL,
        "FailedToDecompressContent": STRUCTURAL,
        **same_for("RedirectLimit RedirectMissingLocation", PERMANENT),
        "HttpLib2ErrorWithResponse": (by_status, PERMANENT),
        "HttpLib2Error": NETWORK,
    },
    "websockets": _WEBSOCKETS,
    "websocket": {
        "WebSocketBadStatusException": (by_status, NETWORK),
        "WebSocketPayloadException": STRUCTURAL,
        "WebSocketProtocolException": STRUCTURAL,
        "WebSocketAddressException": NETWORK,
        "WebSocketException": NETWORK,
    },
    "starlette": {
        "HTTPException": by_status,
        "WebSocketException": _close_code,
        "WebSocketDisconnect": (_close_code, NETWORK),
        "ClientDisconnect": NETWORK,
    },
    "fastapi": {
        **same_for("RequestValidationError WebSocketRequestValidationError", VALIDATION),
        "ResponseValidationError": STRUCTURAL,
        "ValidationException": VALIDATION,
        "FastAPIError": PERMANENT,
    },
    "werkzeug": {"HTTPException": (by_http_number("code"), PERMANENT)},
    "flask": {"HTTPException": (by_http_number("code"), PERMANENT)},
    "rest_framework": _DRF,
    "django": {
        "ValidationError": VALIDATION,
        "ImproperlyConfigured": PERMANENT,
        "PermissionDenied": AUTHENTICATION,
        "ObjectDoesNotExist": PERMANENT,
        "MultipleObjectsReturned": PERMANENT,
        **same_for("FieldDoesNotExist FieldError", STRUCTURAL),
        "RequestDataTooBig": VALIDATION,
        "SuspiciousOperation": VALIDATION,
        "BadRequest": VALIDATION,
        "MultiPartParserError": VALIDATION,
        "BadSignature": VALIDATION,
        "RequestAborted": NETWORK,
        "UnreadablePostError": NETWORK,
        **same_for("Http404 ConnectionDoesNotExist AlreadyRegistered NotRegistered BadMigrationError", PERMANENT),
        **same_for("AppRegistryNotReady SynchronousOnlyOperation MiddlewareNotUsed ViewDoesNotExist", PERMANENT),
        **same_for("NoReverseMatch TemplateDoesNotExist TemplateSyntaxError EmptyResultSet", PERMANENT),
        "SessionInterrupted": TRANSIENT,
    },
    "tornado": {
        "HTTPTimeoutError": NETWORK,
        "HTTPStreamClosedError": NETWORK,
        "HTTPError": (by_http_number("status_code", "code"), TRANSIENT),
        "HTTPClientError": (by_http_number("code"), TRANSIENT),
        "StreamClosedError": NETWORK,
    },
    "pycurl": {"error": NETWORK},
    "tenacity": {"RetryError": (_last_attempt, inside("__cause__"), TRANSIENT), "TryAgain": TRANSIENT},
    "stamina": {"RetryError": (inside("__cause__"), TRANSIENT)},
}
