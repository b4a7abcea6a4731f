"""What the drafter of each method is made by, beside its model: requests that differ in nothing of it share one.

Only what the maker of a drafter reads is here. What it reads of each request's own config, such as the lengths that
prompt lookup tries, makes no other drafter.
"""

from foredraft.core.drafter_names import drafter_names

MADE_BY: dict[str, tuple[str, ...]] = {
    "none": (),
    "draft_model": ("vocabulary_matching", "draft_weights"),
    "ngram": (),
    "suffix": ("suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests"),
    "eagle": ("draft_weights",),
    "eagle3": ("draft_weights",),
    "mtp": ("draft_weights",),
    "medusa": ("draft_weights",),
    "dflash": ("draft_weights",),
    "cascade": ("drafters",),
    "merged": ("drafters",),
    "grammar": (),
    "self_speculation": ("self_exit_layer", "self_skip", "self_search_seconds"),
    "lookahead": ("lookahead_window", "lookahead_ngram", "lookahead_guesses"),
    "recycling": ("recycling_candidates",),
    "prediction": (),
}


def made_by(method: str, drafters: str) -> set[str] | None:
    """Keys of `SpeculationConfig` that a drafter of `method`, which asks `drafters`, is made by; none where a method of
    the caller's own is among them, which may read any."""
    methods = [method, *(name for name, _ in drafter_names(drafters) if drafters)]
    if not MADE_BY.keys() >= set(methods):
        return None
    return {key for name in methods for key in MADE_BY[name]}
