"""A random target, and feature-level heads for it: random ones, and ones fitted to guess well.

Fitting is one least-squares solution: the last projection of a head's layer learns the target's own next features.
"""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from foredraft.core.vocabulary import Vocabulary
from foredraft.drafters.feature_drafter import FeatureDrafter, feature_drafter, plain_shapes
from foredraft.heads.eagle import Eagle3Config, Eagle3Head, EagleConfig, EagleHead
from foredraft.heads.layer import LayerSizes
from foredraft.heads.mtp import MtpConfig, MtpHead
from foredraft.heads.shared import Borrowed, vocabulary_maps
from foredraft.model.attention import NAME
from foredraft.model.capability import capability_of
from foredraft.model.devices import CpuDevice
from foredraft.model.features import FINAL_NORM
from foredraft.model.packed_model import PackedModel
from foredraft.model.slot_pool import SlotPool
from foredraft.model.target import ModelTarget

HIDDEN, LAYERS, CONTEXT = 32, 2, 128
SIZES = LayerSizes(hidden_size=HIDDEN, intermediate_size=384, heads=4, kv_heads=4, head_dim=16)


def words(count: int) -> PreTrainedTokenizerFast:
    """Token i is the word `t<i>`."""
    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(count)}, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def target_module(vocabulary: int, attention: str) -> LlamaForCausalLM:
    """Its last token decides most, what came before the rest."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
    )
    module = LlamaForCausalLM._from_config(config, attn_implementation=attention).float().eval().requires_grad_(False)
    for layer in module.model.layers:
        layer.self_attn.o_proj.weight.mul_(0.04)
    return module


def make_target(vocabulary: int = 48, slots: int = 2048) -> ModelTarget:
    module = target_module(vocabulary, NAME)
    model = PackedModel(module, capability_of(LlamaForCausalLM, module.config), torch.device("cpu"))
    known = Vocabulary(rows=vocabulary, size=vocabulary, eos_token_ids=(0,))
    return ModelTarget("random", model, CpuDevice(), SlotPool(slots), words(vocabulary), known)


def eagle(borrowed: Borrowed, vocabulary: int) -> EagleHead:
    return EagleHead(EagleConfig(sizes=SIZES, vocabulary=vocabulary), borrowed)


def eagle3(borrowed: Borrowed, vocabulary: int, draft_vocabulary: int | None = None) -> Eagle3Head:
    config = Eagle3Config(
        sizes=SIZES,
        vocabulary=vocabulary,
        draft_vocabulary=draft_vocabulary or vocabulary,
        target_hidden_size=HIDDEN,
        feature_layers=(0, 1, LAYERS),
        norm_output=True,
    )
    return Eagle3Head(config, borrowed)


def reduced(borrowed: Borrowed, vocabulary: int) -> Eagle3Head:
    """Over two tokens of three."""
    ids = torch.tensor([token for token in range(vocabulary) if token % 3])
    head = eagle3(borrowed, vocabulary, len(ids))
    d2t, t2d = vocabulary_maps(ids, vocabulary)
    head.d2t.copy_(d2t), head.t2d.copy_(t2d)
    return head


def mtp(borrowed: Borrowed, vocabulary: int) -> MtpHead:
    return MtpHead(MtpConfig(sizes=SIZES, vocabulary=vocabulary), borrowed)


HEADS = {"eagle": eagle, "eagle3": eagle3, "eagle3 reduced": reduced, "mtp": mtp}


@torch.no_grad()
def make_head(kind: str, target: ModelTarget, *, fitted: bool) -> torch.nn.Module:
    module = target.model.module
    borrowed = Borrowed(module.get_input_embeddings(), module.get_output_embeddings())
    torch.manual_seed(5)
    head = HEADS[kind](borrowed, target.vocabulary.rows).eval().requires_grad_(False)
    if fitted:
        fit(head, target_module(target.vocabulary.rows, "sdpa"))
    return head


def make_drafter(kind: str, target: ModelTarget, config, *, fitted: bool = True) -> FeatureDrafter:
    head = make_head(kind, target, fitted=fitted)
    return feature_drafter(config, target, head, SIZES, shapes=plain_shapes(SIZES, layers=1))


def causal(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)


def fit(head: torch.nn.Module, module: LlamaForCausalLM) -> None:
    """The layer's last projection so that outputs are the features of the next position, over random texts."""
    layer = PREPARED[type(head)](head)
    tokens = torch.randint(module.config.vocab_size, (24, 96), generator=torch.Generator().manual_seed(7))
    states = states_of(module, tokens)
    features = torch.cat([states[boundary] for boundary in head.feature_layers], dim=-1)[:, :-1]
    # EAGLE's output stands where the normed features do; the others norm their output themselves.
    wanted = states[FINAL_NORM if isinstance(head, EagleHead) else LAYERS][:, 1:]
    seen = []
    handle = layer.mlp.down_proj.register_forward_hook(lambda _, args, output: seen.append((args[0], output)))
    positions = torch.arange(95)[None].expand(24, -1)
    out = head(tokens[:, 1:], head.fuse(features), positions, causal)
    handle.remove()
    [(inner, down)] = seen
    layer.mlp.down_proj.weight.copy_(ridge(inner.flatten(0, 1), (wanted - (out - down)).flatten(0, 1)))


def ridge(inputs: Tensor, outputs: Tensor) -> Tensor:
    """Weight [out, in] with the least squared error, held small."""
    gram = inputs.T @ inputs + 1e-2 * torch.eye(inputs.shape[1])
    return torch.linalg.solve(gram, inputs.T @ outputs).T


def prepare_eagle(head: EagleHead):
    return prepared(head.layers[0], head.fc)


def prepare_mtp(head: MtpHead):
    return prepared(head.layer, head.eh_proj)


def prepared(layer, joined):
    """Mostly the embedding enters the layer."""
    joined.weight.copy_(torch.cat([torch.eye(HIDDEN), 0.1 * torch.eye(HIDDEN)], dim=1))
    return layer


def prepare_eagle3(head: Eagle3Head):
    """Only attention carries the embedding: each row looks at its own token, and the hidden state is kept small."""
    layer, small = head.layers[0], 0.05
    attention, generator = layer.self_attn, torch.Generator().manual_seed(1)
    for projection, scale in ((attention.q_proj, 0.7), (attention.v_proj, 0.5)):
        projection.weight.copy_(scale * torch.randn(projection.weight.shape, generator=generator))
        projection.weight[:, HIDDEN:] = 0
    attention.k_proj.weight.copy_(attention.q_proj.weight)
    head.fc.weight.copy_(small * torch.eye(HIDDEN).repeat(1, 3))
    head.norm.weight.fill_(small)
    rows = torch.arange(head.config.vocabulary) if head.target_ids is None else head.target_ids
    head.lm_head.weight.copy_(head.borrowed[0].head.weight[rows] / small)
    return layer


PREPARED = {EagleHead: prepare_eagle, MtpHead: prepare_mtp, Eagle3Head: prepare_eagle3}


@torch.inference_mode()
def states_of(module: LlamaForCausalLM, tokens: Tensor) -> dict[int, Tensor]:
    """Hidden states by boundary, [B, T, hidden]."""
    last = {}
    handle = module.model.norm.register_forward_pre_hook(lambda _, args: last.update({LAYERS: args[0]}))
    states = module(input_ids=tokens, use_cache=False, output_hidden_states=True).hidden_states
    handle.remove()
    return dict(enumerate(states[:-1])) | last | {FINAL_NORM: states[-1]}
