"""How one server listens, whom it lets in, and how long it waits."""

from dataclasses import dataclass, field

from foredraft.core.errors import require
from foredraft.core.sampling_params import whole, within
from foredraft.serving.guards import keys_of
from foredraft.serving.protocol.limits import Limits

MAX_SECONDS = 86_400


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """One server. Raises `ConfigError` naming the value when one is out of range.

    Attributes:
        host: Address to listen on; 0.0.0.0 lets every machine in that reaches this one.
        port: Port to listen on; 0 takes a free one.
        api_key: Key that requests must bring as a bearer token, or several with commas between them; none lets
            everybody in. The environment variable FOREDRAFT_API_KEY gives it too, and shows in no list of processes.
        served_model_name: What requests call the model; its own name where none is given.
        cors_origins: Origins whose pages may call from a browser, with commas between them; empty for none.
        max_waiting: Most requests that wait for their turn; further ones are told to come again later.
        timeout_seconds: Longest time a request may take, waiting included.
        grace_seconds: Time for unfinished requests when the server stops; what is left then ends unfinished.
        playground: Whether /playground is served.
        limits: Most that one request may ask for.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    served_model_name: str | None = None
    cors_origins: str = ""
    max_waiting: int = 1000
    timeout_seconds: float = 600.0
    grace_seconds: float = 30.0
    playground: bool = True
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        require(self.host != "", "host is empty; give an address such as 127.0.0.1")
        whole("port", self.port, 0, 65_535)
        require(self.api_key != "", "api_key is empty; leave it out to let everybody in")
        require(all(key.isascii() and key.isprintable() for key in self.keys), "api_key holds more than plain letters")
        require(self.served_model_name != "", "served_model_name is empty; leave it out for the model's own name")
        for origin in self.origins:
            whole_origin = origin == "*" or ("://" in origin and origin.count("/") == 2)
            require(whole_origin, f"cors_origins has {origin!r}; an origin is written like https://example.org, or *")
        whole("max_waiting", self.max_waiting, 1)
        within("timeout_seconds", self.timeout_seconds, 0.001, MAX_SECONDS)
        within("grace_seconds", self.grace_seconds, 0, MAX_SECONDS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of `api_key`."""
        return keys_of(self.api_key)

    @property
    def origins(self) -> list[str]:
        """The origins of `cors_origins`."""
        return [origin.strip() for origin in self.cors_origins.split(",") if origin.strip()]
