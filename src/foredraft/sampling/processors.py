"""The processors a request needs, in transformers' order, and none that it does not."""

from collections.abc import Iterable

import torch
from torch import Tensor

from foredraft.core.errors import require
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.vocabulary import Vocabulary
from foredraft.sampling.bans import MinNewTokens, SequenceBan, TokenBan, mask_of
from foredraft.sampling.grammar_state import GrammarBan, GrammarState
from foredraft.sampling.penalties import LogitBias, OutputPenalty, RepetitionPenalty
from foredraft.sampling.processor import Processor
from foredraft.sampling.stopping import ending_tokens
from foredraft.sampling.truncation import MinP, Temperature, TopK, TopP, TypicalP


def make_processors(
    params: SamplingParams,
    prompt: list[int],
    vocabulary: Vocabulary,
    bad_words: list[list[int]],
    grammar: GrammarState | None = None,
) -> list[Processor]:
    """Processors for a request in the order they apply.

    Greedy requests get only those that can move the argmax, as in transformers: no temperature and no truncation.
    Presence and frequency penalties, which transformers lacks, follow its repetition penalty. A grammar stands among
    the bans, before anything is cut off: what is kept is kept of what it allows.

    Raises `ConfigError` for a token id outside the vocabulary, or where the bans together could leave no token.
    """
    check_tokens(params, vocabulary, bad_words)
    endings = ending_tokens(params, vocabulary)
    # A bad word that is itself the end of text stays allowed, or no text could end.
    bad_words = [word for word in bad_words if word not in [[token] for token in vocabulary.eos_token_ids]]
    check_something_left(params, vocabulary, bad_words, endings)
    bans = make_bans(params, vocabulary, bad_words, endings)
    processors = make_penalties(params, prompt, vocabulary) + ([GrammarBan(grammar, bans)] if grammar else bans)
    return processors if params.temperature == 0 else processors + make_truncations(params)


def make_penalties(params: SamplingParams, prompt: list[int], vocabulary: Vocabulary) -> list[Processor]:
    penalties: list[Processor] = []
    if any(params.logit_bias.values()):
        penalties.append(LogitBias(params.logit_bias, vocabulary.rows))
    if params.repetition_penalty != 1:
        penalties.append(RepetitionPenalty(params.repetition_penalty, prompt, vocabulary.rows))
    if params.presence_penalty or params.frequency_penalty:
        penalties.append(OutputPenalty(params.presence_penalty, params.frequency_penalty, vocabulary.rows))
    return penalties


def make_bans(
    params: SamplingParams, vocabulary: Vocabulary, bad_words: list[list[int]], endings: set[int]
) -> list[Processor]:
    bans: list[Processor] = []
    banned = always_banned(params, vocabulary, bad_words)
    sequences = [word for word in bad_words if len(word) > 1]
    if banned.any():
        bans.append(TokenBan(banned))
    if sequences:
        bans.append(SequenceBan(sequences))
    if params.min_new_tokens and endings:
        bans.append(MinNewTokens(params.min_new_tokens, endings, vocabulary.rows))
    return bans


def make_truncations(params: SamplingParams) -> list[Processor]:
    truncations: list[Processor] = []
    if params.temperature != 1:
        truncations.append(Temperature(params.temperature))
    if params.top_k:
        truncations.append(TopK(params.top_k))
    if params.top_p < 1:
        truncations.append(TopP(params.top_p))
    if params.min_p:
        truncations.append(MinP(params.min_p))
    if params.typical_p < 1:
        truncations.append(TypicalP(params.typical_p))
    return truncations


def always_banned(params: SamplingParams, vocabulary: Vocabulary, bad_words: list[list[int]]) -> Tensor:
    """Padding, bad words of one token, and all that is not among the allowed tokens, bool [V]."""
    banned = mask_of([word[0] for word in bad_words if len(word) == 1], vocabulary.rows)
    banned[vocabulary.size :] = True
    if params.allowed_token_ids is not None:
        banned |= ~mask_of(params.allowed_token_ids, vocabulary.rows)
    return banned


def check_tokens(params: SamplingParams, vocabulary: Vocabulary, bad_words: list[list[int]]) -> None:
    require_known("allowed_token_ids", params.allowed_token_ids or (), vocabulary)
    require_known("logit_bias", params.logit_bias, vocabulary)
    require_known("stop_token_ids", params.stop_token_ids, vocabulary)
    require_known("bad_words", [token for word in bad_words for token in word], vocabulary)


def require_known(name: str, tokens: Iterable[int], vocabulary: Vocabulary) -> None:
    for token in tokens:
        known = 0 <= token < vocabulary.size
        require(
            known, f"{name} holds token id {token}; the vocabulary has {vocabulary.size}, 0 to {vocabulary.size - 1}"
        )


def check_something_left(
    params: SamplingParams, vocabulary: Vocabulary, bad_words: list[list[int]], endings: set[int]
) -> None:
    """Some token must stay allowed after any text: a row of nothing but bans has no law to sample."""
    banned = always_banned(params, vocabulary, bad_words)
    banned |= mask_of([word[-1] for word in bad_words], vocabulary.rows)
    if params.min_new_tokens:
        banned |= mask_of(endings, vocabulary.rows)
    allowed = params.allowed_token_ids
    message = (
        f"allowed_token_ids {list(allowed or ())} may all be forbidden by bad_words or min_new_tokens; allow another"
    )
    require(not torch.all(banned).item(), message)
