"""Every loss against its formula, written out token by token."""

import math

import pytest
import torch

from foredraft.training.losses import LOSSES, OUTSIDE, Law

ROWS, WIDTH = 5, 11


def law_and_logits(scale: float = 3.0, dtype: torch.dtype = torch.float32) -> tuple[Law, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    teacher, student = (scale * torch.randn(ROWS, WIDTH, generator=generator) for _ in range(2))
    return Law(teacher.to(dtype), torch.arange(ROWS)), student.to(dtype)


def distribution(logits: torch.Tensor) -> list[float]:
    powers = [math.exp(value) for value in logits.tolist()]
    return [power / sum(powers) for power in powers]


FORMULAS = {
    "kl": lambda p, q, token: sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)),
    "reverse_kl": lambda p, q, token: sum(b * math.log(b / a) for a, b in zip(p, q, strict=True)),
    "tv": lambda p, q, token: sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2,
    "ce": lambda p, q, token: -math.log(q[token]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_its_formula(name):
    law, logits = law_and_logits()
    expected = [FORMULAS[name](distribution(law.logits[row]), distribution(logits[row]), row) for row in range(ROWS)]
    torch.testing.assert_close(LOSSES[name](logits, law), torch.tensor(expected), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["kl", "reverse_kl", "tv"])
def test_the_target_itself_costs_nothing(name):
    law, _ = law_and_logits()
    torch.testing.assert_close(LOSSES[name](law.logits.clone(), law), torch.zeros(ROWS), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", LOSSES)
def test_a_token_of_no_probability_costs_no_nan(name):
    law, logits = law_and_logits(scale=100.0)
    logits.requires_grad_()
    LOSSES[name](logits, law).sum().backward()
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("name", LOSSES)
def test_16_bit_logits_are_summed_in_32(name):
    law, logits = law_and_logits(dtype=torch.bfloat16)
    wide = Law(law.logits.float(), law.tokens)
    loss = LOSSES[name](logits, law)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, LOSSES[name](logits.float(), wide))


def test_a_token_the_drafter_cannot_say_teaches_nothing():
    law, logits = law_and_logits()
    law.tokens[2] = OUTSIDE
    assert LOSSES["ce"](logits, law)[2] == 0


def test_the_forward_divergence_has_the_gradient_of_soft_labels():
    law, logits = law_and_logits()
    logits.requires_grad_()
    LOSSES["kl"](logits, law).sum().backward()
    torch.testing.assert_close(logits.grad, logits.detach().softmax(-1) - law.logits.softmax(-1))
