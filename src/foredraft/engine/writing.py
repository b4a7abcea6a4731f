"""Writes what was accepted: text, stop conditions inside the accepted run, log-probabilities, counts, outputs."""

import logging
from time import perf_counter

from torch import Tensor

from foredraft.core.fault_log import log_fault
from foredraft.core.outcome import TokenLogprobs
from foredraft.engine.output import RequestOutput, TokenEvent
from foredraft.engine.running import Running, Work

logger = logging.getLogger("foredraft.engine")


def written_or_failed(work: Work) -> TokenEvent:
    """What the request has written; its end with an error where its own stop conditions or processors fail."""
    try:
        return written(work)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the grammar library is no Exception
        log_fault(logger, "a request failed", error)
        return failure(work.running, error)


def written(work: Work) -> TokenEvent:
    """Write the accepted run as far as its stop conditions allow."""
    running, request, tree, verdict = work.running, work.running.request, work.tree.guesses, work.verdict
    tokens = [tree.tokens[node] for node in verdict.path] + [verdict.token]
    stop = running.stopper.push(tokens)
    tokens = tokens[: stop.kept]
    sources = [*(tree.drafters[node] for node in verdict.path), None][: stop.kept]
    logprobs = written_logprobs(work, tokens)
    if logprobs is not None:
        request.logprobs += logprobs
    request.tokens += tokens
    running.sampler.commit(tokens)
    running.text += stop.text
    running.sources += sources
    request.finish_reason = stop.finish_reason
    running.first_token = running.first_token or perf_counter()
    request.statistics.record(
        depth=max(tree.depths, default=0) if tree.tokens else 0,
        drafters=tree.drafters,
        path=verdict.path,
        committed=len(tokens),
    )
    return TokenEvent(
        index=running.index,
        sample=running.sample,
        tokens=tokens,
        sources=sources,
        text=stop.text,
        finish_reason=stop.finish_reason,
        logprobs=logprobs,
        tree=tree,
        path=verdict.path,
    )


def written_logprobs(work: Work, tokens: list[int]) -> list[TokenLogprobs] | None:
    """One entry a token, where the parameters ask for them."""
    count = work.running.request.params.logprobs
    if count is None:
        return None
    rows = [0, *(node + 1 for node in work.verdict.path)]
    sampler = work.running.sampler
    return [sampler.logprobs(work.logits[row], token, count) for row, token in zip(rows, tokens, strict=False)]


def prompt_logprobs(work: Work, logits: Tensor) -> list[TokenLogprobs]:
    """Entries of the prompt tokens that follow the rows `logits` [chunk, V] of a step's pending tokens.

    A request that was preempted computes its prompt again: what is scored already is left out.
    """
    request, sampler, known = work.running.request, work.running.sampler, len(work.running.prompt_logprobs)
    again = max(0, known - request.computed)
    following = request.prompt[request.computed + 1 : request.computed + 1 + work.chunk]
    count = request.params.prompt_logprobs
    pairs = list(zip(logits, following, strict=False))[again:]
    return [sampler.logprobs(row, token, count) for row, token in pairs]


def failure(running: Running, error: BaseException) -> TokenEvent:
    """The end of a request that could not be served."""
    running.request.finish_reason, running.fault = "error", error
    text = running.stopper.rest()
    running.text += text
    return TokenEvent(
        index=running.index, sample=running.sample, tokens=[], sources=[], text=text, finish_reason="error"
    )


def output_of(running: Running) -> RequestOutput:
    """What a request that has ended hands back."""
    request, now = running.request, perf_counter()
    started = running.started or now
    return RequestOutput(
        index=running.index,
        sample=running.sample,
        prompt_token_ids=request.prompt,
        token_ids=request.output,
        text=running.text,
        finish_reason=request.finish_reason,
        seed=request.seed,
        drafter=request.speculation.method,
        lossless=running.rule.lossless,
        sources=running.sources,
        logprobs=request.logprobs if request.params.logprobs is not None else None,
        statistics=request.statistics,
        seconds=now - started,
        first_token_seconds=(running.first_token or now) - started,
        prompt_logprobs=[None, *running.prompt_logprobs] if request.params.prompt_logprobs is not None else None,
        cached_tokens=running.cached,
        error=f"{type(running.fault).__name__} while it was served" if running.fault is not None else None,
    )


def share_time(batch: list[Work], clock: list[float]) -> None:
    """Book a step's time: drafting, the target's forward, and everything else, an equal share to each request."""
    share = 1 / len(batch)
    draft, forward = (clock[2] - clock[1]) * share, (clock[4] - clock[3]) * share
    other = (clock[-1] - clock[0]) * share - draft - forward
    for work in batch:
        statistics = work.running.request.statistics
        statistics.draft_seconds += draft
        statistics.verify_seconds += forward
        statistics.other_seconds += other
