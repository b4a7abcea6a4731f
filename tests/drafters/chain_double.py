"""The extension's loop of an autoregressive drafter written again, a run and a choice at a time."""

import torch
from torch import Tensor

from foredraft.heads.chain_loop import Chain
from foredraft.sampling.noise import gumbel_rows


def draft_chain(
    program, cache, chains, features, ids, width, first_skip, skip, *, vocabulary: int, hidden: int
) -> tuple[list[list[int]], list[list[float]]]:
    """As `foredraft_native.draft_chain`, one chain after the other.

    `vocabulary` is the number of logits of a program without `ids`, `hidden` how many numbers a row hands on.
    """
    columns = vocabulary if ids is None else len(ids)
    runs = ChainRuns(program, cache, columns, hidden, {True: first_skip, False: skip})
    drafts, start = [], 0
    for parts in chains:
        chain = Chain(*parts)
        rows = slice(start, start + len(chain.pending))
        drafts.append(one_chain(runs, chain, None if features is None else features[rows].contiguous(), ids, width))
        start = rows.stop
    return [tokens for tokens, _ in drafts], [gains for _, gains in drafts]


def one_chain(runs: "ChainRuns", chain: Chain, features: Tensor | None, ids, width) -> tuple[list[int], list[float]]:
    logits, handed = runs(chain, chain.pending, chain.context, features, first=True)
    tokens, gains = [], []
    for step in range(chain.depth):
        values = logits[:width].float() / chain.divisor
        if chain.noise:
            values = values + noise(chain.noise[step], values, ids)
        best = int(values.argmax())
        tokens.append(best if ids is None else int(ids[best]))
        gains.append(float(values.log_softmax(-1)[best]))
        if sum(gains) < chain.least:
            break
        if step < chain.depth - 1:
            here = chain.context + len(chain.pending) + step
            logits, handed = runs(chain, tokens[-1:], here, handed, first=False)
    return tokens, gains


def noise(key: int, values: Tensor, ids: Tensor | None) -> Tensor:
    if ids is None:
        return gumbel_rows(torch.tensor([key]), len(values))[0]
    return gumbel_rows(torch.tensor([key]), int(ids.max()) + 1)[0][ids]


class ChainRuns:
    """Runs rows of one chain by themselves."""

    def __init__(self, program, cache, columns: int, hidden: int, skips: dict[bool, list[int]]):
        self.program, self.cache, self.columns, self.hidden, self.skips = program, cache, columns, hidden, skips

    def __call__(
        self, chain: Chain, tokens: list[int], context: int, given: Tensor | None, *, first: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Logits of the last of `tokens`, run behind `context` keys, and what its row hands on."""
        count, dtype = len(tokens), given.dtype if given is not None else torch.float32
        said, handed = torch.empty(1, self.columns, dtype=dtype), torch.empty(1, self.hidden, dtype=dtype)
        slots = None if chain.slots is None else torch.as_tensor(chain.slots)[: context + count].contiguous()
        places = range(context, context + count)
        write = [chain.first + place for place in places] if slots is None else slots[context:].tolist()
        rows = (torch.tensor(numbers) for numbers in (tokens, list(places), write))
        segment = (0, count, context, chain.first, slots, None)
        inputs, output = ([given], handed) if given is not None else ([], None)
        wanted = torch.tensor([count - 1])
        skip = self.skips[first]
        self.program.run(self.cache, *rows, [segment], wanted, [], [], said, inputs, output, skip)
        return said[0], output
