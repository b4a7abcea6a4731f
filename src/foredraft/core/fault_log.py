"""How faults are logged: never with what a user wrote."""

import logging
import traceback


def log_fault(logger: logging.Logger, what: str, error: BaseException) -> None:
    """Log `error` by its type and place. Its message stays out of the log: it may quote a prompt."""
    places = "".join(traceback.format_tb(error.__traceback__))
    logger.error("%s with %s; its message is withheld\n%s", what, type(error).__name__, places)
