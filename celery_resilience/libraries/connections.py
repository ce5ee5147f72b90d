"""Lines below HTTP: SSH and DNS."""

from __future__ import annotations

from celery_resilience.libraries.rows import by_number, by_text, inside_all, same_for
from celery_resilience.libraries.verdict import (
    AUTHENTICATION,
    NETWORK,
    PERMANENT,
    STRUCTURAL,
    SYSTEM,
    VALIDATION,
    Rows,
    Tables,
)

_SSH: Rows = {
    "NoValidConnectionsError": (inside_all("errors"), NETWORK),
    "AuthenticationException": (by_text((r"timeout|timed out", NETWORK)), AUTHENTICATION),
    "BadHostKeyException": PERMANENT,
    "ChannelException": (by_number({1: PERMANENT, 2: NETWORK, 3: PERMANENT, 4: SYSTEM}, "code"), NETWORK),
    "IncompatiblePeer": STRUCTURAL,
    "ConfigParseError": PERMANENT,
    "CouldNotCanonicalize": NETWORK,
    "ProxyCommandFailure": NETWORK,
    "MessageOrderError": PERMANENT,
    "UnknownKeyType": PERMANENT,
    "SSHException": (
        by_text(
            (r"known_hosts|not a valid|private key|unpack|key cannot|Invalid key|Unknown server", PERMANENT),
            (r"no authentication methods|No suitable", AUTHENTICATION),
        ),
        NETWORK,
    ),
    "SFTPError": (by_text((r"garbage packet|EOF|clos", NETWORK), (r"permission denied", AUTHENTICATION)), PERMANENT),
}

_DNS: Rows = {
    **same_for("Timeout NoNameservers BadResponse UnexpectedSource TransferError", NETWORK),
    "NXDOMAIN": NETWORK,  # right after a host was made or renamed, resolvers still deny it
    **same_for("NoAnswer YXDOMAIN NoMetaqueries NotAbsolute", PERMANENT),
    "NoResolverConfiguration": SYSTEM,
    **same_for("PeerError BadSignature BadTime UnknownTSIGKey DeniedByPolicy", AUTHENTICATION),
    **same_for("ValidationFailure UnsupportedAlgorithm", PERMANENT),
    **same_for(
        "SyntaxError LabelTooLong EmptyLabel NameTooLong BadEscape IDNAException TooBig BadLabelType", VALIDATION
    ),
    "FormError": STRUCTURAL,
    "DNSException": NETWORK,
}

CONNECTIONS: Tables = {
    "paramiko": _SSH,
    "asyncssh": {
        "PermissionDenied": AUTHENTICATION,
        "HostKeyNotVerifiable": PERMANENT,
        **same_for("DisconnectError ConnectionLost ChannelOpenError", NETWORK),
    },
    "dns": _DNS,
    "aiodns": {"DNSError": NETWORK},
}
