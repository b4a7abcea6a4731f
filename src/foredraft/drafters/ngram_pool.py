"""N-grams of one request, found again by their first token."""


class NgramPool:
    """For each token the n-grams it began; beyond `capacity` of them, the one added least recently leaves.

    Attributes:
        ngram: Tokens of an n-gram, the one it is found by included.
        capacity: Most n-grams a token keeps.
    """

    def __init__(self, *, ngram: int, capacity: int) -> None:
        self.ngram, self.capacity = ngram, capacity
        self.followers: dict[int, dict[tuple[int, ...], None]] = {}  # by first token, least recently added first
        self.known = 0  # tokens of the request's text whose n-grams are in

    def add(self, ngram: tuple[int, ...]) -> None:
        """Take in an n-gram, or make it the most recent one of its first token."""
        assert len(ngram) == self.ngram
        own = self.followers.setdefault(ngram[0], {})
        own.pop(ngram[1:], None)
        own[ngram[1:]] = None
        if len(own) > self.capacity:
            del own[next(iter(own))]

    def extend(self, tokens: list[int]) -> None:
        """Take in the n-grams that end in what a growing text has gained since the last call."""
        fresh = tokens[max(self.known - self.ngram + 1, 0) :]
        for ngram in zip(*(fresh[i:] for i in range(self.ngram)), strict=False):
            self.add(ngram)
        self.known = len(tokens)

    def after(self, token: int) -> list[tuple[int, ...]]:
        """The n-grams of `token` less itself, `ngram` - 1 tokens each, the most recent one first."""
        return list(reversed(self.followers.get(token, {})))
