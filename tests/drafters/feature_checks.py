"""Feature-level drafts computed from scratch: whole texts, no cache, the trees grown as the papers say."""

from dataclasses import dataclass, field
from functools import cache

import torch
from random_heads import EPS, HIDDEN, LAYERS, THETA, VOCABULARY, hidden_states, spread, target_module
from torch import Tensor

from foredraft.drafters.feature_drafter import FeatureDrafter, feature_drafter, plain_shapes
from foredraft.heads.eagle import Eagle3Config, Eagle3Head, EagleConfig, EagleHead
from foredraft.heads.layer import LayerSizes
from foredraft.heads.mtp import MtpConfig, MtpHead
from foredraft.heads.native_heads import native_or_torch
from foredraft.heads.shared import Borrowed, vocabulary_maps
from foredraft.model.slot_pool import SlotTable
from foredraft.model.target import ModelTarget

DRAFT_IDS = torch.arange(2, VOCABULARY, 2)
NEAR = {"rtol": 1e-3, "atol": 1e-3}


def sizes(theta: float = THETA) -> LayerSizes:
    return LayerSizes(
        hidden_size=HIDDEN,
        intermediate_size=40,
        heads=4,
        kv_heads=2,
        head_dim=12,
        rms_norm_eps=EPS,
        rope={"rope_type": "default", "rope_theta": theta},
    )


def make_head(kind: str, module, theta: float = THETA):
    borrowed = Borrowed(module.get_input_embeddings(), module.get_output_embeddings())
    torch.manual_seed(0)  # biases start at random
    return spread(HEADS[kind](sizes(theta), borrowed), seed=2, scale=0.2)


def eagle(sizes: LayerSizes, borrowed: Borrowed) -> EagleHead:
    return EagleHead(EagleConfig(sizes=sizes, vocabulary=VOCABULARY), borrowed)


def eagle3(sizes: LayerSizes, borrowed: Borrowed) -> Eagle3Head:
    """Two layers over boundaries of all kinds, and every other token of the target."""
    config = Eagle3Config(
        sizes=sizes,
        vocabulary=VOCABULARY,
        draft_vocabulary=len(DRAFT_IDS),
        target_hidden_size=HIDDEN,
        feature_layers=(0, 2, LAYERS),
        layers=2,
    )
    head = Eagle3Head(config, borrowed)
    d2t, t2d = vocabulary_maps(DRAFT_IDS, VOCABULARY)
    head.d2t.copy_(d2t), head.t2d.copy_(t2d)
    return head


def mtp(sizes: LayerSizes, borrowed: Borrowed) -> MtpHead:
    return MtpHead(MtpConfig(sizes=sizes, vocabulary=VOCABULARY, feed_normed=True), borrowed)


HEADS = {"eagle": eagle, "eagle3": eagle3, "mtp": mtp}
LAYER_COUNT = {"eagle": 1, "eagle3": 2, "mtp": 1}


def drafter_over(target: ModelTarget, config, kind: str, theta: float = THETA) -> FeatureDrafter:
    """Drafts on the target's path."""
    head = native_or_torch(make_head(kind, target.model.module, theta), target.model.decoder)
    shapes = plain_shapes(sizes(theta), layers=LAYER_COUNT[kind])
    return feature_drafter(config, target, head, sizes(theta), shapes=shapes)


@dataclass
class WholeAttend:
    """Rows of a whole text, each seeing those before it; notes every layer's keys and values, [T, G, D] each."""

    stored: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.stored[layer] = key[0].transpose(0, 1), value[0].transpose(0, 1)
        repeat = query.shape[1] // key.shape[1]
        keys, values = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
        future = torch.full((query.shape[2],) * 2, float("-inf")).triu(1)
        weights = (query @ keys.transpose(2, 3) * query.shape[-1] ** -0.5 + future).softmax(-1)
        return (weights @ values).transpose(1, 2).flatten(2)


@cache
def whole_text(kind: str) -> "WholeText":
    """One for all tests: most of their texts are the same, and so are the answers."""
    return WholeText(kind)


class WholeText:
    """What the head says of a text, from scratch for every text."""

    def __init__(self, kind: str):
        self.module = target_module("eager")
        self.head = make_head(kind, self.module)
        self.states = cache(lambda tokens: hidden_states(self.module, list(tokens)))
        self.scores = cache(self.scores_after)

    @torch.inference_mode()
    def captured(self, tokens: list[int]) -> Tensor:
        """The target's features of every token, side by side, [T, features x hidden]."""
        states = self.states(tuple(tokens))
        return torch.cat([states[boundary] for boundary in self.head.feature_layers], dim=-1)

    @torch.inference_mode()
    def features(self, tokens: list[int]) -> Tensor:
        """Fused features of every token, [T, hidden]."""
        return self.head.fuse(self.captured(tokens))

    @torch.inference_mode()
    def stored(self, tokens: list[int]) -> dict[int, tuple[Tensor, Tensor]]:
        """Keys and values of every committed pair by layer: position i is that of F_i and token i + 1."""
        attend = WholeAttend()
        self.rows(tokens[1:], self.features(tokens)[:-1], attend)
        return attend.stored

    @torch.inference_mode()
    def scores_after(self, tokens: tuple[int, ...], path: tuple[int, ...]) -> Tensor:
        """Log-probabilities [V] of the token after `path`, drafted below the text `tokens`."""
        hidden = self.features(tokens)[:-1]
        for length in range(len(path)):
            out = self.rows([*tokens[1:], *path[:length]], hidden, WholeAttend())
            hidden = torch.cat([hidden, self.head.fed_back(out[-1:])])
        logits = self.head.logits(self.rows([*tokens[1:], *path], hidden, WholeAttend())[-1])
        if self.head.target_ids is not None:
            logits = torch.full((VOCABULARY,), float("-inf")).index_put((DRAFT_IDS,), logits)
        return logits.log_softmax(-1)

    def rows(self, tokens: list[int], hidden: Tensor, attend: WholeAttend) -> Tensor:
        assert len(tokens) == len(hidden)
        return self.head(torch.tensor([tokens]), hidden[None], torch.arange(len(tokens))[None], attend)[0]

    def chain(self, tokens: list[int], depth: int) -> set[tuple[int, ...]]:
        path: tuple[int, ...] = ()
        for _ in range(depth):
            path = *path, int(self.scores(tuple(tokens), path).argmax())
        return {path[: length + 1] for length in range(depth)}

    def dynamic(self, tokens: list[int], *, nodes: int, depth: int, width: int) -> set[tuple[int, ...]]:
        """EAGLE-2 (2406.16858): every level runs its best `width` nodes; of all candidates the best `nodes` stay."""
        frontier, recorded = {(): 0.0}, {}
        for _ in range(depth):
            level = {}
            for path, worth in frontier.items():
                best = self.scores(tuple(tokens), path).topk(width)
                for token, gain in zip(best.indices.tolist(), best.values.tolist(), strict=True):
                    level[*path, token] = worth + gain
            recorded |= level
            frontier = dict(sorted(level.items(), key=lambda entry: -entry[1])[:width])
        return set(sorted(recorded, key=lambda path: (-recorded[path], len(path)))[:nodes])

    def ranked(self, tokens: list[int], ranks: list[tuple[int, ...]]) -> set[tuple[int, ...]]:
        """The token of each rank path."""
        known = {(): ()}
        for path in sorted(ranks, key=len):
            above = known[path[:-1]]
            known[path] = (*above, self.scores(tuple(tokens), above).topk(path[-1] + 1).indices[-1].item())
        return set(known.values()) - {()}


def stored_by(drafter: FeatureDrafter, table: SlotTable, count: int) -> dict[int, tuple[Tensor, Tensor]]:
    """Keys and values the drafter holds for the first `count` committed positions, by layer."""
    slots = torch.tensor(table.slots[:count])
    group = drafter.layers
    return {layer: (group.keys[layer][slots], group.values[layer][slots]) for layer in group.shapes}
