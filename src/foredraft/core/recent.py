"""A dictionary that forgets: what clients choose freely must not add up in a server."""

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(OrderedDict[Key, Value]):
    """At most `most` entries: the one set or recalled longest ago leaves first. Mere reading does not count."""

    def __init__(self, most: int):
        super().__init__()
        self.most = most

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self.most:
            self.popitem(last=False)

    def recall(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of `key`, made where there is none."""
        if key in self:
            self.move_to_end(key)
        else:
            self[key] = make()
        return self[key]
