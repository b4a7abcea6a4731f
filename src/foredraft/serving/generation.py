"""What one call asks of the engine, and how its answer is read while it is written."""

import asyncio
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from foredraft.core.errors import PromptError, require
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.engine.output import RequestOutput
from foredraft.serving.mailbox import Mailbox, Update


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What one call asks of the engine: prompts, continued `sampling.n` times each.

    Raises `PromptError` without prompts and `ConfigError` for a timeout that is not over 0.

    Attributes:
        prompts: Token ids of each prompt.
        sampling: How to choose tokens and when to stop, the same for all prompts.
        speculation: How to draft; none leaves it to the engine.
        priority: A higher one goes first.
        timeout: Seconds from the call on, waiting included; what is unfinished then ends with reason timeout.
    """

    prompts: list[list[int]]
    sampling: SamplingParams
    speculation: SpeculationConfig | None = None
    priority: int = 0
    timeout: float | None = None

    def __post_init__(self) -> None:
        require(bool(self.prompts), "there are no prompts; give at least one", PromptError)
        require(self.timeout is None or self.timeout > 0, f"timeout is {self.timeout}; it must be over 0 seconds")

    @property
    def continuations(self) -> int:
        return len(self.prompts) * self.sampling.n


class Generation:
    """The answer to one order, read as it is written: an asynchronous iterator of `Update` for one reader.

    The engine never waits for a reader. Up to `max_pending_events` updates wait here; past that, what a continuation
    writes is joined to its update that waits: tokens, sources, text and log-probabilities are added up, of the drafts
    only the last is kept. So a slow reader loses no token, and memory is bounded by the text.

    A reader that goes away takes its order back: the continuations that still run end within a step and free their
    slots. Going away is `cancel`, the cancellation of a task that waits in the iteration or in `ready`, or dropping
    the last reference. So wait with a time limit by `ready`, not by a limit around the iteration.
    """

    def __init__(self, mailbox: Mailbox, withdraw: Callable[[], None]):
        """Reads `mailbox`; `withdraw` takes the order back, from any thread, and must not refer to this object."""
        self.mailbox = mailbox
        self.ended: dict[tuple[int, int], RequestOutput] = {}
        self.withdraw = weakref.finalize(self, withdraw)
        self.withdraw.atexit = False  # the process ends anyway

    def cancel(self) -> None:
        """Take the order back, from any thread; what still runs ends with reason cancelled. May be called again."""
        self.withdraw()

    async def ready(self, seconds: float | None = None) -> bool:
        """Wait for an update or the end, at most `seconds`; whether one of them is there."""
        if self.mailbox.readable:  # the usual case under load, and a timeout costs more than all the rest
            return True
        try:
            async with asyncio.timeout(seconds):
                await self.mailbox.wait()
        except TimeoutError:
            return False
        except asyncio.CancelledError:
            self.cancel()
            raise
        return True

    def __aiter__(self) -> "Generation":
        return self

    async def __anext__(self) -> Update:
        """The next update. Raises `EngineFailure` when the engine has died before the end."""
        await self.ready()
        update = self.mailbox.take()
        if update is None:
            self.withdraw.detach()
            raise StopAsyncIteration
        if update.output is not None:
            self.ended[update.output.index, update.output.sample] = update.output
        return update

    async def outputs(self) -> list[RequestOutput]:
        """Read to the end: every output in prompt order, a prompt's continuations next to each other.

        Raises `EngineFailure` when the engine has died before the end.
        """
        async for _ in self:
            pass
        return [self.ended[place] for place in sorted(self.ended)]
