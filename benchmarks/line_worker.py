"""A contestant in a process of its own: a request a line in, an answer a line out.

Only the standard library: peers run this in environments of their own. A request is JSON with the name of a method
under `do` and its arguments; an answer is JSON, `{"error": ...}` where it failed. A contestant works only while a
request of it runs.
"""

import json
import os
import sys
from typing import IO

FAILURES = (ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError)
FAILURES += (ValueError,)


class LineWorker:
    """Answers requests by its methods, each of which returns an object that JSON can hold."""

    def ready(self) -> dict:
        """Answered once everything is imported."""
        return {}

    def answer(self, request: dict) -> dict:
        arguments = dict(request)
        try:
            return getattr(self, arguments.pop("do"))(**arguments)
        except FAILURES as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            return {"error": first}

    def serve(self) -> None:
        """Answer until the asking side closes the pipe."""
        out = own_output()
        for line in sys.stdin:
            out.write(json.dumps(self.answer(json.loads(line))) + "\n")
            out.flush()


def own_output() -> IO[str]:
    """Standard output for answers alone: what libraries print goes to standard error."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out
