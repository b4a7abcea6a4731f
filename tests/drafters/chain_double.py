"""The extension's loop of an autoregressive drafter written again, a run and a choice at a time."""

import torch
from torch import Tensor

from foredraft.sampling.noise import gumbel_rows

LOWEST = float("-inf")


def draft_chain(
    program, cache, logits, hidden, depths, positions, contexts, scratch, divisors, keys, ids, width, skip
) -> tuple[list[list[int]], list[list[float]]]:
    """As `foredraft_native.draft_chain`; one chain after the other."""
    parts = zip(depths, positions, contexts, scratch, divisors, keys, strict=True)
    chains = [one_chain(program, cache, logits[i], hidden, i, *own, ids, width, skip) for i, own in enumerate(parts)]
    return [tokens for tokens, _ in chains], [gains for _, gains in chains]


def one_chain(
    program, cache, logits, hidden, place, depth, position, context, scratch, divisor, keys, ids, width, skip
) -> tuple[list[int], list[float]]:
    handed = None if hidden is None else hidden[place : place + 1]
    tokens, gains = [], []
    for step in range(depth):
        values = logits[:width].float() / divisor
        if keys:
            values = values + noise(keys[step], values, ids)
        best = int(values.argmax())
        tokens.append(best if ids is None else int(ids[best]))
        gains.append(float(values.log_softmax(-1)[best]))
        if step < depth - 1:
            seen = (context[0] + step, *context[1:])
            logits, handed = run(program, cache, tokens[-1], position + step, scratch[step], seen, logits, handed, skip)
    return tokens, gains


def noise(key: int, values: Tensor, ids: Tensor | None) -> Tensor:
    if ids is None:
        return gumbel_rows(torch.tensor([key]), len(values))[0]
    return gumbel_rows(torch.tensor([key]), int(ids.max()) + 1)[0][ids]


def run(program, cache, token, position, slot, context, logits, handed, skip) -> tuple[Tensor, Tensor | None]:
    """One row behind `context`: positions, first slot or -1, slots or none."""
    said, output = torch.empty(1, len(logits), dtype=logits.dtype), None if handed is None else torch.empty_like(handed)
    length, first, slots = context
    segment = (0, 1, length, first, None if slots is None else torch.as_tensor(slots)[: length + 1].contiguous(), None)
    rows = (torch.tensor([number]) for number in (token, position, slot))
    inputs = [] if handed is None else [handed]
    program.run(cache, *rows, [segment], torch.tensor([0]), [], [], said, inputs, output, skip)
    return said[0], output
