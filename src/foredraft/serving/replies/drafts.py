"""Who drafted the tokens of a chunk, and what was drafted in vain."""

from collections.abc import Sequence

from foredraft.serving.replies.token_ledger import WrittenToken
from foredraft.serving.replies.token_names import TokenNames


def drafts_of(tokens: Sequence[WrittenToken], names: TokenNames) -> dict:
    """The `foredraft` object of a streamed choice."""
    rejected = [each for written in tokens for each in written.rejected]
    return {
        "tokens": [{"id": each.token, "text": each.text, "drafter": each.drafter} for each in tokens],
        "rejected": [
            {"id": each.token, "text": names.text(each.token), "depth": each.depth, "drafter": each.drafter}
            for each in rejected
        ],
    }
