"""What Python's own exceptions and those of its standard library mean."""

from __future__ import annotations

import errno

from celery_resilience.libraries import look
from celery_resilience.libraries.rows import by_http_number, by_number, by_text, inside, same_for, words
from celery_resilience.libraries.verdict import (
    AUTHENTICATION,
    NETWORK,
    NOT_A_FAILURE,
    PERMANENT,
    STRUCTURAL,
    SYSTEM,
    TRANSIENT,
    VALIDATION,
    Answer,
    Row,
    Rows,
    Tables,
)

_ERRNO_NAMES = words(
    {
        NETWORK: "ECONNRESET ECONNREFUSED ECONNABORTED EPIPE ETIMEDOUT EHOSTUNREACH ENETUNREACH ENETDOWN ENETRESET"
        " ENOTCONN ESHUTDOWN EHOSTDOWN EADDRNOTAVAIL EDESTADDRREQ EPROTO ECOMM ENOLINK ENONET",
        TRANSIENT: "EAGAIN EWOULDBLOCK EINTR EBUSY ETXTBSY EINPROGRESS EALREADY EDEADLK ENOLCK ECANCELED ETIME"
        " ERESTART",
        SYSTEM: "EIO ENOSPC EDQUOT ENOMEM EMFILE ENFILE ENOBUFS EROFS ESTALE EADDRINUSE ENODEV ENXIO ECHILD EFAULT"
        " EREMOTEIO EUSERS ENOSR ENOMEDIUM",
        PERMANENT: "ENOENT EEXIST EISDIR ENOTDIR ENOTEMPTY EXDEV ELOOP EMLINK ENOSYS ENOTSUP EOPNOTSUPP ENOTTY ESPIPE"
        " EBADF EAFNOSUPPORT EPROTONOSUPPORT EPROTOTYPE ENOEXEC ESRCH EACCES EPERM ENOTSOCK EISCONN EFBIG",
        VALIDATION: "EINVAL ENAMETOOLONG EDOM ERANGE E2BIG EMSGSIZE EILSEQ EOVERFLOW EBADMSG",
    }
)
_ERRNO = {getattr(errno, name): answer for name, answer in _ERRNO_NAMES.items() if hasattr(errno, name)}


_SYSEXITS = {64: VALIDATION, 65: VALIDATION, 69: TRANSIENT, 71: SYSTEM, 74: SYSTEM, 75: TRANSIENT, 77: AUTHENTICATION,
             124: TRANSIENT}  # fmt: skip  # sysexits.h, and 124 of timeout(1)


def _signal(exc: BaseException) -> Answer:
    # A negative return code, or 128 + n from a shell, is a signal: mostly the kernel's OOM killer or a stop.
    code = look.number(look.peek(exc, "returncode"))
    if code is None:
        return None
    if code < 0 or 128 < code < 160:
        return SYSTEM
    return _SYSEXITS.get(code, PERMANENT)


def _smtp_code(code: object) -> Answer:
    # RFC 5321 4.2.1: 4yz heals, 5yz does not; the opposite of HTTP.
    found = look.number(code)
    if found is None:
        return None
    if found in (530, 534, 535, 538):
        return AUTHENTICATION
    if 400 <= found < 500:
        return TRANSIENT
    return PERMANENT if 500 <= found < 600 else None


def _smtp(exc: BaseException) -> Answer:
    return _smtp_code(look.peek(exc, "smtp_code"))


def _smtp_recipients(exc: BaseException) -> Answer:
    refused = look.a(dict, look.peek(exc, "recipients"))
    answers = [_smtp_code(look.dig(answer, "0")) for answer in (refused or {}).values()]
    if not answers:
        return None
    return TRANSIENT if TRANSIENT in answers else PERMANENT


def _reply_code(exc: BaseException) -> Answer:
    """Read the three digits an FTP reply starts with; 5xx is permanent there as in SMTP."""
    said = look.text(exc)[:3]
    if said in ("530", "532"):
        return AUTHENTICATION
    return _smtp_code(int(said)) if said.isdecimal() and said.isascii() else None


_TLS_TEXT = by_text(
    (r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|certificate has expired|hostname .*match", PERMANENT),
    (r"WRONG_VERSION_NUMBER|UNSUPPORTED_PROTOCOL|NO_SHARED_CIPHER|NO_PROTOCOLS", STRUCTURAL),
)

STANDARD_LIBRARY: Tables = {
    "socket": {
        "gaierror": NETWORK,
        "herror": NETWORK,
        "timeout": NETWORK,
    },
    "ssl": {
        "SSLCertVerificationError": PERMANENT,
        "CertificateError": PERMANENT,
        "SSLError": (_TLS_TEXT, NETWORK),
    },
    "http.client": {
        "InvalidURL": VALIDATION,
        "UnknownProtocol": STRUCTURAL,
        "NotConnected": NETWORK,
        "HTTPException": NETWORK,
    },
    "urllib.error": {
        "HTTPError": by_http_number("code"),
        "ContentTooShortError": NETWORK,
        "URLError": (inside("reason"), by_text((r"unknown url type|no host given", VALIDATION)), NETWORK),
    },
    "smtplib": {
        "SMTPAuthenticationError": (_smtp, AUTHENTICATION),
        "SMTPRecipientsRefused": (_smtp_recipients, PERMANENT),
        "SMTPNotSupportedError": PERMANENT,
        "SMTPServerDisconnected": NETWORK,
        "SMTPConnectError": (_smtp, NETWORK),
        "SMTPException": (_smtp, TRANSIENT),
    },
    "ftplib": {
        "error_temp": TRANSIENT,
        "error_perm": (_reply_code, PERMANENT),
        "error_reply": (_reply_code, TRANSIENT),
        "error_proto": STRUCTURAL,
    },
    "imaplib": {
        "abort": NETWORK,
        "readonly": PERMANENT,
        "error": (by_text((r"authenticat|login|credentials|password", AUTHENTICATION)), PERMANENT),
    },
    "poplib": {"error_proto": PERMANENT},
    "subprocess": {
        "TimeoutExpired": TRANSIENT,
        "CalledProcessError": _signal,
    },
    "json": {"JSONDecodeError": STRUCTURAL},
    "xml": {"ParseError": STRUCTURAL, "ExpatError": STRUCTURAL, "SAXException": STRUCTURAL, "DOMException": PERMANENT},
    "pyexpat": {"ExpatError": STRUCTURAL},
    "zipfile": {"BadZipFile": VALIDATION, "LargeZipFile": VALIDATION},
    "tarfile": {"TarError": VALIDATION},
    "zlib": {"error": VALIDATION},
    "lzma": {"LZMAError": VALIDATION},
    "_lzma": {"LZMAError": VALIDATION},
    "gzip": {"BadGzipFile": VALIDATION},
    "csv": {"Error": VALIDATION},
    "_csv": {"Error": VALIDATION},
    "binascii": {"Error": VALIDATION, "Incomplete": VALIDATION},
    "struct": {"error": VALIDATION},
    "decimal": {"DecimalException": VALIDATION},
    "configparser": {"Error": PERMANENT},
    "pickle": {"PickleError": PERMANENT},
    "_pickle": {"PickleError": PERMANENT},
    "shutil": {"SameFileError": PERMANENT, "ReadError": VALIDATION, "Error": PERMANENT},
    "queue": {"Empty": TRANSIENT, "Full": TRANSIENT},
    "_queue": {"Empty": TRANSIENT},
    "asyncio": {
        "CancelledError": TRANSIENT,
        "TimeoutError": NETWORK,
        "IncompleteReadError": NETWORK,
        "LimitOverrunError": VALIDATION,
        "QueueFull": TRANSIENT,
        "QueueEmpty": TRANSIENT,
        "InvalidStateError": PERMANENT,
        "BrokenBarrierError": TRANSIENT,
    },
    "concurrent.futures": {
        "TimeoutError": NETWORK,
        "CancelledError": TRANSIENT,
        "BrokenExecutor": SYSTEM,
        "InvalidStateError": PERMANENT,
    },
    "multiprocessing": {
        "TimeoutError": TRANSIENT,
        "AuthenticationError": AUTHENTICATION,
        "ProcessError": SYSTEM,
    },
    "threading": {"BrokenBarrierError": TRANSIENT},
}

_OS_ERROR: Row = by_number(_ERRNO, "errno")

BUILTINS: Rows = {
    **same_for("SystemExit KeyboardInterrupt GeneratorExit", NOT_A_FAILURE),
    "ConnectionError": NETWORK,
    "TimeoutError": NETWORK,
    "BlockingIOError": TRANSIENT,
    "InterruptedError": TRANSIENT,
    "ChildProcessError": SYSTEM,
    **same_for(
        "FileNotFoundError FileExistsError IsADirectoryError NotADirectoryError PermissionError ProcessLookupError",
        PERMANENT,
    ),
    "OSError": _OS_ERROR,
    "MemoryError": SYSTEM,
    **same_for("UnicodeError OverflowError", VALIDATION),
    "ValueError": VALIDATION,
    **same_for("RecursionError NotImplementedError AssertionError ArithmeticError ImportError", PERMANENT),
    **same_for("AttributeError NameError TypeError LookupError SyntaxError ReferenceError", PERMANENT),
    "BufferError": (by_text((r"queue full", SYSTEM)), PERMANENT),  # how confluent-kafka says that its buffer is full
    "EOFError": (by_text((r"ran out of input|compressed file ended|marshal|when reading a line", VALIDATION)), NETWORK),
    **same_for("StopIteration StopAsyncIteration SystemError Warning", PERMANENT),
}
"""What a built-in class says at once."""

WEAK_BUILTINS: Rows = {
    "OSError": SYSTEM,
    "RuntimeError": (by_text((r"can't start new thread|out of memory", SYSTEM)), TRANSIENT),
}
"""Built-ins that are raised for anything: asked only when no cause, name or context has told more."""
