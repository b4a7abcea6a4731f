"""Failures of the engine, and how a request is ended when the engine cannot do it."""

import logging
from collections.abc import Callable
from dataclasses import replace

from foredraft.core.fault_log import log_fault
from foredraft.engine.engine import Engine
from foredraft.engine.output import RequestOutput
from foredraft.engine.running import Running
from foredraft.engine.writing import output_of

logger = logging.getLogger("foredraft.serving")


def end(engine: Engine, running: Running, reason: str) -> RequestOutput:
    """End a request early and free its slots, whatever state a failure has left it in."""
    try:
        return engine.end(running, reason)
    except BaseException as error:
        log_fault(logger, "ending a request failed", error)
    running.request.finish_reason = "error"  # what it has computed is not kept for others
    drop(engine, running)
    running.request.finish_reason = reason
    return output_of(running)


def drop(engine: Engine, running: Running) -> None:
    """Free what a request holds, by the engine or, where that fails, by its scheduler."""
    if tried(engine.cancel, [running]) or tried(engine.scheduler.finish, running):
        return
    if running.table is not None:
        tried(engine.scheduler.shut, running)


def tried(call: Callable, argument) -> bool:
    """Whether `call` succeeds; what it raises is logged."""
    try:
        call(argument)
    except BaseException as error:
        log_fault(logger, "dropping a request failed", error)
        return False
    return True


def failed(output: RequestOutput, error: BaseException) -> RequestOutput:
    """`output` with what the engine failed with; without its message, which may quote a prompt."""
    return replace(output, error=output.error or f"the engine failed with {type(error).__name__}")
