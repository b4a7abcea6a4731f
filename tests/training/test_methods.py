"""Every method against its definition, written out row by row with drafting's own step-by-step forward."""

import math

import pytest
import torch
from tiny_training import VOCABULARY, batch_of, method_for, random_samples, tiny_target
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from foredraft.training.batches import Batch
from foredraft.training.methods.dflash import places_of
from foredraft.training.methods.lesson import lesson_of
from foredraft.training.methods.method import Findings, Method, StepLosses
from foredraft.training.target_network import TargetNetwork

SMALL = {
    "eagle3": {"draft_vocabulary": 16, "ttt_steps": 3, "intermediate_size": 48},
    "eagle1": {"intermediate_size": 48, "measured_steps": 3},
    "medusa": {"medusa_heads": 3, "draft_vocabulary": 16},
    "mtp": {"mtp_steps": 3, "intermediate_size": 48},
    "dflash": {"block_size": 4, "anchors": 5, "layers": 2, "intermediate_size": 48},
    "draft": {"hidden_size": 16, "layers": 1, "heads": 2},
}


@pytest.fixture(scope="module")
def target() -> TargetNetwork:
    return tiny_target()


@pytest.fixture(scope="module")
def samples():
    return random_samples(6)


class Cache:
    """What drafting sees: everything stored so far, then its own call's rows up to each."""

    def __init__(self):
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        for kept, new in ((self.keys, key), (self.values, value)):
            kept[layer] = torch.cat([kept[layer], new], 2) if layer in kept else new
        groups = query.shape[1] // key.shape[1]
        keys, values = (kept[layer].repeat_interleave(groups, 1) for kept in (self.keys, self.values))
        rows, total = query.shape[2], keys.shape[2]
        later = torch.ones(rows, total, dtype=torch.bool).triu(total - rows + 1)
        scores = (query @ keys.mT / query.shape[-1] ** 0.5).masked_fill(later, -torch.inf)
        return (scores.softmax(-1) @ values).transpose(1, 2).flatten(2)


def divergence(law: Tensor, logits: Tensor) -> Tensor:
    return (law * (law.log() - logits.log_softmax(-1))).sum()


class Reference:
    """Sums a method's loss row by row."""

    def __init__(self, method: Method, target: TargetNetwork, batch: Batch, positions: int):
        self.method, self.batch = method, batch
        self.laws = [target.module(input_ids=tokens[None]).logits[0].softmax(-1) for tokens in batch.tokens]
        self.total, self.correct, self.counted = torch.zeros(()), [0] * positions, [0] * positions

    def teaches(self, text: int, row: int) -> bool:
        return 0 <= row < self.batch.tokens.shape[1] - 1 and bool(self.batch.written[text, row + 1])

    def judge(self, position: int, weight: float, text: int, row: int, logits: Tensor, ids: Tensor | None = None):
        """Count row `row` of a text, whose next token `logits` guess."""
        self.counted[position] += 1
        law = self.laws[text][row]
        best = int(law.argmax())
        if ids is not None:
            if best not in ids.tolist():
                return
            law, best = law[ids] / law[ids].sum(), ids.tolist().index(best)
        self.total = self.total + weight * divergence(law, logits)
        self.correct[position] += int(logits.argmax()) == best

    def equals(self, losses: StepLosses, weight: float) -> None:
        torch.testing.assert_close(losses.total, self.total, atol=1e-4, rtol=1e-5)
        assert float(losses.weight) == pytest.approx(weight)
        assert losses.correct.tolist() == self.correct and losses.counted.tolist() == self.counted


def drafted(head, features: Tensor, tokens: Tensor, row: int, steps: int) -> list[Tensor]:
    """Outputs of a chain drafted from row `row` of one text, told the text's own tokens; `features` [1, T, ...]."""
    cache, outputs = Cache(), []
    hidden, read, positions = head.fuse(features[:, : row + 1]), tokens[1 : row + 2], torch.arange(row + 1)
    for step in range(steps):
        if not len(read):
            break
        outputs.append(head(read[None], hidden, positions[None], cache)[:, -1:])
        hidden, read, positions = (
            head.fed_back(outputs[-1]),
            tokens[row + 2 + step :][:1],
            torch.tensor([row + 1 + step]),
        )
    return outputs


def unrolled_reference(method: Method, target: TargetNetwork, batch: Batch, features: Tensor, weights: list[float]):
    reference = Reference(method, target, batch, len(weights))
    ids = getattr(method.module, "target_ids", None)
    for text, tokens in enumerate(batch.tokens):
        for row in range(len(tokens) - 2):
            outputs = drafted(method.module, features[text : text + 1], tokens, row, len(weights))
            for step, out in enumerate(outputs):
                if reference.teaches(text, row + 1 + step):
                    logits = method.module.logits(out)[0, 0]
                    reference.judge(step, weights[step], text, row + 1 + step, logits, ids)
    return reference


def test_eagle3_unrolls_what_it_drafts(target, samples):
    method = method_for("eagle3", target, samples, **SMALL["eagle3"])
    batch = batch_of(method, target, samples)
    reference = unrolled_reference(method, target, batch, batch.features, [1.0, 0.8, 0.64])
    losses = method.loss(batch, 0)
    assert sum(reference.correct) > 0
    reference.equals(losses, reference.counted[0])
    ours, theirs = (
        torch.autograd.grad(total, list(method.module.parameters())) for total in (losses.total, reference.total)
    )
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("feed_normed", [False, True])
def test_mtp_unrolls_what_it_drafts(target, samples, feed_normed):
    method = method_for("mtp", target, samples, feed_normed=feed_normed, **SMALL["mtp"])
    batch = batch_of(method, target, samples)
    weights = [0.6**step / (1 + 0.6 + 0.36) for step in range(3)]
    reference = unrolled_reference(method, target, batch, batch.final, weights)
    reference.equals(method.loss(batch, 0), reference.counted[0])


def test_eagle1_predicts_the_next_state_and_through_it_the_token(target, samples):
    method = method_for("eagle1", target, samples, **SMALL["eagle1"])
    batch = batch_of(method, target, samples)
    reference = unrolled_reference(method, target, batch, batch.final, [0.1])
    for text, tokens in enumerate(batch.tokens):
        for row in range(len(tokens) - 2):
            if reference.teaches(text, row + 1):
                out = drafted(method.module, batch.final[text : text + 1], tokens, row, 1)[0]
                reference.total = reference.total + smooth_l1_loss(out[0, 0], batch.final[text, row + 1])
    reference.equals(method.loss(batch, 0), reference.counted[0])


def test_eagle1_is_measured_over_a_chain(target, samples):
    method = method_for("eagle1", target, samples, **SMALL["eagle1"])
    batch = batch_of(method, target, samples)
    with torch.no_grad():
        losses = method.loss(batch, 0)
        reference = unrolled_reference(method, target, batch, batch.final, [0.0, 0.0, 0.0])
    assert losses.counted.tolist() == reference.counted and losses.correct.tolist() == reference.correct


def test_eagle1_reads_noisy_features_only_in_training(target, samples):
    plain, noisy = (method_for("eagle1", target, samples, feature_noise=noise) for noise in (0.0, 0.5))
    batch = batch_of(plain, target, samples)
    assert plain.loss(batch, 0).total != noisy.loss(batch, 0).total != noisy.loss(batch, 1).total
    with torch.no_grad():
        assert plain.loss(batch, 0).total == noisy.loss(batch, 0).total
    moved = noisy.noisy(batch, 0) - batch.final
    assert 0.2 < float(moved.abs().max()) <= 0.25


def test_a_medusa_head_guesses_its_own_distance_ahead(target, samples):
    method = method_for("medusa", target, samples, **SMALL["medusa"])
    batch = batch_of(method, target, samples)
    for block in method.module.blocks:
        torch.nn.init.normal_(block[0].linear.weight, std=0.2)  # heads that differ
    reference = Reference(method, target, batch, 3)
    logits = method.module(batch.final)  # [heads, B, T, V]
    for text in range(len(batch.tokens)):
        for row in range(batch.tokens.shape[1]):
            for head in range(3):
                ahead = row + 1 + head
                if reference.teaches(text, ahead):
                    reference.judge(head, 0.8**head, text, ahead, logits[head, text, row], method.module.target_ids)
    reference.equals(method.loss(batch, 0), reference.counted[0])


def test_medusa_stores_the_accuracy_of_each_rank(target, samples):
    method = method_for("medusa", target, samples, medusa_heads=2, draft_vocabulary=VOCABULARY)
    batch = batch_of(method, target, samples)
    with torch.no_grad():
        losses = method.loss(batch, 0)
        lesson = lesson_of(batch, target.logits, method.vocabulary)
        first = lesson.from_row(1)
        logits = method.module(batch.final)[0, first.text, first.row - 1]
    order = logits.argsort(-1, descending=True)
    expected = [int((order[:, rank] == first.best).sum()) for rank in range(10)]
    assert losses.ranks[0].tolist() == expected and sum(expected) > 0
    shares = tuple(tuple(row) for row in (losses.ranks / losses.counted[:, None]).tolist())
    method.measured(Findings(loss=0.0, agreement=(), rank_shares=shares))
    assert method.head().config.accuracies == shares


@pytest.mark.parametrize("causal", [False, True])
def test_a_dflash_block_sees_what_it_will_when_it_drafts(target, samples, causal):
    method = method_for("dflash", target, samples, causal=causal, **SMALL["dflash"])
    batch, head = batch_of(method, target, samples), method.module
    lesson = lesson_of(batch, target.logits, method.vocabulary)
    anchors = method.anchors(batch, places_of(lesson, batch.tokens), 0)
    reference = Reference(method, target, batch, 3)
    for text, own in enumerate(anchors.tolist()):
        for anchor in (row for row in own if row):
            context = head.context(head.fuse(batch.features[text : text + 1, :anchor]), torch.arange(anchor)[None])
            out = head(*block_at(batch, text, anchor, head.config), seen(context, causal=causal))
            for ahead in range(1, 4):
                if reference.teaches(text, anchor + ahead - 1):
                    weight, logits = math.exp(-(ahead - 1) / 4), head.logits(out)[0, ahead]
                    reference.judge(ahead - 1, weight, text, anchor + ahead - 1, logits)
    weight = sum(count * math.exp(-ahead / 4) for ahead, count in enumerate(reference.counted))
    reference.equals(method.loss(batch, 0), weight)


def block_at(batch: Batch, text: int, anchor: int, config) -> tuple[Tensor, Tensor]:
    tokens = torch.full((1, config.block_size), config.mask_token_id)
    tokens[0, 0] = batch.tokens[text, anchor]
    return tokens, torch.arange(anchor, anchor + config.block_size)[None]


def seen(context: list[tuple[Tensor, Tensor]], *, causal: bool):
    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = (torch.cat([old, new], 2) for old, new in zip(context[layer], (key, value), strict=True))
        keys, values = (part.repeat_interleave(query.shape[1] // key.shape[1], 1) for part in (keys, values))
        scores = query @ keys.mT / query.shape[-1] ** 0.5
        if causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(keys.shape[2] - key.shape[2] + 1)
            scores = scores.masked_fill(later, -torch.inf)
        return (scores.softmax(-1) @ values).transpose(1, 2).flatten(2)

    return attend


def test_dflash_anchors_are_written_rows_that_change_with_the_step(target, samples):
    method = method_for("dflash", target, samples, **SMALL["dflash"])
    batch = batch_of(method, target, samples)
    places = places_of(lesson_of(batch, target.logits, method.vocabulary), batch.tokens)
    first, again, later = (method.anchors(batch, places, step) for step in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, later)
    for text, row in (first > 0).nonzero().tolist():
        anchor = int(first[text, row])
        assert anchor >= 1 and batch.written[text, anchor + 1]


@pytest.mark.parametrize("loss", ["kl", "reverse_kl", "tv"])
def test_a_draft_model_learns_the_law_of_each_row(target, samples, loss):
    method = method_for("draft", target, samples, loss=loss, **SMALL["draft"])
    batch = batch_of(method, target, samples)
    reference, logits = Reference(method, target, batch, 1), method.module(input_ids=batch.tokens).logits
    for text in range(len(batch.tokens)):
        for row in range(batch.tokens.shape[1]):
            if reference.teaches(text, row):
                reference.judge(0, float(loss == "kl"), text, row, logits[text, row])
                p, q = reference.laws[text][row], logits[text, row].softmax(-1)
                other = {"reverse_kl": (q * (q / p).log()).sum(), "tv": (p - q).abs().sum() / 2}
                reference.total = reference.total + other.get(loss, 0.0)
    losses = method.loss(batch, 0)
    torch.testing.assert_close(losses.total, reference.total, atol=1e-4, rtol=1e-5)
    assert losses.counted.tolist() == reference.counted * 5 and losses.correct.tolist() == reference.correct * 5


@pytest.mark.parametrize("name", SMALL)
def test_batches_add_up(target, samples, name):
    method = method_for(name, target, samples, **SMALL[name])
    whole = method.loss(batch_of(method, target, samples), 4)
    parts = [method.loss(batch_of(method, target, part), 4) for part in (samples[:1], samples[1:4], samples[4:])]
    torch.testing.assert_close(whole.total, sum(part.total for part in parts), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(whole.weight, sum(part.weight for part in parts))
    assert torch.equal(whole.counted, sum(part.counted for part in parts))
    assert torch.equal(whole.correct, sum(part.correct for part in parts))


@pytest.mark.parametrize("name", SMALL)
def test_recomputed_logits_change_no_gradient(target, samples, name):
    gradients = []
    for recompute in (False, True):
        method = method_for(name, target, samples, recompute=recompute, **SMALL[name])
        method.loss(batch_of(method, target, samples), 0).total.backward()
        gradients.append([weight.grad for weight in method.module.parameters()])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("name", SMALL)
def test_a_batch_that_teaches_nothing_has_a_zero_loss(target, samples, name):
    method = method_for(name, target, samples, **SMALL[name])
    batch = batch_of(method, target, samples)
    batch.written.zero_()
    losses = method.loss(batch, 0)
    losses.total.backward()
    assert float(losses.total.detach()) == 0 and float(losses.weight) == 0 and losses.counted.sum() == 0


@pytest.mark.parametrize("name", SMALL)
def test_only_the_head_is_trained(target, samples, name):
    method = method_for(name, target, samples, **SMALL[name])
    before = [weight.clone() for weight in target.module.parameters()]
    own = {id(weight) for weight in target.module.parameters()}
    method.loss(batch_of(method, target, samples), 0).total.backward()
    assert not any(id(weight) in own for weight in method.module.parameters())
    assert all(weight.grad is None for weight in target.module.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, target.module.parameters(), strict=True))
    assert all(weight.grad is not None for weight in method.module.parameters())


@pytest.mark.parametrize("name", SMALL)
def test_padding_rows_of_the_target_are_never_learnt(samples, name):
    totals = []
    for scale in (1.0, 100.0):  # padding that would be likeliest everywhere
        padded = tiny_target(padding=5)
        padded.module.get_output_embeddings().weight[VOCABULARY:] *= scale
        whole = {"draft_vocabulary": VOCABULARY} if "draft_vocabulary" in SMALL[name] else {}
        options = SMALL[name] | whole | ({"mask_token_id": 3} if name == "dflash" else {})
        method = method_for(name, padded, samples, **options)
        losses = method.loss(batch_of(method, padded, samples), 0)
        totals.append(float(losses.total.detach()))
    assert totals[0] == pytest.approx(totals[1])
