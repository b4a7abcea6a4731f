"""From one row of guesses a depth to a draft tree, as heads give them that guess all depths at once.

No drafted token enters these rows: the law of a depth is the same below every node above it. It is a valid law of a
sampled draft all the same, being fixed before its token is drawn.
"""

from dataclasses import dataclass
from functools import cached_property
from math import exp, inf

import torch
from torch import Tensor

from foredraft.core.draft_tree import ROOT, DraftTree
from foredraft.core.static_tree import StaticTree
from foredraft.drafters.draft_choice import Choice, choices_for, plainly_chosen
from foredraft.drafters.drafter import DraftTask
from foredraft.drafters.level_ranking import PlainRows, plainly_ranked, ranked, scattered


@dataclass(eq=False)
class Marginals:
    """One request's guesses.

    Attributes:
        task: What to draft.
        logits: One row for each depth, the first token after the root first, [D, V_draft].
        target_ids: Target id of each logit, [V_draft]; none where the vocabularies are one.
        drafter: Name of the drafter, for its nodes.
        width: Most guesses of one depth that are looked at.
    """

    task: DraftTask
    logits: Tensor
    target_ids: Tensor | None
    drafter: str
    width: int

    @property
    def sampled(self) -> bool:
        """Whether tokens are drawn from their laws, rather than taken by rank."""
        return self.task.speculation.draft_sampling == "probabilistic"

    @cached_property
    def choice(self) -> Choice:
        return choices_for(self.task)

    @cached_property
    def wide(self) -> Tensor:
        """Logits as wide as the target's, [D, V]; -inf for tokens that are not guessed at all."""
        return scattered(self.logits, self.target_ids, self.task.sampler.vocabulary.rows)

    @cached_property
    def ordered(self) -> tuple[Tensor, Tensor]:
        """Processed scores and the values to take the largest of, [D, V] each.

        Processors that look at the text before a token see the likeliest guesses as drafted: the beginning that most
        accepted paths share.
        """
        sampler, depths = self.task.sampler, range(len(self.logits))
        if not sampler.processors:
            scores = sampler.scores(self.wide, [[] for _ in depths])
            return scores, self.choice.order(scores, list(depths), list(depths))[0]
        scores, values, prefix = [], [], []
        for depth in depths:
            scores.append(self.scores_after(prefix))
            values.append(self.choice.order(scores[-1], [depth], [depth])[0])
            prefix = [*prefix, values[-1].argmax().item()]
        return torch.cat(scores), torch.cat(values)

    def scores_after(self, drafted: list[int]) -> Tensor:
        """Processed scores of the guess after some drafted tokens, [1, V]."""
        depth = len(drafted)
        return self.task.sampler.scores(self.wide[depth : depth + 1], [drafted])

    @cached_property
    def best(self) -> tuple[list[list[float]], list[list[int]]]:
        """Log-chances and tokens of the best guesses of each depth, [D][width] each, falling."""
        if plainly_chosen(self.task):
            rows = PlainRows(self.task, self.logits, [*range(len(self.logits))])
            return plainly_ranked([rows], self.width, self.target_ids)
        return ranked([self.ordered[1].float()], self.width)

    @property
    def gains(self) -> list[list[float]]:
        """Log-chance of the best guesses of each depth to be the token that comes, [D][width], falling.

        Of a greedy request it is the head's own log-probability. Under the target's noise g the token will be the
        argmax of log p + g, and q is what is known of p: were each log q(v) off by an independent Gumbel error, guess v
        would win with chance softmax(log q + g). So values are normalised as if they were logits; as they are, they
        would rank depths by the luck of their noise. Tokens still to be drawn have but their law.
        """
        return ranked([self.logits], self.width)[0] if self.sampled else self.best[0]

    def filled(self, shape: StaticTree) -> DraftTree:
        """`shape` with tokens, by rank or drawn."""
        return self.drawn(shape) if self.sampled else self.ranked(shape)

    def ranked(self, shape: StaticTree) -> DraftTree:
        """Each node takes the guess of its rank; where that is forbidden or none, what hangs below goes with it."""
        gains, tokens = self.best
        tree, place = DraftTree(chances=[]), {ROOT: ROOT}
        deepest = self.sure_depth() if shape.width == 1 else len(tokens)
        for node, (parent, rank) in enumerate(zip(shape.parents, shape.ranks, strict=True)):
            row = shape.depths[node] - 1
            exists = row < deepest and rank < len(tokens[row]) and gains[row][rank] > -inf
            if parent in place and exists:
                place[node] = tree.add(tokens[row][rank], place[parent], self.drafter)
                tree.chances.append(exp(gains[row][rank]))
        return tree

    def sure_depth(self) -> int:
        """How far a chain goes: the first guess below the threshold is its last, being free to verify."""
        threshold = self.task.speculation.draft_confidence_threshold
        if not threshold:
            return len(self.logits)
        scores, values = self.ordered
        own = scores.float().softmax(-1).gather(-1, values.argmax(-1, keepdim=True))[:, 0]
        return next((depth for depth, share in enumerate(own.tolist(), start=1) if share < threshold), len(own))

    def drawn(self, shape: StaticTree) -> DraftTree:
        """Each node's children are drawn from its law without replacement, as many as it has in `shape`.

        Which nodes there are was settled before any token was drawn, or what was dropped would bias the rest.
        """
        tree, place = DraftTree(laws=[None], replacement=False), {ROOT: ROOT}
        for parent, children in shape.families:
            if parent in place and (shape.width > 1 or not self.unsure(tree)):
                drawn = self.draw(tree, place[parent], len(children))
                place.update(zip(children, drawn, strict=False))
        return tree

    def draw(self, tree: DraftTree, parent: int, count: int) -> list[int]:
        """Hang up to `count` drawn tokens below `parent`; fewer where its law knows fewer."""
        path = tree.path_tokens(parent)
        values, [law] = self.choice.order(self.scores_after(path), [len(path)], [parent + 1])
        tree.laws[parent + 1] = law
        best = values[0].topk(min(count, values.shape[-1]))
        pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        nodes = [tree.add(token, parent, self.drafter) for value, token in pairs if value > -inf]
        tree.laws += [None] * len(nodes)
        return nodes

    def unsure(self, chain: DraftTree) -> bool:
        """Whether the chain's last token was less likely than the threshold."""
        threshold = self.task.speculation.draft_confidence_threshold
        if not threshold or not len(chain):
            return False
        return chain.laws[-2][chain.tokens[-1]].item() < threshold
