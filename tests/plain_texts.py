"""What plain decoding writes, against which every drafter's text is held."""

from collections.abc import Mapping, Sequence

from foredraft import Engine, SamplingParams
from foredraft.engine.engine import Prompt


def plain_texts(
    engine: Engine, prompts: Sequence[Prompt], samplings: Mapping[str, SamplingParams]
) -> dict[str, list[list[int]]]:
    """Token ids by sampling, each prompt alone, by an engine that drafts nothing unless asked."""
    return {
        name: [engine.generate([prompt], sampling)[0].token_ids for prompt in prompts]
        for name, sampling in samplings.items()
    }
