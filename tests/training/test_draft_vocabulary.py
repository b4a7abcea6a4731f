"""The draft vocabulary holds what is written most, and what must be in it."""

import pytest
from tiny_data import random_samples

from foredraft.core.errors import ConfigError
from foredraft.heads.shared import vocabulary_maps
from foredraft.training.draft_vocabulary import choose_vocabulary, coverage
from foredraft.training.samples import Sample


def written(tokens: list[int]) -> Sample:
    return Sample(tokens, [True] * len(tokens), "here:1")


def test_the_tokens_written_most_are_chosen_in_ascending_order():
    samples = [written([9, 9, 9, 4, 4]), written([9, 7, 7, 7, 2])]
    assert choose_vocabulary(samples, 3, 10).tolist() == [4, 7, 9]


def test_of_two_written_as_often_the_lower_id_is_chosen():
    assert choose_vocabulary([written([8, 3, 5, 5])], 2, 10).tolist() == [3, 5]


def test_only_written_tokens_count():
    sample = Sample([6, 6, 6, 1, 2], [False, False, False, True, True], "here:1")
    assert choose_vocabulary([sample], 2, 10).tolist() == [1, 2]


def test_special_tokens_are_always_in():
    assert choose_vocabulary([written([1, 1, 2, 2, 3])], 3, 10, always=(9, 9)).tolist() == [1, 2, 9]


def test_a_size_beyond_what_is_written_takes_the_lowest_ids():
    ids = choose_vocabulary([written([5])], 3, 10)
    assert ids.tolist() == [0, 1, 5]
    offsets, member = vocabulary_maps(ids, 10)
    assert offsets.tolist() == [0, 0, 3] and member.nonzero().flatten().tolist() == [0, 1, 5]


def test_coverage_is_the_share_of_written_tokens():
    samples = [written([9, 9, 9, 4]), Sample([1, 1, 4, 4], [False, False, True, True], "here:2")]
    assert coverage(samples, choose_vocabulary(samples, 1, 10), 10) == 0.5
    assert coverage(samples, choose_vocabulary(samples, 2, 10), 10) == 1.0


def test_counting_in_parts_changes_nothing(monkeypatch):
    samples = random_samples(50)
    whole = choose_vocabulary(samples, 40, 300)
    monkeypatch.setattr("foredraft.training.draft_vocabulary.COUNTED_AT_ONCE", 7)
    assert choose_vocabulary(samples, 40, 300).tolist() == whole.tolist()


@pytest.mark.parametrize(("size", "always"), [(0, ()), (11, ()), (1, (2, 3))])
def test_a_size_out_of_range_is_refused(size, always):
    with pytest.raises(ConfigError, match=f"draft_vocabulary is {size}"):
        choose_vocabulary([written([1, 2])], size, 10, always)
