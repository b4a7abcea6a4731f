"""Two vocabularies side by side: what a token of one is in the other (Timor et al. 2502.05202)."""

from functools import cached_property

import torch
from torch import Tensor

from foredraft.core.errors import require
from foredraft.drafters.token_text import TokenText

LEAST_SHARE = 0.1  # of the draft model's tokens: a law cut to less says little about what it was


class VocabularyBridge:
    """From the target's tokens to text a draft model reads, and from its tokens back to the target's.

    Special tokens match by name, else by role: a text's beginning and its end. Those without a match are left out.

    Attributes:
        target, draft: Both vocabularies as text.
        draft_pieces: Bytes of each target token in a text for the draft model, [target size].
        target_pieces: Bytes of each draft token in a text for the target, [draft size].
    """

    def __init__(self, target: TokenText, draft: TokenText):
        self.target, self.draft = target, draft
        self.draft_pieces = pieces_in(target, draft)
        self.target_pieces = pieces_in(draft, target)

    @cached_property
    def draft_ids(self) -> dict[int, int]:
        """Draft token of each target token that both vocabularies hold; no two share one."""
        roles = same_roles(self.target, self.draft)
        names = {name: token for token, name in self.draft.added.items()}
        named = {token: names[name] for token, name in self.target.added.items() if name in names}
        ordinary = {token: self.draft.ids[piece] for piece, token in self.target.ids.items() if piece in self.draft.ids}
        pairs: dict[int, int] = {}
        for known in (named, roles, ordinary):
            taken = set(pairs.values())
            pairs |= {token: other for token, other in known.items() if token not in pairs and other not in taken}
        return pairs

    @property
    def shared(self) -> int:
        """Tokens both vocabularies hold."""
        return len(self.draft_ids)

    def pairs(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Draft ids and target ids of the shared tokens, [shared] each, in the order of target ids."""
        ordered = sorted(self.draft_ids.items())
        target, draft = zip(*ordered, strict=True)
        return torch.tensor(draft, device=device), torch.tensor(target, device=device)

    def require_shared(self, drafter: str) -> None:
        """Raise `ConfigError` where too few tokens are shared to draft with."""
        least = max(1, int(LEAST_SHARE * len(self.draft.vocabulary)))
        require(
            self.shared >= least,
            f"vocabulary_matching 'tokens': draft model {drafter!r} shares {self.shared} of its "
            f"{len(self.draft.vocabulary)} tokens with the target, {least} are the least; use 'strings'",
        )


def same_roles(text: TokenText, other: TokenText) -> dict[int, int]:
    """The token of `other` that begins or ends a text as one of `text` does."""
    roles = {text.end: other.end, text.bos: other.bos}
    return {token: match for token, match in roles.items() if None not in (token, match)}


def pieces_in(text: TokenText, other: TokenText) -> list[bytes]:
    """Bytes of each token of `text` where `other` is to read them."""
    names, roles = set(other.added.values()), same_roles(text, other)
    pieces = list(text.pieces)
    for token in text.special:
        if text.added[token] not in names:
            pieces[token] = other.pieces[roles[token]] if token in roles else b""
    return pieces
