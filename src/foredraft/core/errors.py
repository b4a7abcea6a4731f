"""What can go wrong, as a tree.

ForedraftError
└── UserError            a value the caller gave cannot be served; one line, exit code 2, HTTP 400
    ├── ConfigError      a sampling parameter or a speculation key
    ├── PromptError      the prompt itself: empty, too long, unknown tokens
    ├── ModelError       a checkpoint that cannot be loaded or run exactly
    ├── VocabularyError  a drafter whose tokens are not the target's
    └── SlotsError       the cache pool cannot hold the request
"""


class ForedraftError(Exception):
    """Base of every error foredraft raises on purpose."""


class UserError(ForedraftError, ValueError):
    """A value the caller gave cannot be served; the message is one line: the value and what would be right."""


class ConfigError(UserError):
    """A sampling parameter or a speculation key is unknown or out of range."""


class PromptError(UserError):
    """A prompt is empty, longer than the context, or holds tokens the target does not know."""


class ModelError(UserError):
    """A checkpoint is missing, broken, or of an architecture that cannot be run exactly."""


class VocabularyError(UserError):
    """A drafter's vocabulary differs from the target's."""


class SlotsError(UserError):
    """A request needs more cache slots than the pool can ever hold."""


def require(condition: bool, message: str, error: type[UserError] = ConfigError) -> None:
    """Raise `error(message)` unless `condition` holds."""
    if not condition:
        raise error(message)
