"""Parsing, validating and signing: what is wrong lies in the data, or in its shape."""

from __future__ import annotations

from celery_resilience.libraries.rows import same_for
from celery_resilience.libraries.verdict import (
    AUTHENTICATION,
    NETWORK,
    PERMANENT,
    RATE_LIMITED,
    STRUCTURAL,
    TRANSIENT,
    VALIDATION,
    Rows,
    Tables,
)

_PYDANTIC: Rows = {
    **same_for("ValidationError PydanticCustomError PydanticKnownError PydanticSerializationError", VALIDATION),
    **same_for("SchemaError PydanticUserError PydanticUndefinedAnnotation PydanticImportError ConfigError", PERMANENT),
}

_LXML: Rows = {
    **same_for(
        "XPathError XPathSyntaxError XSLTParseError XMLSchemaParseError DTDParseError RelaxNGParseError", PERMANENT
    ),
    **same_for("SchematronParseError SerialisationError C14NError LxmlRegistryError", PERMANENT),
    **same_for("DocumentInvalid DTDValidateError RelaxNGValidateError XMLSchemaValidateError", VALIDATION),
    "SchematronValidateError": VALIDATION,
    **same_for("LxmlSyntaxError ParserError LxmlError Error", STRUCTURAL),
}

_OAUTH: Rows = {
    **same_for("ServerError TemporarilyUnavailableError", TRANSIENT),
    "SlowDownError": RATE_LIMITED,
    "AuthorizationPendingError": TRANSIENT,
    **same_for(
        "InvalidRequestError InvalidRequestFatalError InsecureTransportError UnsupportedGrantTypeError", VALIDATION
    ),
    **same_for("OAuth1Error OAuth2Error OAuthError JoseError", AUTHENTICATION),
}

PARSING: Tables = {
    "pydantic": _PYDANTIC,
    "pydantic_core": _PYDANTIC,
    "jsonschema": {
        **same_for("ValidationError FormatError", VALIDATION),
        **same_for("SchemaError UndefinedTypeCheck UnknownType _RefResolutionError RefResolutionError", PERMANENT),
        "_WrappedReferencingError": PERMANENT,
    },
    "referencing": {"Unresolvable": PERMANENT, "NoSuchResource": PERMANENT},
    "marshmallow": {
        **same_for("ValidationError MarshmallowError", VALIDATION),
        **same_for("RegistryError StringNotCollectionError FieldInstanceResolutionError", PERMANENT),
        "_FieldInstanceResolutionError": PERMANENT,
    },
    "cerberus": {"DocumentError": VALIDATION, "SchemaError": PERMANENT},
    "voluptuous": {"Invalid": VALIDATION, "SchemaError": PERMANENT},
    "cattrs": {"BaseValidationError": VALIDATION, "StructureHandlerNotFoundError": PERMANENT},
    "lxml": _LXML,
    "simplejson": {"JSONDecodeError": STRUCTURAL},
    "orjson": {"JSONDecodeError": STRUCTURAL, "JSONEncodeError": VALIDATION},
    "msgpack": {
        "UnpackException": STRUCTURAL,
        "PackException": VALIDATION,
        **same_for("ExtraData FormatError", STRUCTURAL),
    },
    "yaml": {"ConstructorError": VALIDATION, "RepresenterError": VALIDATION, "YAMLError": STRUCTURAL},
    "toml": {"TomlDecodeError": STRUCTURAL},
    "tomllib": {"TOMLDecodeError": STRUCTURAL},
    "bs4": {"FeatureNotFound": PERMANENT, "ParserRejectedMarkup": STRUCTURAL},
    "pandas": {**same_for("ParserError EmptyDataError", STRUCTURAL)},
    "PIL": {"UnidentifiedImageError": VALIDATION, "DecompressionBombError": VALIDATION},
    "openpyxl": {"InvalidFileException": VALIDATION},
    "jinja2": {"TemplateError": PERMANENT},
    "jwt": {
        "PyJWKClientConnectionError": NETWORK,
        "PyJWKClientError": AUTHENTICATION,
        "MissingCryptographyError": PERMANENT,
        "PyJWTError": AUTHENTICATION,
    },
    "jose": {"JOSEError": AUTHENTICATION},
    "cryptography": {**same_for("InvalidToken InvalidSignature InvalidKey InvalidTag", AUTHENTICATION)},
    "itsdangerous": {"BadData": AUTHENTICATION},
    "oauthlib": _OAUTH,
    "authlib": _OAUTH,
}
