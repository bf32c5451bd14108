"""Text from outside made visible: what controls, hides or reorders shows as itself, and does nothing; pure."""

import json
import unicodedata
from typing import Any, Final

_HIDDEN: Final = frozenset({"Cc", "Cf", "Zl", "Zp", "Co", "Cn", "Cs"})


def visible(text: str) -> str:
    """Return `text` with every character that a terminal wouldn't simply show written as ``\\u{…}``."""
    return "".join(
        f"\\u{{{ord(character):x}}}" if unicodedata.category(character) in _HIDDEN else character for character in text
    )


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return `value` as JSON in visible ASCII; without `indent` it is one line for every reader."""
    return json.dumps(value, indent=indent, ensure_ascii=True).replace("\x7f", "\\u007f")
