"""States kept on disk are those computed, survive what ends a run, and stay apart from those of other settings."""

import json
from types import SimpleNamespace

import pytest
import torch
from tiny_data import HIDDEN, random_samples, save_target

from foredraft.training import feature_cache
from foredraft.training.feature_cache import FeatureCache, OnTheFly
from foredraft.training.samples import DataError, Sample
from foredraft.training.target_network import TargetNetwork

BOUNDARIES = (0, 2)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return TargetNetwork.load(save_target(tmp_path_factory.mktemp("target")), dtype="fp32", device="cpu")


@pytest.fixture
def source(target):
    return OnTheFly(target, BOUNDARIES)


@pytest.fixture
def samples():
    return random_samples(12)


@pytest.fixture
def forwards(target, monkeypatch):
    """Texts the target runs over, counted."""
    seen, plain = SimpleNamespace(texts=0), target.features

    def counted(tokens, boundaries):
        seen.texts += len(tokens)
        return plain(tokens, boundaries)

    monkeypatch.setattr(target, "features", counted)
    return seen


def same(got, wanted) -> None:
    assert len(got) == len(wanted)
    for pair, other in zip(got, wanted, strict=True):
        for state, right in zip(pair, other, strict=True):
            torch.testing.assert_close(state, right.to(state.dtype), rtol=1e-4, atol=1e-4)


def alone(target, sample: Sample):
    states = target.features(torch.tensor([list(sample.tokens)]), BOUNDARIES)
    return states.features[0], states.final[0]


def test_states_on_the_fly_are_those_of_each_text_alone(target, source, samples, monkeypatch):
    monkeypatch.setattr(feature_cache, "FORWARD_TOKENS", 60)
    got = source.states(samples)
    assert [features.shape for features, _ in got] == [(len(sample), 2 * HIDDEN) for sample in samples]
    same(got, [alone(target, sample) for sample in samples])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kept_states_are_those_computed(tmp_path, source, samples, dtype):
    cache = FeatureCache(tmp_path, source, dtype=dtype, shard_tokens=50)
    cache.fill(samples)
    got = cache.states(samples)
    assert got[0][0].dtype == dtype
    for (features, final), (wanted_features, wanted_final) in zip(got, source.states(samples), strict=True):
        tolerance = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
        torch.testing.assert_close(features.float(), wanted_features, **tolerance)
        torch.testing.assert_close(final.float(), wanted_final, **tolerance)


def test_a_target_without_boundaries_keeps_final_states(tmp_path, target, samples):
    cache = FeatureCache(tmp_path, OnTheFly(target, ()), dtype=torch.float32)
    features, final = cache.states(samples)[3]
    assert features.shape == (len(samples[3]), 0) and final.shape == (len(samples[3]), HIDDEN)


def test_shards_hold_about_as_many_tokens_as_asked(tmp_path, source, samples):
    FeatureCache(tmp_path, source, shard_tokens=50).fill(samples)
    lines = next(tmp_path.rglob("index.jsonl")).read_text().splitlines()
    sizes = [max(end for _, end in json.loads(line)["samples"].values()) for line in lines if line]
    assert len(sizes) > 2 and max(sizes) <= 50 and sum(sizes) == sum(map(len, samples))


def test_what_is_kept_is_not_computed_again(tmp_path, source, samples, forwards):
    FeatureCache(tmp_path, source, shard_tokens=50).fill([*samples, samples[0]])
    assert forwards.texts == len(samples)
    again = FeatureCache(tmp_path, source, shard_tokens=50)
    again.fill(samples)
    again.states(samples)
    assert forwards.texts == len(samples)


def test_what_is_not_kept_is_computed_when_asked_for(tmp_path, source, samples, forwards):
    cache = FeatureCache(tmp_path, source, dtype=torch.float32)
    cache.fill(samples[:4])
    same(cache.states(samples), source.states(samples))
    assert len(cache.places) == len(samples)


def test_a_run_that_was_killed_loses_the_shard_under_way(tmp_path, source, samples, forwards):
    cache = FeatureCache(tmp_path, source, dtype=torch.float32, shard_tokens=50)
    cache.fill(samples)
    index = cache.folder / "index.jsonl"
    lines = [line for line in index.read_text().splitlines() if line]
    index.write_text("\n".join(lines)[:-10])  # the last line is torn
    (cache.folder / f"{'0' * 16}.safetensors.77.tmp").write_bytes(b"half a shard")
    lost = len(json.loads(lines[-1])["samples"])
    before = forwards.texts
    again = FeatureCache(tmp_path, source, dtype=torch.float32, shard_tokens=50)
    assert len(again.missing(samples)) == lost
    again.fill(samples)
    assert forwards.texts == before + lost
    assert not FeatureCache(tmp_path, source, dtype=torch.float32).missing(samples)
    same(again.states(samples), source.states(samples))


def test_a_shard_that_was_deleted_is_made_anew(tmp_path, source, samples):
    cache = FeatureCache(tmp_path, source, dtype=torch.float32, shard_tokens=50)
    cache.fill(samples)
    next(cache.folder.glob("*.safetensors")).unlink()
    same(FeatureCache(tmp_path, source, dtype=torch.float32).states(samples), source.states(samples))


def test_a_broken_shard_is_told_in_one_line(tmp_path, source, samples):
    cache = FeatureCache(tmp_path, source)
    cache.fill(samples)
    shard = next(cache.folder.glob("*.safetensors"))
    shard.write_bytes(b"broken")
    with pytest.raises(DataError, match=f"cannot read '{shard}': .*; delete it to have it made anew"):
        cache.states(samples)


def test_a_full_disk_is_told_in_one_line_and_what_was_written_stays(tmp_path, source, samples, monkeypatch):
    cache, written, save = FeatureCache(tmp_path, source, shard_tokens=50), [], feature_cache.save_file

    def refusing(tensors, path):
        if written:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        written.append(path)
        save(tensors, path)

    monkeypatch.setattr(feature_cache, "save_file", refusing)
    with pytest.raises(DataError, match=r"cannot write to feature .*No space left on device; the states of \d+ s"):
        cache.fill(samples)
    assert list(cache.folder.glob("*.tmp")) == []
    monkeypatch.undo()
    kept = FeatureCache(tmp_path, source)
    assert 0 < len(kept.places) < len(samples)
    kept.fill(samples)
    assert not kept.missing(samples)


def test_states_of_other_settings_stay_apart(tmp_path, target, source, samples):
    FeatureCache(tmp_path, source).fill(samples)
    for other, dtype in ((OnTheFly(target, (2, 0)), torch.bfloat16), (source, torch.float32)):
        assert len(FeatureCache(tmp_path, other, dtype=dtype).missing(samples)) == len(samples)


def test_two_processes_fill_one_folder(tmp_path, source, samples):
    first, second = (FeatureCache(tmp_path, source, dtype=torch.float32, shard_tokens=50) for _ in range(2))
    first.fill(samples[::2])
    second.fill(samples[1::2])
    assert not FeatureCache(tmp_path, source, dtype=torch.float32).missing(samples)


def test_progress_is_told(tmp_path, source, samples):
    told = []
    FeatureCache(tmp_path, source, shard_tokens=50).fill(samples, lambda *now: told.append(now))
    assert told[-1] == (len(samples), len(samples), sum(map(len, samples)))
    assert [done for done, _, _ in told] == sorted({done for done, _, _ in told})


def test_a_folder_that_cannot_be_made_is_refused(tmp_path, source):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write to feature cache"):
        FeatureCache(tmp_path / "file", source)
