"""Predicted output: the caller gives a text that the answer is likely to repeat, such as a file before an edit.

The draft is what comes next in it. Where the answer parts from the prediction, `prediction_alignment` finds where it
goes on. Published as a service ("predicted outputs"), not as a paper; how places are found and ranked is our own.
"""

from collections.abc import Callable

from foredraft.core.draft_tree import DraftTree
from foredraft.core.errors import require
from foredraft.core.request import Request
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import DrafterNeeds, DraftTask, Observation, register
from foredraft.drafters.ngram import narrowed
from foredraft.drafters.prediction_alignment import ELSEWHERE, Alignment, Place, PlaceChances
from foredraft.model.target import Target

LEAST_CHANCE = 0.05  # a token less likely than this, the tokens before it included, is not worth a row

Path = list[tuple[int, float]]  # tokens, each with its chance once the one before was right


class PredictionDrafter:
    """Copies from each request's `SpeculationConfig.prediction`; drafts nothing for a request without one.

    A chain goes on from the likeliest place, a tree merges several. The engine need not say what became of a draft:
    the next one reads it from the tokens.

    Attributes:
        encode: From a text to its tokens, special ones not added.
        texts: What follows each request's prediction.
        chances: How often each kind of place was right.
    """

    name = "prediction"
    needs = DrafterNeeds(instant=True, prediction=True, told=False)

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        self.encode = encode
        self.texts: dict[int, PredictedText] = {}
        self.chances = PlaceChances()

    def propose(self, tasks: list[DraftTask]) -> list[DraftTree]:
        return [self.draft(task) if task.speculation.prediction else DraftTree() for task in tasks]

    def draft(self, task: DraftTask) -> DraftTree:
        """The tree for one task; empty where the answer has left the prediction and nothing says where it goes on."""
        request, speculation = task.request, task.speculation
        if request.id not in self.texts:
            self.texts[request.id] = PredictedText(readings(speculation.prediction, self.encode))
        text = self.texts[request.id]
        text.read(request, self.chances)
        branches = speculation.tree_size > 0
        paths = text.paths(task.depth, self.chances, several=branches)
        paths = [worthwhile(path, speculation.draft_confidence_threshold) for path in paths]
        if branches:
            return merged(paths, self.name, nodes=task.nodes, width=speculation.tree_width)
        tokens, chances = zip(*paths[0], strict=True) if paths and paths[0] else ((), ())
        return DraftTree.chain(list(tokens[: task.nodes]), self.name, chances=list(chances[: task.nodes]))

    def observe(self, observations: list[Observation]) -> None:
        """There is nothing to learn here: `propose` reads what is new from the request's tokens."""

    def close(self, request: Request) -> None:
        self.texts.pop(request.id, None)


class PredictedText:
    """A request's prediction and how far the answer has been read.

    Attributes:
        readings: The prediction's tokens, and those it has behind a space where they differ: which of them the answer
            begins with is known from its first token.
        alignment: Where the answer stands.
        known: Tokens of the answer read so far.
    """

    def __init__(self, readings: list[list[int]]) -> None:
        self.readings = readings
        self.alignment = Alignment(readings[0])
        self.known = 0

    def read(self, request: Request, chances: PlaceChances) -> None:
        """Take in what was written since the last call."""
        fresh = request.tokens[len(request.prompt) + self.known :]
        if fresh and not self.known:
            begun = [reading for reading in self.readings if reading[:1] == fresh[:1]]
            self.alignment = Alignment([*begun, *self.readings][0])
        for token in fresh:
            self.alignment.push(token, chances)
        self.known += len(fresh)

    def paths(self, depth: int, chances: PlaceChances, *, several: bool) -> list[Path]:
        """Continuations of the prediction, the likeliest first; more than that one if `several` are wanted."""
        places = self.alignment.candidates(several=several)
        paths = [self.alignment.continuation(place, depth, chances) for place in places]
        if several and not self.known:
            paths += [Alignment(other).continuation(Place(0, ELSEWHERE), depth, chances) for other in self.readings[1:]]
        return sorted(paths, key=lambda path: -path[0][1])


def readings(prediction: str, encode: Callable[[str], list[int]]) -> list[list[int]]:
    """Tokens of the prediction as it is and behind a space, which the answer's first token may begin with."""
    plain, spaced = encode(prediction), encode(f" {prediction}")
    return [plain, spaced] if spaced[:1] != plain[:1] else [plain]


def worthwhile(path: Path, threshold: float) -> Path:
    """The path as far as its tokens are likely enough; the first one below `threshold` is the last."""
    whole, kept = 1.0, []
    for token, chance in path:
        whole *= chance
        if whole < LEAST_CHANCE:
            break
        kept.append((token, chance))
        if chance < threshold:
            break
    return kept


def merged(paths: list[Path], drafter: str, *, nodes: int, width: int) -> DraftTree:
    """The `nodes` likeliest tokens of the tree of all paths."""
    unique = dict.fromkeys(tuple(token for token, _ in path) for path in paths)
    tree = DraftTree.from_paths(narrowed(unique, width), drafter, limit=sum(map(len, unique)))
    tree.chances = merged_chances(tree, paths)
    whole = [1.0]  # chance of each row, tokens before it included
    for parent, chance in zip(tree.parents, tree.chances, strict=True):
        whole.append(whole[parent + 1] * chance)
    likeliest = sorted(range(len(tree)), key=lambda node: -whole[node + 1])[:nodes]  # parents go before children
    return tree.only(sorted(likeliest))


def merged_chances(tree: DraftTree, paths: list[Path]) -> list[float]:
    """Each node's chance by the path that gives it most."""
    chances = [0.0] * len(tree)
    for path in paths:
        nodes = tree.along([token for token, _ in path])
        for node, (_, chance) in zip(nodes, path, strict=False):
            chances[node] = max(chances[node], chance)
    return chances


@register("prediction")
def make_prediction(config: SpeculationConfig, target: Target) -> PredictionDrafter:
    """Raises `ConfigError` for a target without a tokenizer: none of its requests could have a prediction read."""
    tokenizer = target.tokenizer
    require(
        tokenizer is not None, f"{target.name} has no tokenizer; method prediction needs one to read the prediction"
    )
    return PredictionDrafter(lambda text: tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
