"""Which history each row of a request's logits was computed under."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

NO_TOKEN = -1


@dataclass(frozen=True)
class TreeRows:
    """R rows that share a committed history and differ in the drafted path after it.

    Attributes:
        history: Prompt and committed tokens.
        prompt_length: How many of them are the prompt.
        paths: Drafted tokens after the history, one list for each row.
    """

    history: list[int]
    prompt_length: int
    paths: list[list[int]]

    @cached_property
    def written(self) -> Tensor:
        """Output tokens before each row's next one, [R]."""
        output = len(self.history) - self.prompt_length
        return torch.tensor([output + len(path) for path in self.paths])

    @cached_property
    def drafted(self) -> tuple[Tensor, Tensor, Tensor]:
        """Every path token as (row, token, how often it is on that row's path); repeats are listed each time."""
        depth = max(map(len, self.paths), default=0)
        padded = [path + [NO_TOKEN] * (depth - len(path)) for path in self.paths]
        padded = torch.tensor(padded, dtype=torch.long)  # [R, D]
        repeats = (padded[:, :, None] == padded[:, None, :]).sum(-1)  # [R, D]
        row, place = (padded != NO_TOKEN).nonzero(as_tuple=True)
        return row, padded[row, place], repeats[row, place]

    def tails(self, length: int) -> Tensor:
        """The last `length` tokens before each row's next one, [R, length], -1 where the text is shorter."""
        before = [NO_TOKEN] * length + self.history[-length:]
        return torch.tensor([(before + path)[-length:] for path in self.paths])
