"""The command line of a benchmark: a mistake is one line, no traceback."""

import sys

from cyclopts import App, CycloptsError

from foredraft import UserError


def run_command(app: App, arguments: list[str] | None, *failures: type[Exception]) -> int:
    """The exit code of `app` with `arguments`, those of the process where none are given.

    A mistake of the user ends with one line and 2, one of `failures` with one line and 1.
    """
    try:
        return app(arguments, print_error=False, exit_on_error=False, result_action="return_value") or 0
    except (UserError, CycloptsError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except failures as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
