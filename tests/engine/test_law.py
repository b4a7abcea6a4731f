"""The law of the whole path: 200,000 draws over a narrow vocabulary, chi-squared by state of a Markov target."""

from math import exp

import pytest

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.draft_tree import DraftTree
from foredraft.core.speculation_config import OFF
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.drafter import registry
from foredraft.drafters.scripted import ScriptedDrafter
from foredraft.model.scripted_target import ScriptedTarget

TARGET = {0: [2.0, 0.5, 0.0], 1: [0.0, 1.5, 1.0], 2: [0.3, 0.0, 1.2]}
DRAFT = {0: [0.0, 1.0, 0.5], 1: [0.5, 0.5, 1.5], 2: [1.0, 0.2, 0.0]}
DRAWS = 40_000  # by each of five settings

# Chi-squared with 2 degrees of freedom in each of 3 states: 6 in all; 27.9 is passed once in 10,000 fair runs.
LIMIT = 27.9


def law(history):
    return TARGET[history[-1]]


class MarkovDraft:
    """A draft model for `DraftModelDrafter`: logits from the last token alone."""

    def forward(self, plan):
        import torch

        return torch.tensor([DRAFT[token] for token in plan.tokens[0, plan.logit_rows].tolist()])


SETTINGS = {
    "plain": OFF,
    "match": SpeculationConfig(method="markov", num_speculative_tokens=3),
    "standard": SpeculationConfig(method="markov", num_speculative_tokens=3, rejection_sample_method="standard"),
    "block": SpeculationConfig(method="markov", num_speculative_tokens=3, rejection_sample_method="block"),
    "traversal": SpeculationConfig(
        method="markov", num_speculative_tokens=2, tree_size=6, tree_width=2, rejection_sample_method="traversal"
    ),
}


def chi_squared(tokens_by_request) -> float:
    """Pearson's statistic of observed transitions against the target's law, summed over states."""
    counts = {state: [0, 0, 0] for state in TARGET}
    for tokens in tokens_by_request:
        for state, token in zip(tokens, tokens[1:], strict=False):
            counts[state][token] += 1
    total = 0.0
    for state, seen in counts.items():
        weights = [exp(logit) for logit in TARGET[state]]
        expected = [sum(seen) * weight / sum(weights) for weight in weights]
        total += sum((s - e) ** 2 / e for s, e in zip(seen, expected, strict=True))
    return total


def draws(config: SpeculationConfig, monkeypatch, count: int = DRAWS):
    target = ScriptedTarget(law, vocabulary=3, slots=4096)
    monkeypatch.setitem(
        registry, "markov", lambda config, target: DraftModelDrafter(MarkovDraft(), target.pool, context_length=10**6)
    )
    engine = Engine(target, max_batch=32, speculation=OFF)
    sampling = SamplingParams(max_new_tokens=40, temperature=1.0, seed=11, n=count // 40)
    return [[0, *output.token_ids] for output in engine.generate([0], sampling, config)]


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_follow_the_target(name, monkeypatch):
    assert chi_squared(draws(SETTINGS[name], monkeypatch)) < LIMIT


def test_the_check_sees_a_biased_rule(monkeypatch):
    config = SpeculationConfig(method="likeliest", rejection_sample_method="lossy-typical")

    def likeliest(task):
        tokens = []
        last = task.request.tokens[-1]
        for _ in range(task.depth):
            last = max(range(3), key=TARGET[last].__getitem__)
            tokens.append(last)
        return DraftTree.chain(tokens, "likeliest")

    monkeypatch.setitem(registry, "likeliest", lambda config, target: ScriptedDrafter(likeliest))
    assert chi_squared(draws(config, monkeypatch, 8000)) > LIMIT
