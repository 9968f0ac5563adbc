"""A method around another one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rayfed_ssl.method import Client, Encoder, Method, Rule, Server, Task, Weights


@dataclass(frozen=True, kw_only=True)
class Wrapper(Method):
    """A method that starts, remembers, sends and shows what another one does; `check` and the updates are its own."""

    needs_public = property(lambda self: self.method.needs_public)
    averages_weights = property(lambda self: self.method.averages_weights)
    upload_fields = property(lambda self: self.method.upload_fields)
    has_break_even = property(lambda self: self.method.has_break_even)
    method: Method

    def costly_start(self) -> Method | None:
        """Start as the method does."""
        return self.method.costly_start()

    def rules(self, task: Task) -> Mapping[str, Rule]:
        """The method's rules."""
        return self.method.rules(task)

    def init_server(self, server: Server) -> Any:
        """Start as the method does."""
        return self.method.init_server(server)

    def init_client(self, client: Client) -> Any:
        """Remember what the method makes a client remember."""
        return self.method.init_client(client)

    def download(self, state: Any, client_id: int) -> Any:
        """Send what the method sends."""
        return self.method.download(state, client_id)

    def factor(self, upload: Any) -> float:
        """Weigh as the method does."""
        return self.method.factor(upload)

    def local_parts(self, state: Any) -> Weights:
        """What the method leaves with clients."""
        return self.method.local_parts(state)

    def encoders(self, state: Any, clients: Mapping[int, Any]) -> dict[str, Encoder]:
        """The method's encoders."""
        return self.method.encoders(state, clients)
