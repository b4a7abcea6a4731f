"""Log-probabilities in the two forms of OpenAI."""

from collections.abc import Sequence
from math import isfinite

from foredraft.core.outcome import TokenLogprobs
from foredraft.serving.replies.token_names import TokenNames

LEAST = -9999.0  # JSON has no infinity; OpenAI writes this


def finite(logprob: float) -> float:
    return logprob if isfinite(logprob) else LEAST


def chat_logprobs(entries: Sequence[TokenLogprobs], names: TokenNames) -> dict:
    """The `logprobs` of a chat choice."""
    return {
        "content": [
            {
                **chat_entry(entry.token, entry.logprob, names),
                "top_logprobs": [chat_entry(token, logprob, names) for token, logprob in entry.top],
            }
            for entry in entries
        ],
        "refusal": None,
    }


def chat_entry(token: int, logprob: float, names: TokenNames) -> dict:
    return {"token": names.text(token), "logprob": finite(logprob), "bytes": list(names.bytes(token))}


def completion_logprobs(
    tokens: Sequence[int],
    offsets: Sequence[int],
    entries: Sequence[TokenLogprobs | None],
    names: TokenNames,
    *,
    top: int,
) -> dict:
    """The `logprobs` of a completion choice.

    Args:
        offsets: Where each token begins in the returned text, in characters.
        entries: One a token; none for the first of a prompt.
        top: How many likeliest tokens were asked for; the written one is told beside them.
    """
    likeliest = [entry and likeliest_of(entry, names) for entry in entries]
    return {
        "tokens": [names.unique_text(token) for token in tokens],
        "token_logprobs": [entry and finite(entry.logprob) for entry in entries],
        "top_logprobs": likeliest if top else None,
        "text_offset": list(offsets),
    }


def likeliest_of(entry: TokenLogprobs, names: TokenNames) -> dict[str, float]:
    """Log-probabilities by the tokens' names; of two tokens with one name the likelier counts."""
    told: dict[str, float] = {}
    for token, logprob in [*entry.top, (entry.token, entry.logprob)]:
        told.setdefault(names.unique_text(token), finite(logprob))
    return told
