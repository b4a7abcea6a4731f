"""How many tokens a call has read and written."""

from collections.abc import Sequence

from foredraft.core.outcome import total
from foredraft.engine.output import RequestOutput

PREDICTION = "prediction"  # the drafter that copies from a request's predicted output


def usage_of(outputs: Sequence[RequestOutput], *, nothing_shown: bool = False) -> dict:
    """OpenAI's `usage`. A prompt counts once, however often it was continued; rejected drafts are not counted.

    With `nothing_shown`, what was written to run a prompt alone does not count.
    """
    first = {output.index: output for output in sorted(outputs, key=lambda output: -output.sample)}.values()
    prompt = sum(len(output.prompt_token_ids) for output in first)
    cached = sum(getattr(output, "cached_tokens", 0) for output in first)  # an engine may keep no prefixes
    completion = 0 if nothing_shown else sum(len(output.token_ids) for output in outputs)
    statistics = total(output.statistics for output in outputs)
    accepted = statistics.accepted_by.get(PREDICTION, 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": statistics.drafted_by.get(PREDICTION, 0) - accepted,
        },
    }
