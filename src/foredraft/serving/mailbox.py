"""Updates on their way to one reader, bounded by joining those that wait."""

import asyncio
from collections import deque
from dataclasses import dataclass, field, replace

from foredraft.core.errors import ForedraftError
from foredraft.core.outcome import TokenLogprobs
from foredraft.engine.output import RequestOutput, TokenEvent


@dataclass(frozen=True, slots=True)
class Update:
    """What one continuation has written since its last update.

    Attributes:
        event: Its tokens and text; `event.index` and `event.sample` say which continuation it is.
        output: The whole of it, at its end.
    """

    event: TokenEvent
    output: RequestOutput | None


@dataclass(eq=False, slots=True)
class Pending:
    """Updates of one continuation that nobody has read, as one.

    Attributes:
        last: The latest of them.
        tokens, sources, texts, logprobs: What those before it wrote; joined when it is read, so that adding is cheap.
        joined: Whether there are any before it.
    """

    last: Update
    tokens: list[int] = field(default_factory=list)
    sources: list[str | None] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    joined: bool = False

    def add(self, update: Update) -> None:
        event = self.last.event
        self.tokens += event.tokens
        self.sources += event.sources
        self.texts += [event.text] if event.text else []
        self.logprobs += event.logprobs or []
        self.last, self.joined = update, True

    def whole(self) -> Update:
        if not self.joined:
            return self.last
        event = self.last.event
        joined = replace(
            event,
            tokens=self.tokens + event.tokens,
            sources=self.sources + event.sources,
            text="".join([*self.texts, event.text]),
            logprobs=None if event.logprobs is None else self.logprobs + event.logprobs,
        )
        return Update(joined, self.last.output)


class Mailbox:
    """What one reader has still to read. Only its event loop's thread touches it.

    Attributes:
        limit: Updates that wait before further ones are joined to them; past it, one more for each continuation.
        left: Continuations whose end has not been read.
        pending: What waits, oldest first.
        latest: The one that waits last for each continuation.
        error: Why no more will come, where the end was lost.
    """

    def __init__(self, continuations: int, limit: int):
        self.limit, self.left = limit, continuations
        self.pending: deque[Pending] = deque()
        self.latest: dict[tuple[int, int], Pending] = {}
        self.error: ForedraftError | None = None
        self.waiter: asyncio.Future[None] | None = None

    def put(self, update: Update) -> None:
        """Keep an update for the reader."""
        place = update.event.index, update.event.sample
        if len(self.pending) >= self.limit and place in self.latest:
            self.latest[place].add(update)
        else:
            self.latest[place] = Pending(update)
            self.pending.append(self.latest[place])
        self.wake()

    def fail(self, error: ForedraftError) -> None:
        """No more will come; the reader learns why once it has read what is here."""
        self.error = error
        self.wake()

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    @property
    def readable(self) -> bool:
        """Whether there is something to read, or nothing will ever come."""
        return bool(self.pending) or self.closed

    @property
    def closed(self) -> bool:
        return self.left == 0 or self.error is not None

    async def wait(self) -> None:
        """Return when it is readable."""
        assert self.waiter is None, "a generation has one reader"
        if self.readable:
            return
        self.waiter = asyncio.get_running_loop().create_future()
        try:
            await self.waiter
        finally:
            self.waiter = None

    def take(self) -> Update | None:
        """The oldest update; none at the end. Raises what `fail` was given."""
        if not self.pending:
            if self.left and self.error is not None:
                raise self.error
            return None
        oldest = self.pending.popleft()
        place = oldest.last.event.index, oldest.last.event.sample
        if self.latest[place] is oldest:
            del self.latest[place]
        self.left -= oldest.last.output is not None
        return oldest.whole()
