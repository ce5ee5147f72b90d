"""Clouds: AWS (botocore, boto3, minio), Google, Azure and gRPC.

Their HTTP statuses lie (AWS throttles with 400, Google with 403), so the service's own code is read first.
"""

from __future__ import annotations

import re

from celery_resilience.libraries import look
from celery_resilience.libraries.rows import (
    TextTable,
    by_http_number,
    by_pattern,
    by_status,
    by_text,
    by_word,
    inside,
    same_for,
    when,
    words,
)
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

_AWS_CODES = words(
    {
        RATE_LIMITED: "Throttling ThrottlingException ThrottledException RequestThrottledException RequestThrottled"
        " TooManyRequestsException ProvisionedThroughputExceededException RequestLimitExceeded BandwidthLimitExceeded"
        " LimitExceededException SlowDown SlowDownRead SlowDownWrite EC2ThrottledException TooManyRequests"
        " Client.RequestLimitExceeded KmsThrottled KMSThrottlingException SendingPausedException OverLimit RateExceeded"
        " RequestThrottledException ThroughputExceededException TooManyEntriesException",
        TRANSIENT: "RequestTimeout RequestTimeoutException InternalError InternalFailure InternalServerError"
        " InternalServerException InternalServiceError InternalServiceException ServiceUnavailable ServiceException"
        " ServiceUnavailableException Unavailable PriorRequestNotComplete TransactionInProgressException"
        " TransactionConflictException OperationAborted ConflictException ResourceInUseException"
        " ResourceConflictException"
        " ConcurrentModificationException ModelTimeoutException ModelNotReadyException IDPCommunicationError"
        " ServerError Busy BadDigest ReplicatedWriteConflictException XMinioServerNotInitialized",
        AUTHENTICATION: "ExpiredToken ExpiredTokenException TokenRefreshRequired AccessDenied AccessDeniedException"
        " InvalidClientTokenId UnrecognizedClientException SignatureDoesNotMatch InvalidSignatureException"
        " InvalidAccessKeyId AuthFailure MissingAuthenticationToken MissingAuthenticationTokenException"
        " UnauthorizedOperation UnauthorizedAccess UnauthorizedException NotAuthorizedException NotAuthorized"
        " IncompleteSignature OptInRequired RequestExpired RequestTimeTooSkewed InvalidToken InvalidSecurity"
        " AllAccessDisabled AccountProblem Forbidden ForbiddenException AuthorizationError InvalidIdentityToken",
        VALIDATION: "ValidationException ValidationError InvalidParameterValue InvalidParameterException InvalidRequest"
        " InvalidArgument InvalidParameterCombination MalformedXML MalformedQueryString MissingParameter EntityTooLarge"
        " EntityTooSmall SerializationException InvalidParameterValueException InvalidRequestException MessageTooLong"
        " BatchRequestTooLong BadRequestException KeyTooLongError InvalidBucketName InvalidDigest InvalidRange",
        PERMANENT: "ConditionalCheckFailedException PreconditionFailed ServiceQuotaExceededException MethodNotAllowed"
        " BucketAlreadyExists BucketAlreadyOwnedByYou BucketNotEmpty IdempotentParameterMismatch InvalidObjectState"
        " ItemCollectionSizeLimitExceededException NotImplemented MessageRejected DryRunOperation",
    }
)
_AWS_PATTERNS: TextTable = (
    (r"throttl|TooManyRequest|RateExceeded|RequestLimit|SlowDown", RATE_LIMITED),
    (r"NotFound|NoSuch|DoesNotExist|NonExistent|AlreadyExist|Duplicate|Unsupported", PERMANENT),
    (r"Expired.*Token|AccessDenied|Unauthorized|NotAuthorized|Credential|InvalidClientToken", AUTHENTICATION),
    (r"Timeout|Unavailable|Internal|ServerError|Conflict|InProgress|Concurrent|NotReady", TRANSIENT),
    (r"Invalid|Validation|Malformed|Missing|TooLarge|TooLong", VALIDATION),
)
_AWS_IN_TEXT = re.compile(r"An error occurred \(([\w.]+)\)")
_AWS_PLACES = ("response.Error.Code", "code")
_AWS_CODE = by_word(_AWS_CODES, *_AWS_PLACES)
_AWS_PATTERN = by_pattern(_AWS_PATTERNS, *_AWS_PLACES)


def _aws_cancelled(exc: BaseException) -> Answer:
    """Read why a DynamoDB transaction was cancelled; a failed condition fails again."""
    reasons = look.a(list, look.dig(exc, "response.CancellationReasons")) or []
    codes = {look.word(look.dig(reason, "Code")) for reason in reasons[:100]}
    if not reasons or look.word(look.dig(exc, "response.Error.Code")) != "TransactionCanceledException":
        return None
    if codes & {"ConditionalCheckFailed", "ItemCollectionSizeLimitExceeded"}:
        return PERMANENT
    if "ValidationError" in codes:
        return VALIDATION
    return RATE_LIMITED if codes & {"ThrottlingError", "ProvisionedThroughputExceeded"} else TRANSIENT


def _aws_in_text(exc: BaseException) -> Answer:
    # boto3's transfer wraps the ClientError into words.
    said = _AWS_IN_TEXT.search(look.text(exc))
    return None if said is None else _AWS_CODES.get(said[1])


_AWS_ERROR = (_aws_cancelled, _AWS_CODE, when("response.Error.Code", "TransactionCanceledException", TRANSIENT),
              _AWS_PATTERN, by_status, TRANSIENT)  # fmt: skip

_BOTOCORE: Rows = {
    "ClientError": _AWS_ERROR,
    **same_for("NoCredentialsError PartialCredentialsError CredentialRetrievalError NoAuthTokenError", AUTHENTICATION),
    **same_for("TokenRetrievalError SSOError LoginError RefreshWithMFAUnsupportedError", AUTHENTICATION),
    **same_for("ParamValidationError ValidationError MissingParametersError InvalidHostLabelError", VALIDATION),
    **same_for("InvalidDNSNameError InvalidExpressionError UnsupportedS3ArnError InvalidRegionError", VALIDATION),
    **same_for("ConnectionError HTTPClientError IncompleteReadError ResponseStreamingError ChecksumError", NETWORK),
    "FlexibleChecksumError": NETWORK,
    "SSLError": (by_text((r"certificate verify|CERTIFICATE_VERIFY", PERMANENT)), NETWORK),
    "MetadataRetrievalError": TRANSIENT,
    "CapacityNotAvailableError": RATE_LIMITED,
    "ResponseParserError": STRUCTURAL,
    "WaiterError": (by_text((r"max attempts exceeded", TRANSIENT)), _aws_in_text, PERMANENT),
    "PaginationError": PERMANENT,
    "BotoCoreError": PERMANENT,  # the rest are wrong configurations
}

_TRANSFER: Rows = {
    "RetriesExceededError": (inside("last_exception"), NETWORK),
    **same_for("S3UploadFailedError S3TransferFailedError S3DownloadFailedError S3CopyFailedError",
               lambda exc: _aws_in_text(exc) or TRANSIENT),
    "S3ValidationError": TRANSIENT,
    "TransferNotDoneError": TRANSIENT,
    **same_for("QueueShutdownError FatalError", TRANSIENT),
    "Boto3Error": PERMANENT,
    "InvalidSubscriberMethodError": PERMANENT,
}  # fmt: skip

_GOOGLE_LIMIT = (
    r"rateLimitExceeded|userRateLimitExceeded|quotaExceeded|dailyLimitExceeded|RATE_LIMIT_EXCEEDED|Quota exceeded"
)
_google_limit = by_pattern(((_GOOGLE_LIMIT, RATE_LIMITED),), "content", "reason", "errors.0.reason", "message")


def _google_forbidden(exc: BaseException) -> Answer:
    # Google answers 403 to a client over its limit; only the reason tells it from a refusal.
    return _google_limit(exc) if look.status(exc) in (403, None) else None


_GRPC_CODES = words(
    {
        TRANSIENT: "CANCELLED UNKNOWN DEADLINE_EXCEEDED ABORTED INTERNAL UNAVAILABLE",
        RATE_LIMITED: "RESOURCE_EXHAUSTED",
        VALIDATION: "INVALID_ARGUMENT OUT_OF_RANGE",
        AUTHENTICATION: "UNAUTHENTICATED PERMISSION_DENIED",
        PERMANENT: "NOT_FOUND ALREADY_EXISTS FAILED_PRECONDITION UNIMPLEMENTED DATA_LOSS",
    }
)


def _grpc(exc: BaseException) -> Answer:
    code = look.call(exc, "code")  # a method, not an HTTP status
    name = look.word(look.peek(code, "name")) or look.word(look.dig(exc, "status.name")) or ""
    details = look.word(look.call(exc, "details")) or ""
    if name == "UNAVAILABLE" and re.search(r"connect|DNS|socket|reset|tcp|address", details, re.IGNORECASE):
        return NETWORK
    if name == "RESOURCE_EXHAUSTED" and re.search(r"message larger than max", details):
        return VALIDATION  # gRPC's own limit on the size of a message: waiting does not shrink it
    return _GRPC_CODES.get(name)


_GOOGLE_CORE: Rows = {
    **same_for("AlreadyExists NotFound FailedPrecondition PreconditionFailed MethodNotAllowed", PERMANENT),
    **same_for("MethodNotImplemented DataLoss Redirection LengthRequired DuplicateCredentialArgs", PERMANENT),
    **same_for("Aborted Conflict Cancelled DeadlineExceeded GatewayTimeout Unknown ServerError", TRANSIENT),
    **same_for("InvalidArgument OutOfRange RequestRangeNotSatisfiable BadRequest", VALIDATION),
    "TooManyRequests": RATE_LIMITED,
    "Unauthorized": AUTHENTICATION,
    "Forbidden": (_google_limit, AUTHENTICATION),
    "RetryError": (inside("cause", "__cause__"), TRANSIENT),
    "GoogleAPICallError": (by_http_number("code"), by_status, TRANSIENT),
    "UploadCancelledError": PERMANENT,
    "GoogleAPIError": TRANSIENT,
}

_GOOGLE_AUTH: Rows = {
    **same_for("TransportError TimeoutError", NETWORK),
    "ResponseError": STRUCTURAL,
    "OSError": SYSTEM,
    "GoogleAuthError": (when("retryable", True, TRANSIENT), AUTHENTICATION),
}

_AZURE_CODES = words(
    {
        RATE_LIMITED: "ServerBusy TooManyRequests",
        TRANSIENT: "OperationTimedOut InternalError",
        AUTHENTICATION: "AuthenticationFailed AuthorizationFailure AuthorizationPermissionMismatch",
    }
)
_AZURE: Rows = {
    "ClientAuthenticationError": AUTHENTICATION,
    **same_for("ResourceNotFoundError ResourceExistsError ResourceModifiedError ResourceNotModifiedError", PERMANENT),
    **same_for("TooManyRedirectsError StreamConsumedError StreamClosedError ResponseNotReadError", PERMANENT),
    "IncompleteReadError": NETWORK,
    "DecodeError": STRUCTURAL,
    **same_for("SerializationError", VALIDATION),
    "DeserializationError": STRUCTURAL,
    **same_for("ServiceRequestError ServiceResponseError", NETWORK),
    "HttpResponseError": (
        by_word(_AZURE_CODES, "error_code", "error.code"),
        by_status,
        TRANSIENT,
    ),
    "AzureError": TRANSIENT,
}  # fmt: skip

CLOUD: Tables = {
    "botocore": _BOTOCORE,
    "aiobotocore": _BOTOCORE,
    "boto3": _TRANSFER,
    "s3transfer": _TRANSFER,
    "minio": {
        "S3Error": (_AWS_CODE, _AWS_PATTERN, by_status, TRANSIENT),
        "InvalidResponseError": (by_http_number("_code", "code"), STRUCTURAL),
        "ServerError": (by_http_number("status_code", "_status_code"), TRANSIENT),
        "MinioAdminException": (by_http_number("_code", "code"), PERMANENT),
        "MinioException": TRANSIENT,
    },
    "google.api_core": _GOOGLE_CORE,
    "google.auth": _GOOGLE_AUTH,
    "google.cloud": {"InvalidResponse": by_status},
    "google.resumable_media": {"DataCorruption": NETWORK, "InvalidResponse": by_status},
    "google.genai": {"APIError": (by_http_number("code"), TRANSIENT)},
    "google.protobuf": {"DecodeError": STRUCTURAL, "EncodeError": VALIDATION, "Error": VALIDATION},
    "googleapiclient": {
        "HttpError": (_google_forbidden, by_status, TRANSIENT),
        "InvalidJsonError": STRUCTURAL,
        "UnknownApiNameOrVersion": PERMANENT,
        **same_for("MediaUploadSizeError InvalidChunkSizeError UnacceptableMimeTypeError UnknownFileType", VALIDATION),
        "Error": PERMANENT,
    },
    "azure": _AZURE,
    "msrest": {"ClientRequestError": NETWORK, "AuthenticationError": AUTHENTICATION, "ValidationError": VALIDATION},
    "grpc": {
        "RpcError": (_grpc, by_text((r"failed to connect|unavailable", NETWORK)), TRANSIENT),
        "FutureTimeoutError": NETWORK,
        "FutureCancelledError": TRANSIENT,
        "BaseError": TRANSIENT,
    },
    "grpclib": {"GRPCError": (_grpc, TRANSIENT), "ProtocolError": NETWORK, "StreamTerminatedError": NETWORK},
}
