"""What surrounds every reply: its id, its time, who made it, and why a text ended."""

import secrets
from time import time

from foredraft import __version__

FINGERPRINT = f"foredraft-{__version__}"
CUT_SHORT = ("timeout", "shutdown")  # reasons that OpenAI's clients do not know


def envelope(kind: str, prefix: str, model: str) -> dict:
    """The beginning of a reply of `kind`, with an id of its own."""
    return {
        "id": f"{prefix}-{secrets.token_hex(16)}",
        "object": kind,
        "created": int(time()),
        "model": model,
        "system_fingerprint": FINGERPRINT,
    }


def ending(reason: str, *, calls: bool = False) -> tuple[str, str | None]:
    """OpenAI's finish reason for the engine's, and what ended the text really where OpenAI has no word for it.

    A text with tool calls that stopped by itself ends for them. Failures are the caller's to report.
    """
    assert reason in ("stop", "length", *CUT_SHORT), reason
    if reason in CUT_SHORT:
        return "length", reason
    return ("tool_calls" if calls and reason == "stop" else reason), None
