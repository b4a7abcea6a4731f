"""Standard speculative sampling along a chain."""

from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import Verdict
from foredraft.verification.draft_law import acceptance, draft_law
from foredraft.verification.draws import Draws, Law
from foredraft.verification.residual import excess, normalised


def standard(tree: DraftTree, law: Law, draws: Draws) -> Verdict:
    """Keep x ~ q with chance min(1, p(x) / q(x)); at the first refusal draw from norm(max(p - q, 0)) and stop.

    After a chain kept whole the target adds a bonus token of its own. Exact for chains drawn from q, whatever q is;
    of rules that decide token by token none accepts more (Leviathan et al. 2023, 2211.17192; Chen et al. 2023,
    2302.01318).
    """
    assert tree.is_chain, "the standard rule verifies chains"
    for node, token in enumerate(tree.tokens):
        p = law(node)  # a chain's node i is the child of row i
        q = draft_law(tree, node, 0, p)
        if not draws.coin(acceptance(p, q, token)):
            return Verdict(list(range(node)), draws.residual(normalised(excess(p, q), p)))
    return Verdict(list(range(len(tree))), draws.token(len(tree)))
