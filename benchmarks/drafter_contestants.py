"""Who takes part in the benchmark of drafters: settings as data, and an engine for each drafter."""

from collections.abc import Callable, Mapping

from foredraft import ConfigError, Engine, SpeculationConfig, UserError
from foredraft.core.speculation_config import OFF
from foredraft.drafters.drafter import BUILT_IN
from foredraft.evaluation.turns import PLAIN, Contestant

DRAFT_MODEL = "{draft model}"  # where a setting names the draft model of the run

# Rounds bring the same prompts again, so suffix drafts come from the request alone.
SUFFIX = {"method": "suffix", "suffix_decoding_max_cached_requests": 0, "suffix_decoding_max_spec_factor": 2.0}
MODEL = {"method": "draft_model", "model": DRAFT_MODEL}
# A tree of 15 nodes and the root are 16 rows, which the matrix units of a CPU compute for little more than one.
TREE = {"tree_size": 15, "tree_width": 3}
WIDER = {"tree_size": 24, "tree_width": 4}  # for drafters whose further nodes are taken often
DRAFTERS: dict[str, dict] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 6},
    "suffix": SUFFIX | {"num_speculative_tokens": 12},
    "draft model": MODEL | {"num_speculative_tokens": 4},
    "draft model tree": MODEL | {"num_speculative_tokens": 4} | TREE,
    "medusa": {"method": "medusa", "num_speculative_tokens": 3},
    "medusa tree": {"method": "medusa", "num_speculative_tokens": 4} | TREE,
    "eagle3": {"method": "eagle3", "num_speculative_tokens": 5},
    "eagle3 tree": {"method": "eagle3", "num_speculative_tokens": 6} | WIDER,
    "eagle3 reasoning": {"method": "eagle3", "model": "tiny-eagle3-reasoning", "num_speculative_tokens": 5},
    "mtp": {"method": "mtp", "num_speculative_tokens": 3},
    "mtp tree": {"method": "mtp", "num_speculative_tokens": 4} | TREE,
    "dflash": {"method": "dflash", "num_speculative_tokens": 7},
    "dflash tree": {"method": "dflash", "num_speculative_tokens": 7} | WIDER,
}


def configs_of(
    names: list[str], changes: Mapping[str, Mapping[str, object]], draft_model: str
) -> dict[str, SpeculationConfig]:
    """The config of each contestant named, or of all, with `changes` to their settings; a new name adds one.

    Raises `ConfigError` for an unknown name, key or method.
    """
    settings = {name: DRAFTERS.get(name, {}) | dict(changes.get(name, {})) for name in {**DRAFTERS, **changes}}
    unknown = [name for name in names if name not in settings]
    if unknown:
        raise ConfigError(f"contestant {unknown[0]!r} is not known; known: {', '.join(settings)}")
    return {name: config_of(name, settings[name], draft_model) for name in names or settings}


def config_of(name: str, setting: Mapping[str, object], draft_model: str) -> SpeculationConfig:
    values = {key: draft_model if value == DRAFT_MODEL else value for key, value in setting.items()}
    try:
        config = SpeculationConfig.from_dict(values)
    except ConfigError as error:
        raise ConfigError(f"contestant {name!r}: {error}") from None
    known = [method for method in BUILT_IN if method != "none"]
    if config.method not in known:
        raise ConfigError(f"contestant {name!r} has method {config.method!r}; known: {', '.join(known)}")
    return config


def make_contestants(
    configs: Mapping[str, SpeculationConfig], load: Callable[[], Engine], *, together: bool
) -> tuple[dict[str, Contestant], dict[str, str]]:
    """Plain decoding and everybody whose drafter can be made; of the others, why not.

    Each drafter gets an engine of its own, as its user would run it: in one engine a tree's accepted path also moves
    the cache rows of every other drafter. `together` puts all in one, for targets too large to load often.
    """
    plain = load()
    contestants, left_out = {PLAIN: Contestant(engine=plain, config=OFF)}, {}
    engines: dict[SpeculationConfig, Engine] = {}
    for name, config in configs.items():
        engine = plain if together else engines.get(config.drafter_key) or load()
        try:
            engine.drafter_for(config)
        except UserError as error:
            left_out[name] = str(error)
        else:
            engines[config.drafter_key] = engine
            contestants[name] = Contestant(engine=engine, config=config)
    return contestants, left_out
