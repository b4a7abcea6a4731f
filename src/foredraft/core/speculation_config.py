"""How drafts are made and accepted: vLLM's keys where it has one, ours beside them."""

import json
from dataclasses import dataclass, fields, replace
from os import PathLike, fspath
from typing import Any

from foredraft.core.drafter_keys import made_by
from foredraft.core.drafter_names import same_names
from foredraft.core.errors import ConfigError, require
from foredraft.core.known_names import one_of, unknown
from foredraft.core.sampling_params import whole, within
from foredraft.core.static_tree import StaticTree, token_tree

ACCEPTANCE_RULES = ("match", "standard", "block", "tree", "traversal", "lossy-typical")
CHAIN_RULES = ("standard", "block")
COUPLED_RULES = ("match", "lossy-typical")
DRAFT_SAMPLING = ("coupled", "greedy", "probabilistic")
VOCABULARY_MATCHING = ("auto", "tokens", "strings")
DRAFT_WEIGHTS = ("auto", "same", "int8")
OF_EACH_REQUEST = {  # what requests that share a drafter may each choose for themselves
    "num_speculative_tokens",
    "tree_size",
    "tree_width",
    "speculative_token_tree",
    "draft_confidence_threshold",
    "prediction",
    "rejection_sample_method",
    "draft_sample_method",
}
MAX_NODES = 256
AUTO = "auto"  # the method that leaves each step's choice to the policy
AUTO_DEPTH, PLAIN_DEPTH = 16, 5  # longest path where none is given: as a limit for the policy, and for one method


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeculationConfig:
    """Speculation of one engine or one request. Raises `ConfigError` naming the key.

    Attributes:
        method: Name of the drafter, such as draft_model, ngram or suffix, or one registered by the caller; auto chooses
            drafter, length and shape anew in every step, none decodes plainly.
        model: Draft model or head: a folder, as a string or a path, a hub id or an embedded name.
        drafters: Whom a combination asks and whom auto chooses from: names with commas between them, each a method or
            method:model.
        num_speculative_tokens: Longest path of a draft, 1 to 64; where it is not given, 5, and 16 for auto.
        tree_size: Most nodes of a draft tree; 0 drafts a chain, and leaves auto to choose.
        tree_width: Most children of a node in a draft tree.
        speculative_token_tree: A fixed tree for Medusa, EAGLE, MTP or DFlash drafts, in place of nodes chosen anew: the
            name of a published one, such as mc_sim_7b_63, or a JSON list of rank paths, such as [[0], [0, 0], [1]].
            Its first `tree_size` nodes are drafted, all where that is 0, none deeper than `num_speculative_tokens`.
        draft_confidence_threshold: A drafter that knows its own probabilities ends a chain when one falls below this.
        prompt_lookup_max: Longest suffix that n-gram lookup tries to find again, in tokens.
        prompt_lookup_min: Shortest suffix that n-gram lookup accepts.
        suffix_decoding_max_tree_depth: Longest pattern a suffix tree keeps, in tokens.
        suffix_decoding_max_cached_requests: Past outputs kept in the shared suffix tree; the oldest leave first.
        suffix_decoding_max_spec_factor: Draft at most this many tokens for each token matched.
        suffix_decoding_min_token_prob: A suffix draft stops where a token's estimated probability is below this.
        lookahead_window: Columns of Lookahead's window.
        lookahead_ngram: Tokens of an n-gram of Lookahead, the one it is found by included.
        lookahead_guesses: Most n-grams Lookahead verifies in a step.
        recycling_candidates: Likeliest next tokens that token recycling remembers after each token.
        self_exit_layer: Layers that self-speculation drafts with before it leaves; 0 runs through to the last one.
        self_skip: Sublayers self-speculation leaves out, such as "attention 3, mlp 5"; empty searches for a good set.
        self_search_seconds: Time that the search for sublayers to leave out may take, spread over its first steps.
        vocabulary_matching: How to draft with a model of another vocabulary: tokens drafts what both vocabularies hold,
            strings goes through text and serves any pair, auto takes the same vocabulary as it is, strings for others.
        draft_weights: Format of the weights of a draft model or head: int8, which takes the native path and bf16; same
            for the target's; auto takes int8 where it can be had. No text depends on it.
        prediction: A text the caller expects in the answer, which method prediction drafts from.
        rejection_sample_method: Acceptance rule: match, standard, block, tree, traversal, or lossy-typical.
        draft_sample_method: coupled drafts with the target's noise, probabilistic samples from the drafter's own law,
            greedy takes the likeliest tokens. None means coupled for match and lossy-typical, else probabilistic.
    """

    method: str = AUTO
    model: str | None = None
    drafters: str = ""
    num_speculative_tokens: int | None = None
    tree_size: int = 0
    tree_width: int = 3
    speculative_token_tree: str | None = None
    draft_confidence_threshold: float = 0.0
    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 2
    suffix_decoding_max_tree_depth: int = 24
    suffix_decoding_max_cached_requests: int = 1000
    suffix_decoding_max_spec_factor: float = 1.0
    suffix_decoding_min_token_prob: float = 0.1
    lookahead_window: int = 7
    lookahead_ngram: int = 4
    lookahead_guesses: int = 7
    recycling_candidates: int = 8
    self_exit_layer: int = 0
    self_skip: str = ""
    self_search_seconds: float = 2.0
    vocabulary_matching: str = "auto"
    draft_weights: str = "auto"
    prediction: str | None = None
    rejection_sample_method: str = "match"
    draft_sample_method: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.model, PathLike):
            object.__setattr__(self, "model", fspath(self.model))
        whole("num_speculative_tokens", self.depth, 1, 64)
        whole("tree_size", self.tree_size, 0, MAX_NODES)
        whole("tree_width", self.tree_width, 1, 32)
        within("draft_confidence_threshold", self.draft_confidence_threshold, 0, 1)
        whole("prompt_lookup_max", self.prompt_lookup_max, 1, 64)
        whole("prompt_lookup_min", self.prompt_lookup_min, 1, self.prompt_lookup_max)
        whole("suffix_decoding_max_tree_depth", self.suffix_decoding_max_tree_depth, 2, 256)
        whole("suffix_decoding_max_cached_requests", self.suffix_decoding_max_cached_requests, 0)
        within("suffix_decoding_max_spec_factor", self.suffix_decoding_max_spec_factor, 0, 64)
        within("suffix_decoding_min_token_prob", self.suffix_decoding_min_token_prob, 0, 1)
        whole("lookahead_window", self.lookahead_window, 1, 64)
        whole("lookahead_ngram", self.lookahead_ngram, 2, 16)
        whole("lookahead_guesses", self.lookahead_guesses, 0, 64)
        whole("recycling_candidates", self.recycling_candidates, 1, 32)
        whole("self_exit_layer", self.self_exit_layer, 0)
        within("self_search_seconds", self.self_search_seconds, 0, 3600)
        one_of("vocabulary_matching", self.vocabulary_matching, VOCABULARY_MATCHING)
        one_of("draft_weights", self.draft_weights, DRAFT_WEIGHTS)
        one_of("rejection_sample_method", self.rejection_sample_method, ACCEPTANCE_RULES)
        if self.draft_sample_method is not None:
            one_of("draft_sample_method", self.draft_sample_method, DRAFT_SAMPLING)
        shape, rule = self.speculative_token_tree, self.rejection_sample_method
        require(
            shape is None or isinstance(shape, str),
            f"speculative_token_tree is {shape!r}; it must be a string: a published name or a JSON list of rank paths",
        )
        for field in fields(self):
            right = field.type not in (str, str | None) or isinstance(getattr(self, field.name), field.type)
            require(right, f"{field.name} is {getattr(self, field.name)!r}; it must be a string")
        require(
            not self.branches or rule not in CHAIN_RULES,
            f"rejection_sample_method {rule!r} verifies chains, not trees; for trees use 'tree' or 'traversal'",
        )
        require(
            self.nodes <= MAX_NODES,
            f"speculative_token_tree has {self.nodes} nodes; a draft holds {MAX_NODES} at most, cut it by tree_size",
        )
        require(
            self.draft_sampling != "coupled" or rule in COUPLED_RULES,
            f"rejection_sample_method {rule!r} would reuse the noise of coupled drafts; use probabilistic or greedy",
        )

    @property
    def draft_sampling(self) -> str:
        """How drafts are chosen, the default resolved."""
        default = "coupled" if self.rejection_sample_method in COUPLED_RULES else "probabilistic"
        return self.draft_sample_method or default

    @property
    def depth(self) -> int:
        """Longest path of a draft, the default resolved."""
        own = self.num_speculative_tokens
        return own if own is not None else AUTO_DEPTH if self.adaptive else PLAIN_DEPTH

    @property
    def adaptive(self) -> bool:
        """Whether who drafts, and how much, is left to the policy in every step."""
        return self.method == AUTO

    @property
    def branches(self) -> bool:
        """Whether drafts are trees, chains otherwise."""
        return bool(self.tree_size or self.speculative_token_tree is not None)

    @property
    def fixed_tree(self) -> StaticTree | None:
        """The tree that `speculative_token_tree` asks for, as far as drafts may hold it."""
        if self.speculative_token_tree is None:
            return None
        tree = token_tree(self.speculative_token_tree)
        return tree.cut(nodes=self.tree_size or len(tree), depth=self.depth)

    @property
    def nodes(self) -> int:
        """Most draft nodes a step may hold."""
        fixed = self.fixed_tree
        return len(fixed) if fixed is not None else self.tree_size or self.depth

    @property
    def drafter_key(self) -> "SpeculationConfig":
        """What the drafter is made by: requests with equal keys share one, whatever else they choose for themselves."""
        every = {field.name for field in fields(self) if field.name not in OF_EACH_REQUEST}
        own = made_by(self.method, self.drafters)
        names = every if own is None else own | {"method", "model"}
        key = SpeculationConfig(**{name: getattr(self, name) for name in names})
        return replace(key, drafters=same_names(key.drafters)) if key.drafters else key

    @property
    def scratch_nodes(self) -> int:
        """Most cache slots a draft may take while it is made: a tree may try a level more widely than it keeps."""
        grows = self.branches and self.speculative_token_tree is None
        return self.nodes + self.depth * self.tree_width if grows else self.nodes

    @classmethod
    def from_json(cls, text: str) -> "SpeculationConfig":
        """Parse `--speculative-config`. Raises `ConfigError` for bad JSON or an unknown key."""
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(
                f"speculative config is not JSON: {error.msg} at character {error.pos}: {text!r}"
            ) from None
        require(isinstance(values, dict), f"speculative config is {text!r}; it must be a JSON object")
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "SpeculationConfig":
        known = {field.name: field.type for field in fields(cls)}
        for key, value in values.items():
            require(key in known, unknown("speculative config key", key, known))
            right = isinstance(value, accepted_types[known[key]]) and not isinstance(value, bool)
            require(right, f"speculative config key {key} is {value!r}; it must be {described_types[known[key]]}")
        return cls(**values)


OFF = SpeculationConfig(method="none")  # plain decoding
accepted_types = {int: int, int | None: int | None, float: int | float, str: str, str | None: str | None}
described_types = {
    int: "a whole number",
    int | None: "a whole number or null",
    float: "a number",
    str: "a string",
    str | None: "a string or null",
}
