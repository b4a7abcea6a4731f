"""An order on the engine's thread, and each of its continuations."""

import asyncio
from dataclasses import dataclass, field, replace
from math import inf

from foredraft.engine.output import RequestOutput, TokenEvent
from foredraft.engine.running import Running
from foredraft.serving.generation import Order
from foredraft.serving.mailbox import Mailbox


@dataclass(kw_only=True, eq=False, slots=True)
class Ticket:
    """One order from its arrival to the end of its last continuation.

    Attributes:
        order: What was asked.
        mailbox: Where its updates go; touched by its event loop only.
        answer: Done when the engine has taken or refused it; touched by its event loop only.
        deadline: When it times out, by `monotonic`; infinite where it has no timeout.
        open: Continuations that have not ended.
        withdrawn: Whether its caller has taken it back.
    """

    order: Order
    mailbox: Mailbox
    answer: asyncio.Future[None]
    deadline: float = inf
    open: list[Running] = field(default_factory=list)
    withdrawn: bool = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.answer.get_loop()


@dataclass(eq=False, slots=True)
class Seat:
    """One continuation of a ticket.

    Attributes:
        ticket: Whose it is.
        tokens, characters: How many of its tokens and characters have been told.
    """

    ticket: Ticket
    tokens: int = 0
    characters: int = 0

    def note(self, event: TokenEvent) -> None:
        self.tokens += len(event.tokens)
        self.characters += len(event.text)

    def rest(self, output: RequestOutput) -> TokenEvent:
        """The last event of a continuation that was ended from outside: all that has not been told."""
        return TokenEvent(
            index=output.index,
            sample=output.sample,
            tokens=output.token_ids[self.tokens :],
            sources=output.sources[self.tokens :],
            text=output.text[self.characters :],
            finish_reason=output.finish_reason,
            logprobs=None if output.logprobs is None else output.logprobs[self.tokens :],
        )


def without_laws(event: TokenEvent) -> TokenEvent:
    """The event as readers get it: a law holds a number for each token of the vocabulary, too much to keep."""
    if event.tree.laws is None:
        return event
    return replace(event, tree=replace(event.tree, laws=None))
