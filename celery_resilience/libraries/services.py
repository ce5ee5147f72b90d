"""Web services with a client library of their own."""

from __future__ import annotations

from celery_resilience.libraries import look
from celery_resilience.libraries.rows import (
    by_http_number,
    by_number,
    by_own_name,
    by_pattern,
    by_status,
    by_text,
    by_word,
    inside,
    numbers,
    same_for,
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

_MODEL_CODES = words(
    {
        # A 429 that waiting does not heal: somebody has to pay.
        PERMANENT: "insufficient_quota billing_hard_limit_reached billing_not_active billing_error quota_exceeded"
        " account_deactivated content_policy_violation content_filter model_not_found enforced_spend_limit_reached"
        " not_found_error",
        RATE_LIMITED: "rate_limit_exceeded rate_limit_error requests tokens",
        TRANSIENT: "overloaded_error server_error api_error timeout_error engine_overloaded slow_down",
        AUTHENTICATION: "invalid_api_key authentication_error permission_error invalid_organization",
        VALIDATION: "context_length_exceeded string_above_max_length request_too_large invalid_request_error",
    }
)
_BILLING = by_word(
    {code: answer for code, answer in _MODEL_CODES.items() if answer is PERMANENT and code != "not_found_error"},
    "code", "type", "body.code", "body.type", "body.error.code", "body.error.type",
)  # fmt: skip
_IN_STREAM = by_word(_MODEL_CODES, "code", "type", "body.code", "body.type", "body.error.code", "body.error.type")

_MODELS: Rows = {
    "EnforcedSpendLimitReachedError": PERMANENT,
    **same_for("APIResponseValidationError", STRUCTURAL),
    **same_for("LengthFinishReasonError ContentFilterFinishReasonError", PERMANENT),
    **same_for("InvalidWebhookSignatureError APIWebhookValidationError", AUTHENTICATION),
    **same_for("CredentialsError WorkloadIdentityError SubjectTokenProviderError", AUTHENTICATION),
    **same_for("APIConnectionError WebSocketConnectionClosedError", NETWORK),
    "OverloadedError": TRANSIENT,
    "APIStatusError": (_BILLING, by_status, by_own_name),
    "RateLimitError": (_BILLING, by_status, RATE_LIMITED),
    "AuthenticationError": AUTHENTICATION,
    "PermissionDeniedError": (by_status, AUTHENTICATION),
    "APIError": (_IN_STREAM, by_status, TRANSIENT),
    "RetryableError": TRANSIENT,
    "WebSocketQueueFullError": SYSTEM,
    **dict.fromkeys(("OpenAIError", "AnthropicError"), (by_text((r"api_key|credentials", AUTHENTICATION)), PERMANENT)),
}

_STRIPE: Rows = {
    "CardError": (
        by_word({"processing_error": TRANSIENT, "rate_limit": RATE_LIMITED}, "code"),
        by_word({"try_again_later": TRANSIENT, "processing_error": TRANSIENT, "issuer_not_available": TRANSIENT},
                "error.decline_code", "json_body.error.decline_code"),
        PERMANENT,
    ),
    "RateLimitError": RATE_LIMITED,
    "APIConnectionError": NETWORK,
    **same_for("AuthenticationError PermissionError SignatureVerificationError OAuthError", AUTHENTICATION),
    "IdempotencyError": (by_word({"idempotency_key_in_use": TRANSIENT}, "code"), PERMANENT),
    "InvalidRequestError": (
        by_word({"lock_timeout": TRANSIENT, "resource_missing": PERMANENT, "rate_limit": RATE_LIMITED,
                 "idempotency_key_in_use": TRANSIENT}, "code"),
        by_status,
        VALIDATION,
    ),
    "APIError": (by_status, TRANSIENT),
    "QuotaExceededError": PERMANENT,
    "StripeError": (by_word({"lock_timeout": TRANSIENT, "rate_limit": RATE_LIMITED}, "code"), by_status, PERMANENT),
}  # fmt: skip

_TWILIO = by_number(
    numbers(
        {
            RATE_LIMITED: (14107, 20429, 30022, 30027, 51002, 51201, 54006, 60203, 60212, 63018, 63051, 88207),
            AUTHENTICATION: (20003, 20005, 20006, 20008, 20101, 20103, 20104, 20107, 20151, 20403, 20426, 21705),
            TRANSIENT: (20409, 20500, 20503, 20504, 30001, 30002, 30008, 45003, 63017),
            VALIDATION: (20001, 21211, 21212, 21214, 21217, 21601, 21602, 21604, 21605, 21614, 21617),
            PERMANENT: (20404, 20012, 21408, 21606, 21608, 21610, 21611, 21612, 30003, 30004, 30005, 30006, 30007),
        }
    ),
    "code",
)

_SLACK_WORDS = words(
    {
        RATE_LIMITED: "ratelimited rate_limited message_limit_exceeded",
        AUTHENTICATION: "invalid_auth not_authed account_inactive token_revoked token_expired no_permission"
        " missing_scope"
        " org_login_required ekm_access_denied access_denied not_allowed_token_type team_access_not_granted"
        " restricted_action"
        " two_factor_setup_required invalid_refresh_token bad_client_secret invalid_client_id user_is_restricted"
        " restricted_action_read_only_channel restricted_action_thread_only_channel",
        TRANSIENT: "internal_error fatal_error service_unavailable request_timeout accesslimited team_added_to_org"
        " timeout"
        " external_channel_migrating posting_to_channel_in_progress",
        VALIDATION: "invalid_arguments invalid_arg_name invalid_array_arg invalid_charset invalid_form_data no_text"
        " invalid_post_type missing_post_type msg_too_long too_many_attachments invalid_blocks invalid_blocks_format"
        " missing_argument invalid_json json_not_object invalid_cursor invalid_limit attachment_payload_limit_exceeded"
        " invalid_metadata_format invalid_attachments markdown_text_conflict metadata_too_large"
        " no_dual_broadcast_content_update",
        STRUCTURAL: "unknown_method method_deprecated deprecated_endpoint method_not_supported_for_channel_type",
        PERMANENT: "channel_not_found user_not_found is_archived not_in_channel already_in_channel users_not_found"
        " message_not_found thread_not_found file_not_found cant_update_message edit_window_closed already_reacted",
    }
)


def _slack(exc: BaseException) -> Answer:
    # Slack's errors come with HTTP 200: the word in the body tells.
    answer = by_status(exc)
    if answer is not None:
        return answer
    said = look.word(look.dig(exc, "response.data.error")) or look.word(look.dig(exc, "response.error"))
    return None if said is None else _SLACK_WORDS.get(said, PERMANENT)


_GITHUB_LIMIT = by_pattern(
    ((r"rate limit|abuse detection|secondary limit|please wait a few minutes", RATE_LIMITED),), "data.message"
)


def _container_exit(exc: BaseException) -> Answer:
    code = look.number(look.peek(exc, "exit_status"))
    return SYSTEM if code is not None and (code < 0 or 128 < code < 160) else PERMANENT


_DOCKER: Rows = {
    "ContainerError": _container_exit,
    **same_for("BuildError ImageLoadError DeprecatedMethod ContextException ContextNotFound", PERMANENT),
    **same_for("InvalidVersion InvalidConfigFile TLSParameterError ContextAlreadyExists", PERMANENT),
    **same_for("InvalidRepository InvalidArgument NullResource MissingContextParameter", VALIDATION),
    "APIError": (by_status, by_own_name, inside("__cause__"), TRANSIENT),
    "CredentialsNotFound": AUTHENTICATION,
    "StoreError": AUTHENTICATION,
    "InitializationError": PERMANENT,
    "StreamParseError": STRUCTURAL,
    "DockerException": (
        inside("__cause__"),
        by_text((r"permission denied", AUTHENTICATION), (r"refused|timed out|aborted|reset|connect", SYSTEM)),
        SYSTEM,
    ),
}

_HVAC: Rows = {
    **same_for("InvalidRequest ParamValidationError", VALIDATION),
    **same_for("Unauthorized Forbidden", AUTHENTICATION),
    **same_for("InvalidPath UnsupportedOperation", PERMANENT),
    "RateLimitExceeded": RATE_LIMITED,
    **same_for("VaultNotInitialized", SYSTEM),
    "PreconditionFailed": TRANSIENT,  # a replica has not caught up yet
    **same_for("InternalServerError VaultDown BadGateway UnexpectedError VaultError", TRANSIENT),
}

_TELEGRAM: Rows = {
    "RetryAfter": RATE_LIMITED,
    "BadRequest": VALIDATION,  # a NetworkError by inheritance
    **same_for("Forbidden InvalidToken", AUTHENTICATION),
    "ChatMigrated": PERMANENT,
    "EndPointNotFound": PERMANENT,
    "Conflict": TRANSIENT,
    "NetworkError": NETWORK,
    "TelegramError": PERMANENT,
}

SERVICES: Tables = {
    "openai": _MODELS,
    "anthropic": _MODELS,
    "stripe": _STRIPE,
    "twilio": {
        "TwilioRestException": (_TWILIO, by_status, TRANSIENT),
        "TwilioServiceException": (_TWILIO, by_status, TRANSIENT),
        "TwilioException": (by_text((r"credential|auth", AUTHENTICATION)), TRANSIENT),
    },
    "slack_sdk": {
        "SlackApiError": (_slack, by_text((r"ratelimited", RATE_LIMITED)), TRANSIENT),
        "SlackRequestError": PERMANENT,
        "SlackClientNotConnectedError": NETWORK,
        "SlackObjectFormationError": VALIDATION,
        **same_for("SlackTokenRotationError BotUserAccessError", AUTHENTICATION),
        "SlackClientConfigurationError": PERMANENT,
        "SlackClientError": TRANSIENT,  # also what is left of a SlackApiError after pickling
    },
    "github": {
        "RateLimitExceededException": RATE_LIMITED,
        **same_for("BadCredentialsException TwoFactorException", AUTHENTICATION),
        **same_for("UnknownObjectException BadUserAgentException IncompletableObject", PERMANENT),
        "BadAttributeException": STRUCTURAL,
        "GithubException": (_GITHUB_LIMIT, by_status, TRANSIENT),
    },
    "gitlab": {
        "GitlabAuthenticationError": AUTHENTICATION,
        "GitlabError": (by_http_number("response_code"), TRANSIENT),
    },
    "kubernetes": {
        "ApiException": (by_status, by_own_name, NETWORK),  # status 0 or None: no answer came
        **same_for("ApiTypeError ApiValueError ApiAttributeError ApiKeyError KubernetesValidateMissing", VALIDATION),
        "ConfigException": PERMANENT,
        **same_for("ResourceNotFoundError ResourceNotUniqueError", STRUCTURAL),
        "OpenApiException": PERMANENT,
    },
    "docker": _DOCKER,
    "hvac": _HVAC,
    "python_http_client": {"HTTPError": (by_status, by_own_name, TRANSIENT)},
    "sendgrid": {"SendGridException": VALIDATION},
    "telegram": _TELEGRAM,
    "aiogram": {
        "TelegramRetryAfter": RATE_LIMITED,
        "TelegramBadRequest": VALIDATION,
        "TelegramForbiddenError": AUTHENTICATION,
    },
    "telethon": {"FloodError": RATE_LIMITED, "RPCError": (by_http_number("code"), PERMANENT)},
    "discord": {
        "RateLimited": RATE_LIMITED,
        "HTTPException": (by_status, by_own_name),
        "GatewayNotFound": NETWORK,
        "ConnectionClosed": NETWORK,
        **same_for("LoginFailure PrivilegedIntentsRequired CheckFailure", AUTHENTICATION),
        "CommandOnCooldown": RATE_LIMITED,
        "CommandInvokeError": inside("original", "__cause__"),
        "DiscordException": PERMANENT,
    },
    "tweepy": {"TooManyRequests": RATE_LIMITED, "HTTPException": by_status, "TweepyException": TRANSIENT},
    "selenium": {
        "TimeoutException": TRANSIENT,
        **same_for("NoSuchElementException NoSuchFrameException NoSuchAttributeException", STRUCTURAL),
        **same_for("UnexpectedTagNameException NoSuchShadowRootException", STRUCTURAL),
        **same_for("InvalidArgumentException InvalidSelectorException", VALIDATION),
        "InsecureCertificateException": PERMANENT,
        **same_for("JavascriptException UnknownMethodException UnsupportedOperationException", PERMANENT),
        **same_for("SessionNotCreatedException NoSuchDriverException", SYSTEM),
        "WebDriverException": (
            by_text(
                (r"net::ERR_(NAME|CONN|INTERNET|TIMED|NETWORK|ADDRESS)", NETWORK), (r"crashed|disconnected", SYSTEM)
            ),
            TRANSIENT,
        ),
    },
    "playwright": {
        "TimeoutError": TRANSIENT,
        "TargetClosedError": SYSTEM,
        "Error": (
            by_text(
                (r"net::ERR_(NAME|CONN|INTERNET|TIMED|NETWORK|ADDRESS)|NS_ERROR_(NET|CONN|UNKNOWN_HOST)", NETWORK),
                (r"Executable doesn't exist|missing dependencies", PERMANENT),
                (r"crashed|has been closed|Target closed", SYSTEM),
                (r"strict mode violation|is not a valid selector|Unknown engine", STRUCTURAL),
            ),
            TRANSIENT,
        ),
    },
}
