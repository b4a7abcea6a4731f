"""The command line of a benchmark: a mistake is one line, no traceback, and earlier runs are forgotten."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from unittest.mock import patch

from cyclopts import App, CycloptsError

from foredraft import UserError


def run_command(app: App, arguments: list[str] | None, *failures: type[Exception]) -> int:
    """The exit code of `app` with `arguments`, those of the process where none are given.

    A mistake of the user ends with one line and 2, one of `failures` with one line and 1.
    """
    try:
        with nothing_known():
            return app(arguments, print_error=False, exit_on_error=False, result_action="return_value") or 0
    except (UserError, CycloptsError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except failures as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


@contextmanager
def nothing_known() -> Iterator[None]:
    """What earlier runs have measured and learned of models is out of sight: figures must not depend on it."""
    with TemporaryDirectory(prefix="foredraft-benchmark-") as folder, patch.dict(os.environ, FOREDRAFT_CACHE=folder):
        yield
