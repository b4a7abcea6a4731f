"""Acceptance by equality: the target draws its own token at each row and drafts are kept while they hold it."""

from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import Verdict
from foredraft.verification.draws import Draws, Law


def sample_and_match(tree: DraftTree, law: Law, draws: Draws) -> Verdict:
    """Walk down from the root with y ~ p at each row, into the child that holds y; the first y no child holds ends it.

    Exact for drafts of any kind, and the only rule here that stays exact when drafts saw the target's own noise: with
    noise that belongs to the position the text does not depend on the drafts at all (Daliri et al. 2024, 2408.07978).
    For drafts that were not sampled no exact rule accepts more. Asks for no law.
    """
    path: list[int] = []
    row = 0
    while True:
        token = draws.token(row)
        child = next((child for child in tree.children[row] if tree.tokens[child] == token), None)
        if child is None:
            return Verdict(path, token)
        path.append(child)
        row = child + 1
