"""What the engine's thread tells event loops: all that a step has written in one call for each loop."""

import asyncio
from collections.abc import Callable, Iterable

Letter = Callable[[], None]


class Post:
    """Calls to make on event loops, collected until they are sent."""

    def __init__(self) -> None:
        self.letters: dict[asyncio.AbstractEventLoop, list[Letter]] = {}

    def add(self, loop: asyncio.AbstractEventLoop, letter: Letter) -> None:
        self.letters.setdefault(loop, []).append(letter)

    def send(self) -> list[asyncio.AbstractEventLoop]:
        """Send what has been collected. Returns the loops that are closed, whose letters nobody can read."""
        letters, self.letters = self.letters, {}
        return [loop for loop, own in letters.items() if not sent(loop, own)]


def sent(loop: asyncio.AbstractEventLoop, letters: list[Letter]) -> bool:
    try:
        loop.call_soon_threadsafe(deliver, letters)
    except RuntimeError:  # what a closed loop raises
        return False
    return True


def deliver(letters: Iterable[Letter]) -> None:
    for letter in letters:
        letter()


def settle(answer: asyncio.Future[None], error: BaseException | None = None) -> None:
    """Give a caller its answer, unless it has stopped waiting."""
    if answer.done():
        return
    if error is None:
        answer.set_result(None)
    else:
        answer.set_exception(error)
