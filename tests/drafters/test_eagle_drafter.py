"""EAGLE heads from published files draft through the engine as the head in memory does."""

from dataclasses import replace

import pytest
from feature_checks import HEADS, drafter_over, make_head
from random_heads import PATHS, PROMPTS, random_target

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.checkpoints.head import HeadCheckpoint
from foredraft.checkpoints.head_writer import write_head
from foredraft.core.errors import ConfigError, ModelError
from foredraft.core.speculation_config import OFF
from foredraft.drafters.eagle import make_eagle

SAMPLING = SamplingParams(max_new_tokens=16, temperature=1.0, seed=4)


def publish(kind: str, folder, **changes) -> str:
    module = make_head(kind, random_target().model.module)
    head = HeadCheckpoint(
        name="random",
        method=kind,
        format="ours",
        config=replace(module.config, **changes),
        tensors=dict(module.state_dict()),
    )
    options = {"target_name": "random", "target_architectures": ["LlamaForCausalLM"], "speculative_tokens": 4}
    write_head(head, folder, format="eagle", target_layers=3, **options)
    return str(folder)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("tree_size", [0, 10])
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_head_from_files_drafts_as_the_one_in_memory(kind, tree_size, path, tmp_path):
    assert kind in HEADS
    target = random_target(path=path)
    named = SpeculationConfig(method=kind, model=publish(kind, tmp_path), tree_size=tree_size)
    ours = replace(named, method="in memory", model=None)
    engine = Engine(target, max_batch=3, speculation=OFF)
    engine.drafters[ours.drafter_key] = drafter_over(target, ours, kind)
    plain, loaded, held = (engine.generate(PROMPTS, SAMPLING, config) for config in (None, named, ours))
    assert [o.token_ids for o in loaded] == [o.token_ids for o in plain]
    assert [o.statistics.accepted for o in loaded] == [o.statistics.accepted for o in held]
    assert sum(o.statistics.accepted for o in loaded) > 0
    assert engine.drafter_for(named).head.path.startswith("native path" if path == "native" else "torch: its target")
    target.pool.check_integrity([])


def test_a_head_of_a_deeper_target_is_refused(tmp_path):
    """Whoever reads the files, what the module cannot give is refused before anything runs."""
    folder = publish("eagle3", tmp_path)
    target = random_target()
    del target.model.module.model.layers[1:]
    with pytest.raises(ModelError, match="feature layer 2 is asked for; LlamaModel has boundaries 0 to 1") as refusal:
        make_eagle(SpeculationConfig(method="eagle3", model=folder), target)
    assert "\n" not in str(refusal.value)


def test_a_head_must_be_named():
    with pytest.raises(ConfigError, match="eagle3 needs a head") as refusal:
        make_eagle(SpeculationConfig(method="eagle3"), random_target())
    assert "\n" not in str(refusal.value)
