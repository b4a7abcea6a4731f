"""Medusa drafts what its heads say of the right position, whatever was accepted or rejected before."""

import pytest
import torch
from random_heads import PATHS, PROMPTS, VOCABULARY, hidden_states, medusa_heads, random_target, target_module
from tree_paths import paths_of

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.draft_tree import DraftTree
from foredraft.core.errors import ConfigError
from foredraft.core.speculation_config import OFF
from foredraft.core.static_tree import token_tree
from foredraft.drafters.medusa import MedusaDrafter, make_medusa
from foredraft.heads.medusa import MedusaConfig
from foredraft.heads.native_heads import native_or_torch
from foredraft.heads.native_medusa import NativeMedusa
from foredraft.model.devices import CpuDevice
from foredraft.model.features import FINAL_NORM
from foredraft.model.scripted_target import ScriptedTarget

GREEDY = SamplingParams(max_new_tokens=30)
SEEDED = SamplingParams(max_new_tokens=30, temperature=1.0, seed=4)


def straight_line(weights: dict, hidden: torch.Tensor, head: int, layers: int) -> torch.Tensor:
    """A head written out: `x + silu(W x + b)` for every block, then its output layer."""
    x = hidden
    for block in range(layers):
        at = f"blocks.{head}.{block}.linear"
        y = weights[f"{at}.weight"] @ x + weights[f"{at}.bias"]
        x = x + y * torch.sigmoid(y)
    return weights[f"lm_heads.{head}.weight"] @ x


class CheckedMedusa(MedusaDrafter):
    """Compares all guesses with the heads written out, on transformers' own hidden state of the whole text."""

    def __init__(self, heads, twin, weights):
        super().__init__(heads)
        self.twin, self.weights, self.checked = twin, weights, 0

    def tree(self, task, logits):
        hidden = hidden_states(self.twin, task.request.tokens)[FINAL_NORM][-2]  # the position before the root
        for head, row in enumerate(logits):
            wanted = straight_line(self.weights, hidden, head, self.heads.config.layers)
            torch.testing.assert_close(row, wanted, rtol=2e-4, atol=2e-4)
        self.checked += 1
        return super().tree(task, logits)


@pytest.mark.parametrize("path", [*PATHS, "packed"])
@pytest.mark.parametrize("layers", [1, 2])
def test_guesses_are_the_heads_own(path, layers):
    config = SpeculationConfig(method="medusa", tree_size=12)
    target, heads = random_target(path=path), medusa_heads(layers=layers)
    weights = {name: tensor.clone() for name, tensor in heads.state_dict().items()}
    if path == "packed":
        CpuDevice().prepare(heads)
    heads = native_or_torch(heads, target.model.decoder)
    assert isinstance(heads, NativeMedusa) == (path == "native")
    engine = Engine(target, max_batch=4, speculation=OFF)
    drafter = engine.drafters[config.drafter_key] = CheckedMedusa(heads, target_module("sdpa"), weights)
    outputs = engine.generate(PROMPTS, GREEDY, config)
    assert drafter.checked > 100 and not drafter.last
    assert sum(output.statistics.accepted for output in outputs) > 0
    target.pool.check_integrity([])


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("shape", [{}, {"tree_size": 9}], ids=["chain", "tree"])
def test_a_reduced_vocabulary_drafts_none_but_its_tokens(sampling, shape):
    config = SpeculationConfig(method="medusa", **shape)
    engine = Engine(random_target(), speculation=OFF)
    heads = medusa_heads(draft_vocabulary=20)
    drafted = set()

    class Noted(MedusaDrafter):
        def tree(self, task, logits):
            tree = super().tree(task, logits)
            drafted.update(tree.tokens)
            return tree

    engine.drafters[config.drafter_key] = Noted(heads)
    outputs = engine.generate(PROMPTS, sampling, config)
    plain = Engine(random_target(), speculation=OFF).generate(PROMPTS, sampling)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
    assert len(drafted) > 3 and drafted <= set(heads.target_ids.tolist())


STEP = 7  # the scripted text: each token is the one before plus this, so nothing repeats for 61 tokens


def counting(history):
    scores = [0.0] * VOCABULARY
    scores[(history[-1] + STEP) % VOCABULARY] = 9.0
    return scores


class CountingHeads:
    """Heads that read position and token from a scripted hidden state and know how the text goes on.

    Where the token they read is divisible by `stumble`, the second guess is wrong. `shift` puts every head that much
    too far ahead.
    """

    feature_layers = (FINAL_NORM,)
    target_ids = None

    def __init__(self, heads: int, *, shift: int = 0, stumble: int | None = None):
        self.config = MedusaConfig(hidden_size=2, vocabulary=VOCABULARY, heads=heads, draft_vocabulary=VOCABULARY)
        self.shift, self.stumble = shift, stumble
        self.seen: list[tuple[int, int]] = []

    def __call__(self, hidden):
        logits = torch.zeros(self.config.heads, len(hidden), VOCABULARY)
        for request, (position, token) in enumerate(hidden.tolist()):
            self.seen.append((position, token))
            for head in range(self.config.heads):
                wrong = self.stumble is not None and head == 1 and token % self.stumble == 0
                logits[head, request, (token + STEP * (head + 2 + self.shift) + wrong) % VOCABULARY] = 5.0
        return logits


class PositionedMedusa(MedusaDrafter):
    """Checks that the hidden state read is the one of the token before the root."""

    def tree(self, task, logits):
        tokens = task.request.tokens
        assert (len(tokens) - 2, tokens[-2]) in self.heads.seen
        self.heads.seen.clear()
        return super().tree(task, logits)


class SeldomAsked(PositionedMedusa):
    """Drafts in every third step; in the others somebody else guesses one token right and one wrong."""

    steps = 0

    def propose(self, tasks):
        self.steps += 1
        if self.steps % 3 == 0:
            return super().propose(tasks)
        right = [(task.request.tokens[-1] + STEP) % VOCABULARY for task in tasks]
        paths = ([[token, 5][: task.depth], [3]] for token, task in zip(right, tasks, strict=True))
        return [DraftTree.from_paths(own, "other", task.nodes) for own, task in zip(paths, tasks, strict=True)]


def scripted(heads, kind=PositionedMedusa, **speculation):
    config = SpeculationConfig(method="medusa", **({"num_speculative_tokens": 4} | speculation))
    engine = Engine(ScriptedTarget(counting, vocabulary=VOCABULARY), speculation=OFF)
    engine.drafters[config.drafter_key] = kind(heads)
    [output] = engine.generate([[3, 10]], SamplingParams(max_new_tokens=41), config)
    assert output.token_ids == [(10 + STEP * step) % VOCABULARY for step in range(1, 42)]
    return output.statistics


def test_head_i_guesses_the_token_i_plus_one_after_the_root():
    """The prompt's own step drafts nothing; from then on four guesses and the target's token come at once."""
    statistics = scripted(CountingHeads(4))
    assert statistics.acceptance_rate == 1 and statistics.rounds == 1 + 8
    assert statistics.drafted == 4 * 8


def test_the_right_position_is_read_after_partial_acceptance():
    statistics = scripted(CountingHeads(4, stumble=3))
    assert statistics.accepted_at[0] == statistics.drafted_at[0] > 8
    assert 0 < statistics.accepted_at[1] < statistics.drafted_at[1]


def test_the_right_position_is_read_after_steps_of_others():
    """Two steps write two tokens each and the third five, four times over; two more steps of two leave one token."""
    statistics = scripted(CountingHeads(4), SeldomAsked)
    assert statistics.accepted_by == {"other": 10, "medusa": 4 * 4} and statistics.rounds == 15


@pytest.mark.parametrize("shift", [-1, 1])
def test_an_offset_by_one_accepts_nothing(shift):
    assert scripted(CountingHeads(4, shift=shift)).accepted == 0


@pytest.mark.parametrize(("heads", "asked", "drafted"), [(2, 9, 2), (4, 3, 3)])
def test_a_chain_is_as_long_as_heads_and_request_allow(heads, asked, drafted):
    statistics = scripted(CountingHeads(heads), num_speculative_tokens=asked)
    assert statistics.drafted_at == statistics.accepted_at and len(statistics.drafted_at) == drafted


def drafter_trees(accuracies=(), **speculation):
    """Shapes a drafter plans for a request."""
    config = SpeculationConfig(method="medusa", **speculation)
    target, heads = random_target(), medusa_heads(accuracies=accuracies)
    engine = Engine(target, speculation=OFF)
    drafter = engine.drafters[config.drafter_key] = MedusaDrafter(heads)
    engine.generate([PROMPTS[0]], SamplingParams(max_new_tokens=12), config)
    return list(drafter.shapes.values())


def test_trees_follow_measured_accuracies():
    sure = ((0.9, 0.05, 0.01),) * 4
    flat = ((0.34, 0.33, 0.32),) * 4
    assert max(drafter_trees(sure, tree_size=4)[0].depths) == 4
    assert drafter_trees(flat, tree_size=4)[0].parents.count(-1) == 3


def test_trees_without_accuracies_are_the_published_one():
    published = set(paths_of(token_tree("mc_sim_7b_63")))
    [tree, *_] = drafter_trees(tree_size=20, tree_width=3)
    assert len(tree) == 20 and set(paths_of(tree)) < published and max(tree.ranks) == 2


@pytest.mark.parametrize("text", ["mc_sim_7b_63", "[[0], [4], [4, 0], [4, 0, 2]]"])
def test_a_named_tree_is_taken_as_it_is(text):
    [tree, *_] = drafter_trees(((0.5,) * 9,) * 4, tree_size=64, tree_width=1, speculative_token_tree=text)
    assert paths_of(tree) == paths_of(token_tree(text))


def test_shapes_are_planned_once():
    assert len(drafter_trees(tree_size=8, num_speculative_tokens=3)) <= 3  # full depth, and the last steps' two


def test_only_a_loaded_model_has_hidden_states_to_read():
    with pytest.raises(ConfigError, match="no loaded model"):
        make_medusa(SpeculationConfig(method="medusa"), ScriptedTarget(counting, vocabulary=VOCABULARY))
