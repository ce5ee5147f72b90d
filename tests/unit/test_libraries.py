"""Library knowledge: the traps seen for real, on stand-ins with the module and name of the real classes.

The real classes are classified in tests/corpus, which needs the libraries.
"""

from __future__ import annotations

import errno
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from celery_resilience import libraries
from celery_resilience.failure import Classifier, FailureClass
from celery_resilience.libraries import TABLES, plan_for
from celery_resilience.libraries.names import class_of_name
from celery_resilience.libraries.sqlstate import class_of_sqlstate
from celery_resilience.libraries.status import class_of_status


def made(path: str, *args: object, bases: tuple[type, ...] = (Exception,), **attributes: Any) -> BaseException:
    """Give an instance of a stand-in for `module.Name`, with these constructor arguments and attributes."""
    module, _, name = path.rpartition(".")
    exc: BaseException = type(name, bases, {"__module__": module})(*args)
    for attribute, value in attributes.items():
        setattr(exc, attribute, value)
    return exc


def named(path: str, *bases: type) -> type[BaseException]:
    module, _, name = path.rpartition(".")
    return type(name, bases or (Exception,), {"__module__": module})


def class_of(exc: BaseException) -> str:
    return Classifier.default().classify(exc).failure_class.value


def aws(code: str, status: int = 400) -> BaseException:
    response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {}}}
    return made("botocore.exceptions.ClientError", response=response)


def slack(word: str) -> BaseException:
    return made(
        "slack_sdk.errors.SlackApiError", response=SimpleNamespace(status_code=200, data={"ok": False, "error": word})
    )


class Code(Enum):
    UNAVAILABLE = 14
    RESOURCE_EXHAUSTED = 8


PROMISED = """
    requests httpx aiohttp urllib3 websockets botocore boto3 google.api_core googleapiclient azure grpc psycopg psycopg2
    asyncpg pymysql sqlalchemy django.db.utils rest_framework sqlite3 pymongo redis kombu amqp pika kafka cimpl
    elasticsearch openai anthropic stripe twilio slack_sdk github kubernetes docker minio hvac paramiko dns smtplib
    pydantic_core jsonschema marshmallow lxml json tenacity subprocess celery billiard starlette fastapi oracledb
    python_http_client MySQLdb pymssql pyodbc ftplib imaplib ssl http.client asyncio concurrent.futures jwt yaml
    zipfile discord telegram playwright selenium
"""
REDIS_CONNECTION = named("redis.exceptions.ConnectionError")
REDIS_RESPONSE = named("redis.exceptions.ResponseError")

TRAPS = [
    # HTTP statuses that lie
    (aws("ThrottlingException"), "RATE_LIMITED"),
    (aws("ExpiredToken"), "AUTHENTICATION"),
    (aws("404", 404), "PERMANENT"),
    (aws("NeverHeardOf", 500), "TRANSIENT"),
    (made("github.GithubException", status=403, data={"message": "API rate limit exceeded"}), "RATE_LIMITED"),
    (made("github.GithubException", status=403, data={"message": "Resource not accessible"}), "AUTHENTICATION"),
    (made("vendor.E", status=403, headers={"X-RateLimit-Remaining": "0"}), "RATE_LIMITED"),
    (
        made("googleapiclient.errors.HttpError", resp=SimpleNamespace(status=403), content=b'"userRateLimitExceeded"'),
        "RATE_LIMITED",
    ),
    (made("openai.RateLimitError", status_code=429, code="insufficient_quota"), "PERMANENT"),
    (made("openai.RateLimitError", status_code=429, code="rate_limit_exceeded"), "RATE_LIMITED"),
    (made("vendor.E", status_code=409, headers={"x-should-retry": "true"}), "TRANSIENT"),
    (made("vendor.E", status_code=500, headers={"x-should-retry": "false"}), "PERMANENT"),
    (slack("invalid_auth"), "AUTHENTICATION"),
    (slack("ratelimited"), "RATE_LIMITED"),
    # numbers that are no HTTP status
    (made("smtplib.SMTPException", smtp_code=451), "TRANSIENT"),
    (made("smtplib.SMTPException", smtp_code=554), "PERMANENT"),
    (made("smtplib.SMTPRecipientsRefused", recipients={"a@b": (450, b"greylisted")}), "TRANSIENT"),
    (made("amqp.exceptions.NotFound", reply_code=404, code=404), "PERMANENT"),
    (
        made(
            "pika.exceptions.ConnectionClosedByBroker",
            bases=(named("pika.exceptions.ConnectionClosed"),),
            reply_code=320,
        ),
        "NETWORK",
    ),
    (made("kafka.errors.NotLeader", bases=(named("kafka.errors.KafkaError"),), errno=6), "TRANSIENT"),
    (made("twilio.base.exceptions.TwilioRestException", status=400, code=30001), "TRANSIENT"),
    (made("pymysql.err.OperationalError", 1213, "Deadlock found"), "TRANSIENT"),
    (made("grpc.RpcError", code=lambda: Code.UNAVAILABLE, details=lambda: "d"), "TRANSIENT"),
    (made("grpc.RpcError", code=lambda: Code.UNAVAILABLE, details=lambda: "failed to connect"), "NETWORK"),
    (
        made("grpc.RpcError", code=lambda: Code.RESOURCE_EXHAUSTED, details=lambda: "Received message larger than max"),
        "VALIDATION",
    ),
    # bases that mislead
    (made("redis.exceptions.AuthenticationError", bases=(REDIS_CONNECTION,)), "AUTHENTICATION"),
    (made("redis.exceptions.LockError", bases=(ValueError,)), "TRANSIENT"),
    (made("redis.exceptions.ReadOnlyError", bases=(REDIS_RESPONSE,)), "TRANSIENT"),
    (made("redis.exceptions.RedisError", status_code="ERR"), "TRANSIENT"),
    (made("requests.exceptions.JSONDecodeError", bases=(OSError,)), "STRUCTURAL"),
    (made("httpx.UnsupportedProtocol", bases=(named("httpx.TransportError"),)), "VALIDATION"),
    (made("sqlalchemy.exc.TimeoutError"), "SYSTEM"),
    (made("telegram.error.BadRequest", bases=(named("telegram.error.NetworkError"),)), "VALIDATION"),
    # the code before the class, the text where there is no code
    (made("psycopg.OperationalError", "x", sqlstate="40P01"), "TRANSIENT"),
    (made("psycopg2.OperationalError", "FATAL: password authentication failed", pgcode=None), "AUTHENTICATION"),
    (made("psycopg2.OperationalError", "server closed the connection unexpectedly", pgcode=None), "NETWORK"),
    (made("sqlite3.OperationalError", "database is locked"), "TRANSIENT"),
    (made("sqlite3.OperationalError", "no such table: x"), "STRUCTURAL"),
    (made("sqlite3.OperationalError", "x", sqlite_errorname="SQLITE_BUSY_SNAPSHOT"), "TRANSIENT"),
    (made("oracledb.exceptions.DatabaseError", "ORA-00060: deadlock detected"), "TRANSIENT"),
    (made("urllib3.exceptions.ResponseError", "too many 429 error responses"), "RATE_LIMITED"),
    (made("boto3.exceptions.S3UploadFailedError", "An error occurred (AccessDenied) when calling"), "AUTHENTICATION"),
    # what is inside
    (made("sqlalchemy.exc.DBAPIError", orig=made("psycopg.Error", sqlstate="40001")), "TRANSIENT"),
    (made("sqlalchemy.exc.DBAPIError", orig=Exception("x"), connection_invalidated=True), "NETWORK"),
    (made("urllib3.exceptions.MaxRetryError", reason=ConnectionRefusedError(111, "r")), "NETWORK"),
    (made("urllib.error.URLError", reason=ConnectionRefusedError(111, "r"), bases=(OSError,)), "NETWORK"),
    (
        made("tenacity.RetryError", last_attempt=SimpleNamespace(_state="FINISHED", _exception=ValueError("x"))),
        "VALIDATION",
    ),
    (made("tenacity.RetryError", last_attempt=SimpleNamespace(_state="PENDING", _exception=None)), "TRANSIENT"),
    (
        made(
            "celery.utils.serialization.UnpickleableExceptionWrapper",
            exc_module="redis.exceptions",
            exc_cls_name="AuthenticationError",
            exc_args=("x",),
        ),
        "AUTHENTICATION",
    ),
    (made("pymongo.errors.BulkWriteError", details={"writeErrors": [{"code": 112}, {"code": 11000}]}), "PERMANENT"),
    (made("elasticsearch.helpers.BulkIndexError", errors=[{"index": {"status": 429}}]), "RATE_LIMITED"),
    # children of the operating system
    (made("subprocess.CalledProcessError", returncode=-9), "SYSTEM"),
    (made("subprocess.CalledProcessError", returncode=137), "SYSTEM"),
    (made("subprocess.CalledProcessError", returncode=1), "PERMANENT"),
    (OSError(errno.ENOSPC, "full"), "SYSTEM"),
    (OSError(errno.EHOSTUNREACH, "no route"), "NETWORK"),
    (OSError("no number"), "SYSTEM"),
]


@pytest.mark.parametrize(
    ("exc", "expected"), TRAPS, ids=[f"{type(exc).__name__}-{n}" for n, (exc, _) in enumerate(TRAPS)]
)
def test_a_trap_is_closed(exc: BaseException, expected: str) -> None:
    assert class_of(exc) == expected


def test_a_subclass_of_the_user_is_found_through_its_bases() -> None:
    vendor = named("requests.exceptions.ConnectionError", OSError)
    own = type("WarehouseDown", (vendor,), {"__module__": "shop.warehouse"})

    assert class_of(own("x")) == "NETWORK"


def test_the_longest_module_prefix_counts_first() -> None:
    assert class_of(made("google.auth.exceptions.TransportError")) == "NETWORK"
    assert class_of(made("google.api_core.exceptions.Aborted")) == "TRANSIENT"
    assert class_of(made("google.api_core.exceptions.AlreadyExists")) == "PERMANENT"


def test_a_class_that_only_pretends_to_be_built_in_is_not_taken_for_one() -> None:
    assert class_of(made("builtins.SystemExit")) != "NOT_A_FAILURE"


@pytest.mark.parametrize("package", list(TABLES))
def test_a_row_only_holds_what_can_be_asked(package: str) -> None:
    for name, row in TABLES[package].items():
        assert name.isidentifier()
        for askable in row if isinstance(row, tuple) else (row,):
            assert isinstance(askable, FailureClass) or callable(askable)


def test_every_library_we_promise_has_rows() -> None:
    assert [name for name in PROMISED.split() if not TABLES.get(name)] == []


@pytest.mark.parametrize(
    ("status", "expected"),
    [(200, None), (302, None), (399, None), (600, None), (400, "VALIDATION"), (404, "PERMANENT"), (418, "PERMANENT"),
     (429, "RATE_LIMITED"), (451, "PERMANENT"), (501, "PERMANENT"), (503, "TRANSIENT"), (599, "TRANSIENT")],
)  # fmt: skip
def test_a_status_has_a_class_from_400_on(status: int, expected: str | None) -> None:
    assert class_of_status(status, {}) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [("40001", "TRANSIENT"), ("23505", "PERMANENT"), ("22999", "VALIDATION"), ("08999", "NETWORK"),
     ("ZZ000", "PERMANENT"), ("", None), ("4000", None), ("40-01", None)],
)  # fmt: skip
def test_a_sqlstate_falls_back_to_its_class(code: str, expected: str | None) -> None:
    assert class_of_sqlstate(code) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("FooRateLimitError", "RATE_LIMITED"), ("AuthError", "AUTHENTICATION"), ("AuthorNotFound", "PERMANENT"),
     ("AuthorizationError", "AUTHENTICATION"), ("QueryTimeout", "TRANSIENT"), ("ConnectTimeout", "NETWORK"),
     ("LostConnection", "NETWORK"), ("InvalidInput", "VALIDATION"), ("OrderError", None)],
)  # fmt: skip
def test_a_name_that_means_the_same_everywhere_is_the_last_resort(name: str, expected: str | None) -> None:
    assert class_of_name(name) == expected


def test_plans_of_classes_made_at_run_time_do_not_pile_up() -> None:
    for number in range(3_000):
        plan_for(type(f"E{number}", (Exception,), {}))

    assert len(libraries._plans) <= 1_024
