"""The request field `speculation`: what one request may choose about drafting."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from foredraft.core.published_trees import PUBLISHED
from foredraft.core.speculation_config import ACCEPTANCE_RULES, DRAFT_SAMPLING, MAX_NODES
from foredraft.serving.protocol.request_part import NonEmpty, RequestPart, Text, count, number, refused, unsupported

MODEL_FREE = (  # methods that need no model; a request may name these, or the server's own
    "auto",
    "cascade",
    "grammar",
    "lookahead",
    "merged",
    "ngram",
    "none",
    "prediction",
    "recycling",
    "self_speculation",
    "suffix",
)
MAX_TREE_TEXT = 2**14  # characters of a tree: room for as many nodes as a draft holds, each 64 levels deep
LOADED = "what a request drafts with is loaded when the server starts"
STARTED = "it holds for all requests and is chosen when the server starts"


def tree_of_bounded_size(tree: Any) -> Any:
    """Refuse a tree so long that reading it would take time."""
    if isinstance(tree, str) and (len(tree) > MAX_TREE_TEXT or tree.count("[") > MAX_NODES + 1):
        raise refused(f"is too long; it may hold {MAX_NODES} paths and {MAX_TREE_TEXT} characters")
    return tree


TreeText = Annotated[
    Text,
    BeforeValidator(tree_of_bounded_size),
    WithJsonSchema({"anyOf": [{"enum": sorted(PUBLISHED)}, {"const": "[[0], [0, 0], [1]]"}]}),
]


class SpeculationField(RequestPart):
    """How to draft for this request; a key that is not given is as on the server.

    Where `method` names another method than the server's, the other keys begin at that method's defaults.
    """

    enabled: bool | None = Field(default=None, description="false decodes plainly; true alone changes nothing.")
    method: Annotated[Text, WithJsonSchema({"enum": list(MODEL_FREE)})] | None = Field(
        default=None, description="One that needs no model, or the server's own."
    )
    drafters: Text | None = Field(
        default=None, description="Whom auto, cascade and merged ask: methods that need no model, with commas between."
    )
    num_speculative_tokens: count(1, 64) | None = Field(default=None, description="Longest path of a draft.")
    tree_size: count(0, MAX_NODES) | None = Field(default=None, description="Most nodes of a draft; 0 drafts chains.")
    tree_width: count(1, 32) | None = Field(default=None, description="Most children of a node.")
    speculative_token_tree: TreeText | None = Field(default=None, description="A fixed tree, where the method has one.")
    draft_confidence_threshold: number(0, 1) | None = None
    prediction: NonEmpty | None = Field(default=None, description="A text expected in the answer.")
    rejection_sample_method: Literal[ACCEPTANCE_RULES] | None = Field(default=None, description="Acceptance rule.")
    draft_sample_method: Literal[DRAFT_SAMPLING] | None = None
    prompt_lookup_max: count(1, 64) | None = None
    prompt_lookup_min: count(1, 64) | None = None
    lookahead_window: count(1, 64) | None = None
    lookahead_ngram: count(2, 16) | None = None
    lookahead_guesses: count(0, 64) | None = None
    recycling_candidates: count(1, 32) | None = None

    model: unsupported(LOADED) = None
    vocabulary_matching: unsupported(LOADED) = None
    draft_weights: unsupported(LOADED) = None
    suffix_decoding_max_tree_depth: unsupported(STARTED) = None
    suffix_decoding_max_cached_requests: unsupported(STARTED) = None
    suffix_decoding_max_spec_factor: unsupported(STARTED) = None
    suffix_decoding_min_token_prob: unsupported(STARTED) = None
    self_exit_layer: unsupported(STARTED) = None
    self_skip: unsupported(STARTED) = None
    self_search_seconds: unsupported(STARTED) = None

    @model_validator(mode="after")
    def off_or_chosen(self) -> Self:
        """Refuse a field that turns speculation off and chooses how to speculate."""
        chosen = next(iter(self.chosen), None)
        if self.enabled is False and chosen is not None:
            raise refused("is given while enabled is false; leave one of them out", field=chosen)
        return self

    @property
    def chosen(self) -> dict[str, Any]:
        """Keys of `SpeculationConfig` that the request gives, with their values."""
        return self.model_dump(exclude={"enabled"}, exclude_none=True)
