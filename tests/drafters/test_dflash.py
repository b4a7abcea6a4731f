"""DFlash drafts what its network says of the whole text, whatever was accepted, rejected, moved or scattered before."""

from functools import cache

import pytest
import torch
from random_heads import (
    EPS,
    LAYERS,
    PATHS,
    PROMPTS,
    THETA,
    dflash_head,
    hidden_states,
    random_target,
    target_module,
)

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.draft_tree import DraftTree
from foredraft.core.errors import ConfigError, SlotsError
from foredraft.core.speculation_config import OFF
from foredraft.drafters import dflash
from foredraft.drafters.dflash import DFlashDrafter, dflash_drafter, make_dflash
from foredraft.heads.dflash import DFlashHead
from foredraft.heads.native_dflash import NativeDFlash
from foredraft.heads.native_heads import native_or_torch
from foredraft.model.devices import CpuDevice
from foredraft.model.scripted_target import ScriptedTarget
from foredraft.model.slot_pool import LayerGroup, SlotTable

GREEDY = SamplingParams(max_new_tokens=30)
BLOCK = 6


def rms(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def turned(x, positions):
    """Rows [T, D] of one attention head, turned by position times the frequency of each pair (d, d + D / 2)."""
    half = x.shape[1] // 2
    angle = positions[:, None] / THETA ** (torch.arange(half) / half)
    left, right = x[:, :half], x[:, half:]
    return torch.cat([left * angle.cos() - right * angle.sin(), right * angle.cos() + left * angle.sin()], dim=1)


def attention(x, context, w, at, config):
    """Rows of the block [B, hidden] over the context's rows [n, hidden] and the block's, a head at a time."""
    size, repeat = config.sizes.head_dim, config.sizes.heads // config.sizes.kv_heads
    seen = torch.cat([context, x])
    places = torch.arange(len(seen))
    future = torch.zeros(len(x), len(seen))
    if config.causal:
        future[:, len(context) :] = torch.full((len(x), len(x)), float("-inf")).triu(1)
    mixed = []
    for head in range(config.sizes.heads):
        own, shared = (slice(index * size, (index + 1) * size) for index in (head, head // repeat))
        query = rms(x @ w[f"{at}.q_proj.weight"][own].T, w[f"{at}.q_norm.weight"])
        key = rms(seen @ w[f"{at}.k_proj.weight"][shared].T, w[f"{at}.k_norm.weight"])
        scores = turned(query, places[len(context) :]) @ turned(key, places).T / size**0.5 + future
        mixed.append(scores.softmax(-1) @ (seen @ w[f"{at}.v_proj.weight"][shared].T))
    return torch.cat(mixed, dim=1) @ w[f"{at}.o_proj.weight"].T


@torch.inference_mode()
def straight_line(w, config, twin, tokens):
    """Logits of the block after `tokens`, [B, V]: no cache, no packing, the target's features by transformers."""
    states = hidden_states(twin, tokens)
    features = torch.cat([states[boundary][: len(tokens) - 1] for boundary in config.feature_layers], dim=1)
    context = rms(features @ w["fc.weight"].T, w["hidden_norm.weight"])
    embedding = twin.get_input_embeddings().weight
    x = embedding[[tokens[-1]] + [config.mask_token_id] * (config.block_size - 1)]
    for layer in range(config.layers):
        at = f"layers.{layer}"
        x = x + attention(rms(x, w[f"{at}.input_layernorm.weight"]), context, w, f"{at}.self_attn", config)
        h = rms(x, w[f"{at}.post_attention_layernorm.weight"])
        gate, up = (h @ w[f"{at}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (gate * torch.sigmoid(gate) * up) @ w[f"{at}.mlp.down_proj.weight"].T
    return rms(x, w["norm.weight"]) @ embedding.T


class CheckedDFlash(DFlashDrafter):
    """Compares all guesses with the network written out, run on the whole text."""

    def __init__(self, head, pool, layers, network):
        super().__init__(head, pool, layers)
        self.wanted, self.checked = network, 0

    def tree(self, task, logits):
        wanted = self.wanted(tuple(task.request.tokens))
        torch.testing.assert_close(logits, wanted[1 : len(logits) + 1], rtol=2e-4, atol=2e-4)
        self.checked += 1
        return super().tree(task, logits)


@cache
def written_out(**head):
    """The network of `dflash_head(**head)` as a function of the text; many tests write the same texts."""
    network, twin = dflash_head(random_target(), block=BLOCK, **head), target_module("sdpa")
    weights = network.state_dict()
    return cache(lambda tokens: straight_line(weights, network.config, twin, list(tokens)))


def engine_with(config, *, kind=CheckedDFlash, slots=1024, path="torch", max_batch=8, **head):
    target = random_target(slots, path)
    network = dflash_head(target, block=BLOCK, **head)
    if path == "packed":
        CpuDevice().prepare(network)
    network = native_or_torch(network, target.model.decoder)
    assert isinstance(network, NativeDFlash) == (path == "native")
    drafter = dflash_drafter("dflash", network, target.pool, torch.float32)
    drafter = kind(network, target.pool, drafter.layers, written_out(**head))
    engine = Engine(target, max_batch=max_batch, speculation=OFF)
    engine.drafters[config.drafter_key] = drafter
    return engine, drafter


@cache
def plain():
    return [output.token_ids for output in Engine(random_target(), speculation=OFF).generate(PROMPTS, GREEDY)]


CONFIGS = {
    "chain": {"num_speculative_tokens": 5},
    "short chain": {"num_speculative_tokens": 2},
    "tree": {"tree_size": 12, "num_speculative_tokens": 5},
    "small tree": {"tree_size": 3, "num_speculative_tokens": 5},
    "named tree": {"tree_size": 16, "num_speculative_tokens": 5, "speculative_token_tree": "eagle_25"},
}


@pytest.mark.parametrize("path", [*PATHS, "packed"])
@pytest.mark.parametrize("causal", [False, True], ids=["block", "causal"])
@pytest.mark.parametrize("name", CONFIGS)
def test_guesses_are_the_networks_own(name, causal, path):
    """Weights small enough that guesses stay near the mask, a token the texts are full of: some are accepted."""
    config = SpeculationConfig(method="dflash", **CONFIGS[name])
    engine, drafter = engine_with(config, mask=51, scale=0.1, causal=causal, path=path)
    outputs = engine.generate(PROMPTS, GREEDY, config)
    assert [output.token_ids for output in outputs] == plain()
    assert drafter.checked > 100 and not drafter.filled
    assert 0 < sum(output.statistics.accepted for output in outputs) < sum(o.statistics.drafted for o in outputs)
    engine.target.pool.check_integrity([])


class SeldomAsked(CheckedDFlash):
    """Drafts in every third step; in the others somebody else guesses, sometimes right."""

    steps = 0

    def propose(self, tasks):
        self.steps += 1
        if self.steps % 3 == 0:
            return super().propose(tasks)
        return [DraftTree.from_paths([[51] * task.depth, [7]], "other", task.nodes) for task in tasks]


@pytest.mark.parametrize("rows", [4, 512])
def test_what_others_drafted_is_caught_up(monkeypatch, rows):
    monkeypatch.setitem(Engine.__init__.__kwdefaults__, "step_rows", 9)
    monkeypatch.setattr(dflash, "CATCH_UP_ROWS", rows)
    config = SpeculationConfig(method="dflash", tree_size=8)
    engine, drafter = engine_with(config, kind=SeldomAsked, mask=51, scale=0.1)
    outputs = engine.generate(PROMPTS, GREEDY, config)
    assert [output.token_ids for output in outputs] == plain()
    accepted = engine.statistics.accepted_by
    assert drafter.checked > 40 and accepted["other"] > 5 and accepted["dflash"] > 5
    assert not drafter.filled and not drafter.features.known and not drafter.features.waiting


class NeverAsked(CheckedDFlash):
    def propose(self, tasks):
        return [DraftTree() for _ in tasks]


def test_who_is_not_asked_computes_nothing(monkeypatch):
    monkeypatch.setattr(DFlashHead, "fuse", None)
    monkeypatch.setattr(DFlashHead, "context", None)
    config = SpeculationConfig(method="dflash")
    engine, _ = engine_with(config, kind=NeverAsked)
    assert [output.token_ids for output in engine.generate(PROMPTS, GREEDY, config)] == plain()


def test_prompts_longer_than_a_chunk(monkeypatch):
    """Every chunk's features are stored; nothing is drafted before the last one's are known."""
    monkeypatch.setitem(Engine.__init__.__kwdefaults__, "step_rows", 9)
    config = SpeculationConfig(method="dflash")
    engine, drafter = engine_with(config, mask=51, scale=0.1)
    outputs = engine.generate(PROMPTS, GREEDY, config)
    assert [output.token_ids for output in outputs] == plain() and drafter.checked > 100


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["chain", "tree"])
def test_scattered_slots_change_nothing(name, path):
    """Every seventh slot is somebody else's: no text is one run, attention gathers, guesses stay the same."""
    config = SpeculationConfig(method="dflash", **CONFIGS[name])
    engine, drafter = engine_with(config, mask=51, scale=0.1, path=path)
    pool = engine.target.pool
    taken = SlotTable(tail=list(range(0, pool.size, 7)))
    pool.used[taken.tail] = True
    pool.free -= len(taken.tail)
    pool.tables.append(taken)
    seen = watch_tables(drafter)
    outputs = engine.generate(PROMPTS, GREEDY, config)
    assert [output.token_ids for output in outputs] == plain()
    assert not any(seen[len(seen) // 2 :]) and drafter.checked > 100
    pool.check_integrity([taken])


def watch_tables(drafter) -> list[bool]:
    """Whether each task's slots were one run."""
    seen, propose = [], drafter.propose
    drafter.propose = lambda tasks: [seen.extend(task.table.run for task in tasks), propose(tasks)][1]
    return seen


def test_an_accepted_chain_stays_where_it_is(monkeypatch):
    """Its nodes lie in the masks' slots: no row is moved and every text stays one run."""
    moves, move = [], LayerGroup.move
    monkeypatch.setattr(LayerGroup, "move", lambda *args: (moves.append(args), move(*args)))
    config = SpeculationConfig(method="dflash")
    engine, drafter = engine_with(config, mask=51, scale=0.1)
    seen = watch_tables(drafter)
    outputs = engine.generate(PROMPTS, GREEDY, config)
    assert sum(output.statistics.accepted for output in outputs) > 0
    assert all(seen) and not moves


def test_a_request_is_admitted_only_with_room_for_its_block():
    """Prompt, output, draft and the block's masks."""
    config = SpeculationConfig(method="dflash", num_speculative_tokens=2)
    exact = 9 + 30 + 2 + BLOCK - 1
    engine, _ = engine_with(config, slots=exact)
    assert len(engine.generate([PROMPTS[1]], GREEDY, config)[0].token_ids) == 30
    with pytest.raises(SlotsError):
        engine_with(config, slots=exact - 1)[0].generate([PROMPTS[1]], GREEDY, config)


def test_nothing_is_drafted_past_the_heads_own_positions():
    config = SpeculationConfig(method="dflash")
    engine, drafter = engine_with(config, mask=51, scale=0.1, positions=24)
    outputs = engine.generate(PROMPTS, GREEDY, config)
    assert [output.token_ids for output in outputs] == plain()
    assert outputs[2].statistics.drafted == outputs[7].statistics.drafted == 0 < outputs[0].statistics.drafted
    assert drafter.checked < 150


@pytest.mark.parametrize(("asked", "deepest"), [(2, 2), (5, 5), (20, BLOCK - 1)])
def test_a_chain_is_as_long_as_block_and_request_allow(asked, deepest):
    config = SpeculationConfig(method="dflash", num_speculative_tokens=asked)
    engine, _ = engine_with(config)
    [output] = engine.generate([PROMPTS[0]], GREEDY, config)
    assert len(output.statistics.drafted_at) == deepest


def test_features_come_from_the_boundaries_the_head_names():
    assert dflash_head(random_target()).feature_layers == (1, LAYERS)


class Late(CheckedDFlash):
    """Wrong: context keys at the position after their own."""

    def store(self, features, positions, slots):
        super().store(features, [position + 1 for position in positions], slots)


class Unsteady(CheckedDFlash):
    """Wrong: the features of a step's last kept row are taken for all of its rows."""

    def store(self, features, positions, slots):
        super().store(features[-1:].expand_as(features), positions, slots)


@pytest.mark.parametrize("wrong", [Late, Unsteady])
def test_the_check_sees_wrong_contexts(wrong):
    config = SpeculationConfig(method="dflash")
    engine, _ = engine_with(config, kind=wrong)
    with pytest.raises(AssertionError, match="close"):
        engine.generate(PROMPTS, GREEDY, config)


def test_only_a_loaded_model_has_hidden_states_to_read():
    with pytest.raises(ConfigError, match="no loaded model"):
        make_dflash(SpeculationConfig(method="dflash"), ScriptedTarget(lambda history: [0.0], vocabulary=1))
