"""What speculation did for a call, under vLLM's names and ours."""

from collections.abc import Sequence

from foredraft.core.outcome import total
from foredraft.engine.output import RequestOutput


def metrics_of(outputs: Sequence[RequestOutput]) -> dict:
    """The `metrics` of a reply: counts and seconds summed over its continuations, rates derived from the sums.

    The mean acceptance length is vLLM's, over forwards that had a draft; tau is over all forwards.
    """
    counts = total(output.statistics for output in outputs)
    return {
        "speculative_decoding": {
            "mean_acceptance_length": 1 + counts.accepted / max(1, counts.drafts),
            "draft_acceptance_rate": counts.acceptance_rate,
            "num_spec_steps": counts.drafts,
            "num_draft_tokens": counts.drafted,
            "num_accepted_draft_tokens": counts.accepted,
            "num_forwards": counts.rounds,
            "tau": counts.tau,
            "acceptance_per_position": counts.acceptance_per_position,
            "accepted_by": counts.accepted_by,
            "drafted_by": counts.drafted_by,
            "draft_seconds": counts.draft_seconds,
            "verify_seconds": counts.verify_seconds,
            "other_seconds": counts.other_seconds,
            "estimated_speed_up": counts.speed_up,
            "choices": counts.choices,
        }
    }
