"""Where foredraft keeps what it has measured."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """FOREDRAFT_CACHE, else ~/.cache/foredraft; it need not exist yet."""
    return Path(os.environ.get("FOREDRAFT_CACHE") or Path.home() / ".cache" / "foredraft")
