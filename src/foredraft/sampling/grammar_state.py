"""Where one text stands in its grammar, and the processor that keeps the text inside it."""

from collections.abc import Sequence
from math import inf

import torch
from llguidance import LLMatcher
from torch import Tensor

from foredraft.core.vocabulary import Vocabulary
from foredraft.sampling.bans import mask_of
from foredraft.sampling.processor import Processor
from foredraft.sampling.tree_rows import TreeRows


class GrammarState:
    """A grammar at the end of a request's output, with a look ahead along drafted paths.

    A complete text goes on with end-of-text tokens alone. So does one whose grammar has become too complex for the
    matcher's own limits: it ends there.

    Args:
        matcher: The grammar at its beginning; it is consumed.
        vocabulary: The target's; it has end-of-text tokens.

    Attributes:
        committed: The grammar after the output.
        cursor: A copy of it that runs along drafted paths, made anew where it would have to go back.
        ahead: Drafted tokens that the cursor has read.
        ended: Whether an end-of-text token is written.
        known: What may not follow the drafted paths asked for since the last commit.
    """

    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary):
        self.committed, self.vocabulary = matcher, vocabulary
        self.cursor, self.ahead = matcher.deep_copy(), []
        self.ended = False
        self.but_endings = ~mask_of(vocabulary.eos_token_ids, vocabulary.rows)
        self.known: dict[tuple[int, ...], Tensor | None] = {}

    def forbidden(self, path: Sequence[int]) -> Tensor | None:
        """Tokens that may not follow the output and then `path`, bool [V]; none where `path` itself is forbidden."""
        key = tuple(path)
        if key not in self.known:
            self.known[key] = self.found(list(path))
        return self.known[key]

    def found(self, path: list[int]) -> Tensor | None:
        body = self.body(path)
        if len(body) < len(path):
            return self.but_endings if self.may_end(body, path[len(body) :]) else None
        if self.ended:
            return self.but_endings
        return self.outside() if self.reach(path) else None

    def may_end(self, body: list[int], tail: list[int]) -> bool:
        """Whether the text may end behind `body` with the tokens of `tail`."""
        forbidden = self.forbidden(body)
        ends = all(token in self.vocabulary.eos_token_ids for token in tail)
        return ends and forbidden is not None and not forbidden[tail[0]].item()

    def body(self, tokens: list[int]) -> list[int]:
        """`tokens` up to the first that ends the text."""
        if self.ended:
            return []
        endings = self.vocabulary.eos_token_ids
        return tokens[: next((i for i, token in enumerate(tokens) if token in endings), len(tokens))]

    def reach(self, path: list[int]) -> bool:
        """Move the cursor behind `path`, or as far as the matcher's limits let it; false where it is forbidden.

        It never goes back: after a rollback the matcher may answer with the mask of a path it has left, where that was
        as long (llguidance 1.9).
        """
        if self.cursor.is_error() or self.ahead != path[: len(self.ahead)]:
            self.cursor, self.ahead = self.committed.deep_copy(), []
        fresh = path[len(self.ahead) :]
        taken = self.cursor.try_consume_tokens(fresh) if fresh else 0
        self.ahead = self.ahead + fresh[:taken]
        return taken == len(fresh) or self.cursor.is_error()

    def outside(self) -> Tensor:
        """Tokens that may not come next where the cursor stands, bool [V]."""
        allowed = torch.frombuffer(bytearray(self.cursor.compute_logit_bias()), dtype=torch.uint8)
        forbidden = allowed[: self.vocabulary.rows] == 0
        return self.but_endings if self.cursor.is_error() or forbidden.all() else forbidden

    def forced(self, limit: int) -> list[int]:
        """The only tokens that can come next, in their canonical tokenisation, `limit` at most."""
        if self.ended or not self.reach([]):
            return []
        return self.cursor.compute_ff_tokens()[:limit]

    def commit(self, tokens: list[int]) -> None:
        """The request has written `tokens`."""
        body = self.body(tokens)
        straight = self.ahead == body[: len(self.ahead)] and self.reach(body) and not self.cursor.is_error()
        taken = self.committed.try_consume_tokens(body) if body else 0
        self.ended = self.ended or taken < len(tokens) or self.committed.is_error()
        if not straight:  # else it keeps what it has worked out
            self.cursor = self.committed.deep_copy()
        self.ahead, self.known = [], {}


class GrammarBan(Processor):
    """Forbids what a grammar does not allow, and what other bans forbid as far as they leave something.

    Where the grammar allows nothing but what the bans forbid, it has the last word: a complete text goes on with
    end-of-text tokens before `min_new_tokens` too. Rows behind a drafted token that the grammar forbids will not be
    reached; the bans alone hold there.
    """

    def __init__(self, state: GrammarState, bans: list[Processor]):
        self.state, self.bans = state, bans

    def __call__(self, scores: Tensor, rows: TreeRows) -> Tensor:
        masks = [self.state.forbidden(path) for path in rows.paths]
        nothing = torch.zeros(scores.shape[-1], dtype=torch.bool)
        forbidden = torch.stack([nothing if mask is None else mask for mask in masks])
        inside = scores.masked_fill(forbidden.to(scores.device), -inf)
        left = inside
        for ban in self.bans:
            left = ban(left, rows)
        stuck = (left == -inf).all(-1, keepdim=True)
        return torch.where(stuck, inside, left)

    def commit(self, tokens: list[int]) -> None:
        self.state.commit(tokens)
        for ban in self.bans:
            ban.commit(tokens)
        self.bans = [ban for ban in self.bans if not ban.spent]
