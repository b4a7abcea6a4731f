"""A JSON file that is kept between starts, by what it is about."""

import json
import warnings
from hashlib import sha256
from typing import Any

from foredraft.core.cache_folder import cache_folder
from foredraft.core.replaced_file import replace_text


class KeptFile:
    """One record of a kind.

    Attributes:
        path: The file; it need not exist.
    """

    def __init__(self, kind: str, key: str):
        """The record of what `key` says, in the folder of its kind."""
        self.path = cache_folder() / kind / f"{sha256(key.encode()).hexdigest()[:24]}.json"

    def read(self) -> Any:
        """The record. Raises `OSError` or `ValueError` where there is none."""
        return json.loads(self.path.read_text(encoding="utf-8"))

    def write(self, record: Any, otherwise: str) -> None:
        """Put `record` on disk; a folder that cannot be written costs a warning that begins with `otherwise`."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(self.path, json.dumps(record) + "\n")
        except OSError as error:
            warnings.warn(f"{otherwise}: {error}", stacklevel=3)
