"""Takes the turns of the benchmark of generation: every contestant on every prompt, one at a time."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from contestants import Contestant, Sample
from forward_contestants import ContestantFailure
from generate_peers import process_of
from rich.console import Console
from rich.progress import track
from summary import Turn
from waiting import Waiting

from foredraft.evaluation.turns import rotated

WARM_UP_PROMPTS = 1
Prompts = Mapping[str, list[list[int]]]  # token ids by workload


class Stage:
    """Where contestants take turns. Who fails is left out from then on, and the others go on.

    Attributes:
        entrants: Who takes part, by name.
        clocks: CPU seconds that each of their processes has used.
        waiting: What the processes do while they wait.
        left_out: Why some take no further part, by name.
    """

    def __init__(self, entrants: Mapping[str, Contestant], clocks: Mapping[str, Callable[[], float]]):
        self.entrants, self.clocks = dict(entrants), clocks
        self.waiting, self.left_out = Waiting(), {}

    def warm_up(self, prompts: Prompts) -> None:
        for its in list(prompts.values())[:WARM_UP_PROMPTS]:
            for name in list(self.entrants):
                self.sample(name, its[0])

    def play(self, prompts: Prompts, rounds: int) -> list[Turn]:
        """Every contestant on every prompt, one after another on the same prompt, a different one first each time.

        Only samples of those who never failed are kept, so that all figures are of the same prompts.
        """
        places = [(name, index, tokens) for name, its in prompts.items() for index, tokens in enumerate(its)]
        every, turns = [(number, place) for number in range(rounds) for place in places], []
        for count, (number, (workload, index, tokens)) in enumerate(track(every, console=Console(stderr=True))):
            samples = self.samples(tokens, count)
            about = {"workload": workload, "prompt": index, "round": number, "prompt_tokens": len(tokens)}
            turns.append(Turn(**about, samples=samples))
        return [replace(turn, samples={name: turn.samples[name] for name in self.entrants}) for turn in turns]

    def samples(self, tokens: list[int], first: int) -> dict[str, Sample]:
        order = rotated(list(self.entrants), first)
        found = {name: self.sample(name, tokens) for name in order}
        return {name: found[name] for name in self.entrants}

    def sample(self, name: str, tokens: list[int]) -> Sample | None:
        """Its text; none where it failed."""
        try:
            with self.waiting.during(process_of(name), self.clocks):
                return self.entrants[name](tokens)
        except ContestantFailure as failure:
            self.left_out[name] = str(failure)
            del self.entrants[name]
            return None
