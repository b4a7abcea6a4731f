"""Samples know their prompts, and the split keeps a prompt on one side whatever is read beside it."""

import pytest
from tiny_data import random_samples

from foredraft.core.errors import ConfigError
from foredraft.training.samples import Sample, Split


def test_a_prompt_ends_before_the_first_written_token():
    assert list(Sample([5, 6, 7, 8], [False, False, True, False], "here:1").prompt) == [5, 6]


def test_a_text_that_is_written_as_a_whole_is_its_own_prompt():
    assert list(Sample([5, 6], [True, True], "here:1").prompt) == [5, 6]


def test_the_split_keeps_back_about_its_share_and_loses_nothing():
    samples = random_samples(2000)
    split = Split.of(samples, 0.1)
    assert 140 < len(split.held_out) < 260
    assert sorted(map(id, split.training + split.held_out)) == sorted(map(id, samples))


def test_a_sample_stays_on_its_side_whatever_is_read_beside_it():
    samples = random_samples(300)
    everything = {sample.source for sample in Split.of(samples, 0.2).held_out}
    alone = {sample.source for sample in samples if Split.of([sample], 0.2).held_out}
    assert everything == alone


def test_a_larger_share_keeps_what_a_smaller_one_kept_back():
    samples = random_samples(300)
    small, large = ({sample.source for sample in Split.of(samples, share).held_out} for share in (0.1, 0.3))
    assert small < large


def test_answers_to_one_prompt_stay_together():
    for prompt in range(50):
        pair = [Sample([prompt, 7, answer], [False, False, True], "here:1") for answer in (1, 2)]
        assert {len(side) for side in (Split.of(pair, 0.5).training, Split.of(pair, 0.5).held_out)} == {0, 2}


def test_a_split_of_nothing_keeps_everything():
    assert len(Split.of(random_samples(20), 0.0).training) == 20


def test_a_share_of_all_is_refused():
    with pytest.raises(ConfigError, match="held_out is 1.0; it must be at least 0 and less than 1"):
        Split.of(random_samples(3), 1.0)
