"""Policies: how many clients the server asks, when it aggregates, and what late uploads count."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass as pydantic_dataclass

from rayfed_ssl.validation import Validated

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


@dataclass
class View:
    """What the server knows when it decides.

    Attributes:
        size: Clients that a round has in all: `clients.fraction` of them.
        running: Clients that are at work.
        arrived: Uploads that wait for the server's next step.
        seconds: Virtual seconds since the server asked clients for its next step.
    """

    size: int
    running: int = 0
    arrived: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class TaskSeconds:
    """Virtual seconds of a client's task: transfers and what does not depend on epochs, and an epoch."""

    fixed: float
    epoch: float


class Policy(Validated, ABC):
    """The server's policy; its functions depend on their arguments alone.

    Class attributes:
        is_synchronous: Whether a server step ends all tasks, so that every task starts from the last version.
        mixes: Whether an upload's change is that from the server's last weights, or from those that its client received.
    """

    is_synchronous: ClassVar[bool] = False
    mixes: ClassVar[bool] = False

    @property
    def timeout(self) -> float | None:
        """Seconds after the server asked clients at which it looks again, or None."""
        return None

    @abstractmethod
    def asks(self, view: View) -> tuple[int, int]:
        """Say how many clients to ask now, at least and at most; where fewer are available, the server waits."""

    @abstractmethod
    def aggregates(self, view: View) -> bool:
        """Say whether the server steps now; it is asked whenever a task ends, and after `timeout`."""

    def epochs(self, seconds: TaskSeconds, epochs: int) -> int:
        """Choose the local epochs of a client, at most those that the run asks for."""
        return epochs

    def accepts(self, staleness: int) -> bool:
        """Say whether an upload is used that started so many server steps before."""
        return True

    def weight(self, staleness: int) -> float:
        """Weigh an upload's change of the weights."""
        return 1.0


@pydantic_dataclass(frozen=True, kw_only=True)
class Synchronous(Policy):
    """Wait for all clients that were asked and did not fail (FedAvg)."""

    is_synchronous: ClassVar = True

    def asks(self, view: View) -> tuple[int, int]:
        """Ask a cohort at the start of a step, and another one where nobody of it delivers."""
        return (0, 0) if view.running or view.arrived else (view.size, self._asked(view.size))

    def _asked(self, size: int) -> int:
        return size

    def aggregates(self, view: View) -> bool:
        """Step when nobody is at work any more."""
        return view.arrived > 0 and view.running == 0


@pydantic_dataclass(frozen=True, kw_only=True)
class Deadline(Synchronous):
    """Ask more clients than needed, and drop those that come too late (Bonawitz et al. 2019)."""

    over: NotNegative = 0.3
    """Part of a cohort that is asked in addition."""
    seconds: Positive | None = None
    """Virtual seconds after which the server steps with what it has, or with the first upload; None waits for a cohort."""

    @property
    def timeout(self) -> float | None:
        """The deadline."""
        return self.seconds

    def _asked(self, size: int) -> int:
        return math.ceil(size * (1 + self.over) - 1e-9)

    def aggregates(self, view: View) -> bool:
        """Step when a cohort has arrived, when nobody is at work any more, or after the deadline."""
        is_over = self.seconds is not None and view.seconds >= self.seconds
        return view.arrived > 0 and (view.arrived >= view.size or view.running == 0 or is_over)


@pydantic_dataclass(frozen=True, kw_only=True)
class Partial(Synchronous):
    """Let slow clients do fewer local epochs (FedProx, Li et al. 2020)."""

    seconds: Positive
    """Virtual seconds into which a client fits as many whole epochs as it can, at least one."""

    def epochs(self, seconds: TaskSeconds, epochs: int) -> int:
        """Fit whole epochs into the time."""
        fitting = (self.seconds - seconds.fixed) / seconds.epoch if seconds.epoch else epochs
        return max(1, min(epochs, math.floor(fitting + 1e-9)))


@pydantic_dataclass(frozen=True, kw_only=True)
class Asynchronous(Policy):
    """Keep a cohort at work: whoever is done is replaced at once, by a client that starts from the last version."""

    staleness: Literal["constant", "hinge", "polynomial"] = "polynomial"
    """How weights fall with staleness s: 1; 1 if s <= b, else 1 / (a (s - b) + 1); or (1 + s)^-a."""
    a: NotNegative = 0.5
    """How fast they fall."""
    b: Annotated[int, Field(ge=0)] = 4
    """Staleness from which the hinge falls."""
    bound: Annotated[int, Field(ge=0)] | None = None
    """Largest staleness of an upload that is used; None uses all."""

    def asks(self, view: View) -> tuple[int, int]:
        """Fill up the cohort with whoever is available."""
        return 1, view.size - view.running

    def accepts(self, staleness: int) -> bool:
        """Refuse uploads beyond the bound."""
        return self.bound is None or staleness <= self.bound

    def weight(self, staleness: int) -> float:
        """s(t - tau) of Xie et al. 2019, section 5.2."""
        if self.staleness == "constant":
            return 1.0
        if self.staleness == "hinge":
            return 1.0 if staleness <= self.b else 1 / (self.a * (staleness - self.b) + 1)
        return float((1 + staleness) ** -self.a)


@pydantic_dataclass(frozen=True, kw_only=True)
class FedAsync(Asynchronous):
    """Mix each upload in at once (Xie et al. 2019)."""

    mixes: ClassVar = True
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.6
    """What an upload without staleness counts beside the server's weights."""

    def aggregates(self, view: View) -> bool:
        """Step at each upload."""
        return view.arrived > 0

    def weight(self, staleness: int) -> float:
        """alpha_t = alpha s(t - tau)."""
        return self.alpha * super().weight(staleness)


@pydantic_dataclass(frozen=True, kw_only=True)
class FedBuff(Asynchronous):
    """Step when a number of uploads has arrived (Nguyen et al. 2022)."""

    buffer: PositiveInt = 10
    """K, uploads of a server step."""
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """eta_g, the server's learning rate."""

    def weight(self, staleness: int) -> float:
        """eta_g s(t)."""
        return self.lr * super().weight(staleness)

    def aggregates(self, view: View) -> bool:
        """Step when the buffer is full."""
        return view.arrived >= self.buffer


POLICIES: dict[str, type[Policy]] = {
    "synchronous": Synchronous,
    "deadline": Deadline,
    "partial": Partial,
    "fedasync": FedAsync,
    "fedbuff": FedBuff,
}
