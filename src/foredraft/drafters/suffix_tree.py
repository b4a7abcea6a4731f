"""Counted suffix tree of bounded depth (SuffixDecoding, Oliaro et al. 2411.04975).

The tree counts every string of up to `depth` tokens in a set of sequences. Written out plainly that is `depth` nodes
a token, about 10 MB for 2,000 tokens. So a string seen at most `BUCKET` times is no node but a bucket, the tuple of its
occurrences, whose continuations are read from the sequences themselves; it bursts into a node when it grows past that.
This bounds nodes by depth / BUCKET a token, and needs no edges to split and merge as tokens are appended or removed.

`native/src/suffix_tree.cpp` and `suffix_guess.cpp` do the same in C++: what changes here changes there.
"""

from collections.abc import Iterable
from heapq import nlargest

BUCKET = 8
SHIFT = 32  # an occurrence is sequence << SHIFT | start, so later ones are larger
START = (1 << SHIFT) - 1


class Node:
    """A string that occurs often.

    Attributes:
        count: Its occurrences.
        children: What follows it, by token.
        likeliest: The token that follows most often, a recent one on a tie; none where that must be found anew.
    """

    __slots__ = ("children", "count", "likeliest")

    def __init__(self, count: int, children: "dict[int, Place]") -> None:
        self.count = count
        self.children = children
        self.likeliest: int | None = None


Bucket = tuple[int, ...]
Place = Node | Bucket  # where a string is in the tree; an empty bucket where it is not


class SuffixTree:
    """Counts of all strings of up to `depth` tokens in sequences that may be added, extended and removed."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.root = Node(0, {})
        self.texts: dict[int, list[int]] = {}
        self.ends: dict[int, list[Node]] = {}  # by sequence: nodes of its last token, last two tokens, and so on
        self.next_sequence = 0

    def insert(self, tokens: Iterable[int]) -> int:
        """Add a sequence; returns its number for `extend` and `remove`."""
        sequence = self.next_sequence
        self.next_sequence += 1
        self.texts[sequence], self.ends[sequence] = [], []
        self.extend(sequence, tokens)
        return sequence

    def extend(self, sequence: int, tokens: Iterable[int]) -> None:
        """Append tokens to a sequence. Costs time only for those of its suffixes that are nodes already."""
        text = self.texts[sequence]
        for token in tokens:
            text.append(token)
            nodes = [self.root, *self.ends[sequence]]
            self.ends[sequence] = []
            newest = (sequence << SHIFT) + len(text)
            for depth, node in enumerate(nodes, 1):
                self.step(node, token, newest - depth, depth)

    def step(self, node: Node, token: int, occurrence: int, depth: int) -> None:
        """Lead an occurrence on from `node` to its last token, which is `depth` tokens into the tree."""
        child = node.children.get(token, ())
        if type(child) is tuple:
            child += (occurrence,)
            node.children[token] = child if len(child) <= BUCKET else self.burst(child, depth)
        else:
            child.count += 1
            if depth < self.depth:
                self.ends[occurrence >> SHIFT].append(child)
        if node.likeliest is not None and size(node.children[token]) >= size(node.children[node.likeliest]):
            node.likeliest = token

    def burst(self, bucket: Bucket, depth: int) -> Node:
        """The node that takes the place of a full bucket."""
        if depth == self.depth:
            return Node(len(bucket), {})
        node = Node(len(bucket), self.grouped(bucket, depth))
        for occurrence in bucket:
            sequence = occurrence >> SHIFT
            if (occurrence & START) + depth == len(self.texts[sequence]):
                self.ends[sequence].append(node)
        return node

    def remove(self, sequence: int) -> None:
        """Take a sequence out of all counts."""
        text = self.texts[sequence]
        for start in range(len(text)):
            self.forget(text[start : start + self.depth], sequence << SHIFT | start)
        del self.texts[sequence], self.ends[sequence]

    def forget(self, string: list[int], occurrence: int) -> None:
        node = self.root
        for token in string:
            if node.likeliest == token:
                node.likeliest = None
            child = node.children[token]
            if type(child) is tuple:
                child = tuple(other for other in child if other != occurrence)
                keep_or_drop(node, token, child)
                return
            child.count -= 1
            keep_or_drop(node, token, child)
            node = child

    def count(self, string: list[int]) -> int:
        """Occurrences of a string of at most `depth` tokens."""
        assert 0 < len(string) <= self.depth
        return size(self.find(string))

    def find(self, string: list[int]) -> Place:
        node = self.root
        for depth, token in enumerate(string, 1):
            place = node.children.get(token, ())
            if type(place) is tuple:
                return tuple(one for one in place if self.read(one, depth, len(string)) == string[depth:])
            node = place
        return node

    def read(self, occurrence: int, begin: int, end: int) -> list[int]:
        """Tokens `begin` to `end` of an occurrence, counted from its start."""
        start = occurrence & START
        return self.texts[occurrence >> SHIFT][start + begin : start + end]

    def suffixes(self, context: list[int]) -> list[Place]:
        """Where the context's last token, last two tokens and so on are, up to the longest that is worth a guess.

        That is the longest that occurs, at most `depth` - 1 tokens so that another fits behind it, and not only at the
        end of a growing text, where nothing follows yet.
        """
        places: list[Place] = []
        for length in range(1, min(self.depth - 1, len(context)) + 1):
            if places and type(places[-1]) is tuple:
                place = self.preceded(places[-1], context[-length])
            else:
                place = self.find(context[-length:])
            if not size(place) or self.rests(place, length):
                break
            places.append(place)
        return places

    def rests(self, place: Place, depth: int) -> bool:
        """Whether a string of `depth` tokens occurs only at the end of a sequence, as in its own growing text."""
        if type(place) is not tuple or len(place) > 1:
            return False
        [occurrence] = place
        return (occurrence & START) + depth == len(self.texts[occurrence >> SHIFT])

    def preceded(self, bucket: Bucket, token: int) -> Bucket:
        """Occurrences of the string one longer to the left, of those in `bucket`."""
        texts = self.texts
        return tuple([one - 1 for one in bucket if one & START and texts[one >> SHIFT][(one & START) - 1] == token])

    def grouped(self, bucket: Bucket, depth: int) -> dict[int, Bucket]:
        """Occurrences of a string of `depth` tokens by the token that follows it."""
        groups: dict[int, Bucket] = {}
        for occurrence in bucket:
            text, at = self.texts[occurrence >> SHIFT], (occurrence & START) + depth
            if at < len(text):
                groups[text[at]] = groups.get(text[at], ()) + (occurrence,)
        return groups

    def follower(self, place: Place, depth: int) -> tuple[int | None, Place]:
        """The most frequent continuation of a string of `depth` tokens, a recent one on a tie; (None, ()) for none."""
        if type(place) is tuple:
            groups = self.grouped(place, depth)
            return max(reversed(groups.items()), key=weight, default=(None, ()))
        if place.likeliest is None:
            place.likeliest = max(reversed(place.children.items()), key=weight, default=(None, ()))[0]
        return place.likeliest, place.children.get(place.likeliest, ())

    def followers(self, place: Place, depth: int, width: int) -> list[tuple[int, Place]]:
        """The `width` most frequent continuations of a string of `depth` tokens, recent ones first on a tie."""
        children = self.grouped(place, depth) if type(place) is tuple else place.children
        if len(children) < 2:
            return list(children.items())
        return nlargest(width, reversed(children.items()), key=weight)


def size(place: Place) -> int:
    """Occurrences of the string at a place."""
    return len(place) if type(place) is tuple else place.count


def weight(child: tuple[int, Place]) -> int:
    """What ranks a token and its place among those that follow the same string."""
    return size(child[1])


def keep_or_drop(node: Node, token: int, child: Place) -> None:
    """Make `child` what follows `node`, or nothing where it has no occurrence left."""
    if size(child):
        node.children[token] = child
    else:
        del node.children[token]
