"""Writes a file whole or not at all."""

import os
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Write `text` to disk under a temporary name, then rename it. Raises `OSError`; what stood there then stays."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
