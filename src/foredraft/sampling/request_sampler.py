"""How one request turns the target's logits into tokens."""

from math import inf

import torch
from torch import Tensor

from foredraft.core.outcome import TokenLogprobs
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.vocabulary import Vocabulary
from foredraft.sampling.grammar_state import GrammarState
from foredraft.sampling.noise import choose, gumbel_at, gumbel_rows, natively_chosen, position_keys, uniform
from foredraft.sampling.processors import make_processors
from foredraft.sampling.tree_rows import TreeRows


class RequestSampler:
    """The target distribution of a request at every node of a draft tree, and the noise that draws from it.

    The token at absolute position t is the argmax of its scores plus `gumbel(seed, t)`, whatever was drafted; at
    temperature 0 it is the argmax of the scores.

    Args:
        params: How the request wants its tokens chosen.
        seed: Key of the request's noise.
        prompt: Token ids.
        vocabulary: The target's.
        bad_words: `params.bad_words` as token sequences, from `encode_bad_words`.
        grammar: What `params.guided` asks for, from `grammar_for`.

    Raises `ConfigError` for a token id outside the vocabulary, or where the bans together could leave no token.

    Attributes:
        history: Prompt and committed tokens.
        divisor: The temperature that scores are divided by; 1 for none.
        plain: Whether scores are the raw logits over `divisor`, drafted paths included.
        plain_greedy: Whether the next tokens are the argmax of the raw logits, drafted paths included.
        noise: Of each position from the next one on that was asked for, [V].
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        seed: int,
        prompt: list[int],
        vocabulary: Vocabulary,
        bad_words: list[list[int]] = (),
        grammar: GrammarState | None = None,
    ):
        self.params = params
        self.seed = seed
        self.vocabulary = vocabulary
        self.history = list(prompt)
        self.prompt_length = len(prompt)
        self.greedy = params.temperature == 0
        self.noise: dict[int, Tensor] = {}  # by absolute position, from the next one on
        # Where most tokens are cut off, noise for them would be most of the work.
        self.truncates = params.top_k > 0 or params.top_p < 1 or params.min_p > 0 or params.typical_p < 1
        self.grammar = grammar
        self.processors = make_processors(params, prompt, vocabulary, list(bad_words), grammar)
        self.divisor = next((processor.divisor for processor in self.processors if processor.divisor), 1.0)
        self.look_at_processors()

    def look_at_processors(self) -> None:
        """Note what those that are left do to the logits: it is asked in every step."""
        self.plain = not self.truncates and all(processor.divisor for processor in self.processors)
        self.plain_greedy = self.greedy and not self.processors

    def commit(self, tokens: list[int]) -> None:
        """Append written tokens to the history."""
        self.history.extend(tokens)
        for processor in self.processors:
            processor.commit(tokens)
        if any([processor.spent for processor in self.processors]):
            self.processors = [processor for processor in self.processors if not processor.spent]
            self.look_at_processors()
        if self.noise:
            self.noise = {position: row for position, row in self.noise.items() if position >= len(self.history)}

    def scores(self, logits: Tensor, paths: list[list[int]]) -> Tensor:
        """Logits after every processor, float32 [R, V]; forbidden tokens are -inf.

        `logits` [R, V] stay as they are, but may be returned themselves where nothing is to be done. Row r follows
        the history and then `paths[r]`, the drafted tokens after the root.
        """
        assert logits.shape == (len(paths), self.vocabulary.rows)
        rows = TreeRows(self.history, self.prompt_length, paths)
        scores = logits.float()
        for processor in self.processors:
            scores = processor(scores, rows)
        return scores

    def perturbed(self, scores: Tensor, depths: list[int]) -> Tensor:
        """Scores [R, V] plus the noise of each row's position; the scores themselves at temperature 0.

        Depth 0 is the token right after the history. Any [R, V] of log-probabilities may take the place of `scores`:
        a drafter that ranks its own law so guesses under the target's noise.
        """
        if self.greedy:
            return scores
        if not self.truncates:
            return scores + self.noise_rows(depths, scores)
        positions = torch.tensor(depths, dtype=torch.long, device=scores.device) + len(self.history)
        row, token = (scores > -inf).nonzero(as_tuple=True)
        perturbed = scores.clone()
        perturbed[row, token] += gumbel_at(self.seed, positions[row], token)
        return perturbed

    def noise_rows(self, depths: list[int], scores: Tensor) -> Tensor:
        """Noise of each row's position, [R, V]. Siblings share a position, and drafter and target the noise."""
        positions = [len(self.history) + depth for depth in depths]
        missing = sorted(set(positions) - self.noise.keys())
        if missing:
            keys = torch.tensor(self.keys(missing), device=scores.device)
            fresh = gumbel_rows(keys, scores.shape[-1])
            self.noise.update(zip(missing, fresh, strict=True))
        return torch.stack([self.noise[position] for position in positions])

    def keys(self, positions: list[int]) -> list[int]:
        """What the noise of each position is made of."""
        return position_keys([self.seed] * len(positions), positions)

    def draw(self, scores: Tensor, depths: list[int]) -> list[int]:
        """The token each row's position takes, [R]; ties go to the lowest id."""
        if natively_chosen(scores):
            return choose(scores, keys=None if self.greedy else self.keys([len(self.history) + d for d in depths]))
        return self.perturbed(scores, depths).argmax(-1).tolist()

    def law(self, scores: Tensor) -> Tensor:
        """Probabilities, float64 [R, V]; at temperature 0 all on the argmax."""
        if self.greedy:
            return torch.zeros_like(scores, dtype=torch.float64).scatter_(-1, scores.argmax(-1, keepdim=True), 1.0)
        return scores.double().softmax(-1)

    def forced(self, limit: int) -> list[int]:
        """Tokens that the grammar forces next, `limit` at most; none without a grammar."""
        return self.grammar.forced(limit) if self.grammar else []

    def uniform(self, stream: str, index: int) -> float:
        """A coin in [0, 1) for acceptance rules and sampled drafts, new with every committed token."""
        return uniform(self.seed, len(self.history), stream, index)

    def logprobs(self, logits_row: Tensor, token: int, k: int) -> TokenLogprobs:
        """Log-probabilities of `token` and the `k` likeliest under raw logits [V], padding left out."""
        logprobs = logits_row[: self.vocabulary.size].float().log_softmax(-1)
        values, tokens = logprobs.topk(min(k, len(logprobs)))
        top = list(zip(tokens.tolist(), values.tolist(), strict=True))
        return TokenLogprobs(token, logprobs[token].item(), top)
