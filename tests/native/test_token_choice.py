"""Tokens that a run chooses are those of its logits, whether these leave it or not."""

from dataclasses import replace

import foredraft_native as native
import pytest
import torch
from reference_program import choose as reference_choice
from small_decoder import KERNELS, VOCABULARY, Given, SmallDecoder, native_decoder, text

TOKENS = torch.randint(VOCABULARY, (20,), generator=torch.Generator().manual_seed(9)).tolist()
ROWS = replace(text(TOKENS), wanted=[3, 7, 8, 19])
COUNT = len(ROWS.wanted)
KEYS = native.position_keys([5, 5, 6, 7], [4, 8, 9, 20])
ASKED = {"likeliest": (None, None), "drawn": (None, KEYS), "divided": ([0.5, 0.7, 1.0, 3.0], KEYS)}


def chosen(decoder: SmallDecoder, given: Given, asked: tuple, logits: torch.Tensor | None) -> list[int]:
    numbers = (given.tokens, given.positions, given.write)
    return decoder.program.run(
        decoder.cache, *numbers, given.segments, given.wanted, [], [], logits, [], None, [], choice=asked
    )


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("kernels", KERNELS)
def test_tokens_are_those_of_the_logits(kernels, dtype, name):
    decoder = native_decoder(kernels, dtype)
    logits, _ = decoder.run(ROWS)
    divisors, keys = ASKED[name]
    wanted = native.choose(logits, divisors, keys)
    assert chosen(decoder, ROWS, ASKED[name], None) == wanted
    given = torch.zeros_like(logits)
    assert chosen(decoder, ROWS, ASKED[name], given) == wanted
    assert torch.equal(given, logits)
    assert wanted == reference_choice(logits, divisors, keys)


def test_without_a_choice_nothing_is_told():
    assert native_decoder("portable", "bf16").run(ROWS)[1] == []
    decoder = native_decoder("portable", "bf16")
    assert chosen(decoder, ROWS, None, torch.zeros(COUNT, VOCABULARY, dtype=torch.bfloat16)) is None


def test_a_run_that_wants_no_rows_chooses_nothing():
    assert chosen(native_decoder("portable", "bf16"), replace(ROWS, wanted=[]), (None, None), None) == []


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ((None, KEYS[:2]), "every wanted row needs a key"),
        (([1.0], KEYS), "every wanted row needs a divisor"),
        (([1.0] * COUNT, None), "divisors are for rows with keys"),
        (([1.0, 0.0, 1.0, 1.0], KEYS), "above 0"),
        (([1.0, float("nan"), 1.0, 1.0], KEYS), "above 0"),
        ((None,), "divisors and keys"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(asked, message):
    with pytest.raises(ValueError, match=message):
        chosen(native_decoder("portable", "bf16"), ROWS, asked, None)


def test_logits_are_needed_where_nothing_is_chosen():
    with pytest.raises(ValueError, match="pass a tensor"):
        chosen(native_decoder("portable", "bf16"), ROWS, None, None)
