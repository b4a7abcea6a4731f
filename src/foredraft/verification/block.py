"""Block verification of a chain: how much of it to keep is decided for the chain as a whole."""

from torch import Tensor

from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import Verdict
from foredraft.verification.draft_law import acceptance, draft_law
from foredraft.verification.draws import Draws, Law
from foredraft.verification.residual import excess, normalised, reach_after


def block(tree: DraftTree, law: Law, draws: Draws) -> Verdict:
    """Keep the longest prefix whose own coin says so, never fewer tokens in expectation than the standard rule.

    With reach_0 = 1 and reach_i = min(1, reach_{i-1} p(x_i) / q(x_i)), a prefix of i tokens is kept with chance
    h_i = Z_i / (Z_i + 1 - reach_i), where Z_i = sum(max(reach_i p - q, 0)) at its end, and the whole chain with
    h = reach. The longest kept prefix wins, also over shorter ones that were refused; below it the target draws from
    norm(max(reach p - q, 0)) (Sun et al. 2024, 2403.10444). Exact for chains drawn from q.
    """
    assert tree.is_chain, "block verification verifies chains"
    targets = [law(row) for row in range(len(tree))]
    drafts = [draft_law(tree, row, 0, target) for row, target in enumerate(targets)]
    reaches = reaches_of(tree, targets, drafts)
    kept = longest_kept(targets, drafts, reaches, draws)
    path = list(range(kept))
    if kept == len(tree):
        return Verdict(path, draws.token(kept))
    uncovered = excess(targets[kept], drafts[kept], reaches[kept])
    return Verdict(path, draws.residual(normalised(uncovered, targets[kept])))


def reaches_of(tree: DraftTree, targets: list[Tensor], drafts: list[Tensor]) -> list[float]:
    """Reach of every prefix, [N + 1]."""
    reaches = [1.0]
    for token, target, draft in zip(tree.tokens, targets, drafts, strict=True):
        reaches.append(acceptance(target, draft, token, reaches[-1]))
    return reaches


def longest_kept(targets: list[Tensor], drafts: list[Tensor], reaches: list[float], draws: Draws) -> int:
    """Length of the longest prefix kept; coins are independent, so those below the first success need no throw."""
    length = len(targets)
    if draws.coin(reaches[length]):
        return length
    for i in range(length - 1, 0, -1):
        uncovered = excess(targets[i], drafts[i], reaches[i]).sum().item()
        if draws.coin(reach_after(uncovered, reaches[i])):
            return i
    return 0
