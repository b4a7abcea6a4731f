"""How drafts are made and accepted: vLLM's keys where it has one, ours beside them."""

import json
from dataclasses import dataclass, fields
from typing import Any

from foredraft.core.errors import ConfigError, require
from foredraft.core.known_names import one_of, unknown
from foredraft.core.sampling_params import whole, within
from foredraft.core.static_tree import StaticTree, token_tree

ACCEPTANCE_RULES = ("match", "standard", "block", "tree", "traversal", "lossy-typical")
CHAIN_RULES = ("standard", "block")
COUPLED_RULES = ("match", "lossy-typical")
DRAFT_SAMPLING = ("coupled", "greedy", "probabilistic")
MAX_NODES = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeculationConfig:
    """Speculation of one engine or one request. Raises `ConfigError` naming the key.

    Attributes:
        method: Name of the drafter: none, draft_model, ngram, suffix, or one registered by the caller.
        model: Draft model: a folder, a hub id or an embedded name.
        num_speculative_tokens: Longest path of a draft, 1 to 64.
        tree_size: Most nodes of a draft tree; 0 drafts a chain.
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
        rejection_sample_method: Acceptance rule: match, standard, block, tree, traversal, or lossy-typical.
        draft_sample_method: coupled drafts with the target's noise, probabilistic samples from the drafter's own law,
            greedy takes the likeliest tokens. None means coupled for match and lossy-typical, else probabilistic.
    """

    method: str = "none"
    model: str | None = None
    num_speculative_tokens: int = 5
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
    rejection_sample_method: str = "match"
    draft_sample_method: str | None = None

    def __post_init__(self) -> None:
        whole("num_speculative_tokens", self.num_speculative_tokens, 1, 64)
        whole("tree_size", self.tree_size, 0, MAX_NODES)
        whole("tree_width", self.tree_width, 1, 32)
        within("draft_confidence_threshold", self.draft_confidence_threshold, 0, 1)
        whole("prompt_lookup_max", self.prompt_lookup_max, 1, 64)
        whole("prompt_lookup_min", self.prompt_lookup_min, 1, self.prompt_lookup_max)
        whole("suffix_decoding_max_tree_depth", self.suffix_decoding_max_tree_depth, 2, 256)
        whole("suffix_decoding_max_cached_requests", self.suffix_decoding_max_cached_requests, 0)
        within("suffix_decoding_max_spec_factor", self.suffix_decoding_max_spec_factor, 0, 64)
        within("suffix_decoding_min_token_prob", self.suffix_decoding_min_token_prob, 0, 1)
        one_of("rejection_sample_method", self.rejection_sample_method, ACCEPTANCE_RULES)
        if self.draft_sample_method is not None:
            one_of("draft_sample_method", self.draft_sample_method, DRAFT_SAMPLING)
        shape, rule = self.speculative_token_tree, self.rejection_sample_method
        require(
            shape is None or isinstance(shape, str),
            f"speculative_token_tree is {shape!r}; it must be a string: a published name or a JSON list of rank paths",
        )
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
    def branches(self) -> bool:
        """Whether drafts are trees, chains otherwise."""
        return bool(self.tree_size or self.speculative_token_tree is not None)

    @property
    def fixed_tree(self) -> StaticTree | None:
        """The tree that `speculative_token_tree` asks for, as far as drafts may hold it."""
        if self.speculative_token_tree is None:
            return None
        tree = token_tree(self.speculative_token_tree)
        return tree.cut(nodes=self.tree_size or len(tree), depth=self.num_speculative_tokens)

    @property
    def nodes(self) -> int:
        """Most draft nodes a step may hold."""
        fixed = self.fixed_tree
        return len(fixed) if fixed is not None else self.tree_size or self.num_speculative_tokens

    @property
    def drafter_key(self) -> "SpeculationConfig":
        """This config less what each request may choose for itself: requests with equal keys share a drafter."""
        own = ("method", "model", *(f.name for f in fields(self) if f.name.startswith(("prompt_lookup", "suffix"))))
        return SpeculationConfig(**{name: getattr(self, name) for name in own})

    @property
    def scratch_nodes(self) -> int:
        """Most cache slots a draft may take while it is made: a tree may try a level more widely than it keeps."""
        grows = self.branches and self.speculative_token_tree is None
        return self.nodes + self.num_speculative_tokens * self.tree_width if grows else self.nodes

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


accepted_types = {int: int, float: int | float, str: str, str | None: str | None}
described_types = {int: "a whole number", float: "a number", str: "a string", str | None: "a string or null"}
