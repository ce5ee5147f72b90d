"""The fingerprint of a failure: equal for failures that one fix would end.

It is made of the type and the innermost frames of user code, without line numbers or ids, so that it survives edits
elsewhere in the file and does not tell one customer's failure from another's.
"""

from __future__ import annotations

import hashlib
import os
import re
from types import CodeType, TracebackType

from celery_resilience.libraries import look

_FRAMES = 3
_FOREIGN = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_FOREIGN_ROOTS = (os.path.dirname(os.__file__) + os.sep, os.path.dirname(__file__) + os.sep, "<frozen ")
_IDS = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8}(?:-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}\b|\b[0-9a-fA-F]{16,}\b|\d+")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_TEXT_LIMIT = 300


def fingerprint(exc: BaseException) -> str:
    """Give 16 hexadecimal digits; never raises.

    An exception that was never raised has no frames: then its text without numbers, ids and quoted parts stands in.
    """
    parts = [look.type_name(exc)]
    parts += _frames(look.a(TracebackType, look.peek(exc, "__traceback__"))) or [_template(look.text(exc))]
    digest = hashlib.blake2b("\n".join(_IDS.sub("#", part) for part in parts).encode("utf-8", "replace"), digest_size=8)
    return digest.hexdigest()


def _frames(traceback: TracebackType | None) -> list[str]:
    """Name the innermost frames of user code; those of libraries only where there is no other."""
    last: dict[CodeType, object] = {}
    while traceback is not None:
        frame = traceback.tb_frame
        last.pop(frame.f_code, None)  # to its innermost place: a recursion counts once, however deep it was
        last[frame.f_code] = frame.f_globals.get("__name__")
        traceback = traceback.tb_next
    innermost = list(reversed(last.items()))
    own = [(code, module) for code, module in innermost if _is_user_code(code.co_filename)]
    return [_name(code, module) for code, module in (own or innermost)[:_FRAMES]]


def _name(code: CodeType, module: object) -> str:
    return f"{look.word(module) or os.path.basename(code.co_filename)}:{_qualname(code)}"


def _qualname(code: CodeType) -> str:
    return getattr(code, "co_qualname", code.co_name)  # Python 3.10 has no co_qualname


def _is_user_code(filename: str) -> bool:
    return not (filename.startswith(_FOREIGN_ROOTS) or any(part in filename for part in _FOREIGN))


def _template(text: str) -> str:
    return _QUOTED.sub("?", text[:_TEXT_LIMIT])
