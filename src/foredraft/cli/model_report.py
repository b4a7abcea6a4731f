"""What foredraft makes of one model, as plain values."""

from dataclasses import dataclass

from foredraft.cli.head_report import HeadReport, head_report, own_heads
from foredraft.cli.network_path import network_path
from foredraft.core.errors import UserError
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import BUILT_IN, make_drafter, registry
from foredraft.model.target import ModelTarget


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelReport:
    """One loaded model.

    Attributes:
        architecture: The transformers class.
        layers, heads, kv_heads, hidden_size: Of the decoder.
        key_sizes, value_sizes: Sizes of a head's keys and values, each that some layer has.
        window: Sliding window in positions, none where every layer sees everything.
        window_layers: Layers that have the window.
        context_length: Most positions the model was made for.
        vocabulary_rows: Width of a row of logits.
        vocabulary_size: Tokens that may be written.
        stop_tokens: Tokens that end a text, by id.
        chat_template: Whether `--chat` works.
        feature_layers: Hidden states an EAGLE-3 head reads by default; none for a model of too few layers.
        own_heads: Heads made for it that need no looking for: in its own checkpoint, or embedded beside it.
        head: The head tried as its drafter, none where none was named.
        drafters: For each drafting method none where it fits, else why it does not.
        drafter_paths: By which path those that fit run their networks, and why; nothing of those that have none.
        dtype, path: How forwards are computed.
        weight_bytes: Memory of the weights.
        cache_bytes_per_token: Memory of one token in the cache.
        cache_tokens: Tokens the cache holds.
    """

    architecture: str
    layers: int
    heads: int
    kv_heads: int
    hidden_size: int
    key_sizes: list[int]
    value_sizes: list[int]
    window: int | None
    window_layers: list[int]
    context_length: int
    vocabulary_rows: int
    vocabulary_size: int
    stop_tokens: dict[int, str]
    chat_template: bool
    feature_layers: list[int] | None
    own_heads: dict[str, str]
    head: HeadReport | None
    drafters: dict[str, str | None]
    drafter_paths: dict[str, str]
    dtype: str
    path: str
    weight_bytes: int
    cache_bytes_per_token: int
    cache_tokens: int


def report_of(target: ModelTarget, draft_model: str | None) -> ModelReport:
    """Describe `target`; `draft_model`, a model or a head, is tried as its drafter where one is named."""
    model, shape, shapes = target.model, target.model.capability, target.model.shapes.values()
    features = list(shape.feature_layers)
    tried = {name: trial(name, target, draft_model) for name in sorted({*BUILT_IN, *registry})}
    return ModelReport(
        architecture=shape.architecture,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        hidden_size=shape.hidden_size,
        key_sizes=sorted({layer.key_size for layer in shapes}),
        value_sizes=sorted({layer.value_size for layer in shapes}),
        window=max((shape.windows[layer] for layer in shape.sliding_layers), default=None),
        window_layers=shape.sliding_layers,
        context_length=shape.context_length,
        vocabulary_rows=target.vocabulary.rows,
        vocabulary_size=target.vocabulary.size,
        stop_tokens={i: target.tokenizer.convert_ids_to_tokens(i) for i in target.vocabulary.eos_token_ids},
        chat_template=bool(target.tokenizer.chat_template),
        feature_layers=features if all(0 <= layer < shape.layers for layer in features) else None,
        own_heads=own_heads(target),
        head=head_report(draft_model, target) if draft_model else None,
        drafters={name: misfit for name, (misfit, _) in tried.items()},
        drafter_paths={name: path for name, (_, path) in tried.items() if path is not None},
        dtype=str(model.dtype).removeprefix("torch."),
        path=model.path,
        weight_bytes=model.weight_bytes,
        cache_bytes_per_token=model.bytes_per_token,
        cache_tokens=target.pool.size,
    )


def trial(method: str, target: ModelTarget, draft_model: str | None) -> tuple[str | None, str | None]:
    """Why the drafting method cannot serve `target` and which path its network takes, each none where there is no such.

    Found by making the drafter.
    """
    try:
        return None, network_path(make_drafter(SpeculationConfig(method=method, model=draft_model), target))
    except UserError as error:
        return str(error), None
