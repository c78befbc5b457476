"""What the clients know: which writes were acknowledged, which have an unknown outcome, and what must not have happened."""

import itertools
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

# Numbers of a run, so that each request that calls the model has other tokens than all others.
FIRST_TOKENS = 1000


@dataclass
class Project:
    """A project and the requests that were made with its keys."""

    id: str
    name: str
    # Requests with an answer, which are therefore recorded, and those that may be recorded.
    answered: int = 0
    unknown: int = 0


@dataclass
class Key:
    """An API key as a client knows it. `dead_at`: since when (monotonic seconds) its secret must be refused."""

    id: str
    name: str
    secret: str
    project: Project
    dead_at: float | None = None
    why: str = ""


@dataclass
class Created:
    """A resource that was created, or may have been. `id` is known only if it was acknowledged."""

    kind: str
    marker: str
    project: Project | None
    id: str | None = None
    content: str | None = None


@dataclass
class Call:
    """A request that called the model: its tokens are its name in the usage records. Known: whether it was answered with 200."""

    project: Project
    tokens_in: int
    tokens_out: int
    how: str
    acknowledged: bool = False


@dataclass
class Value:
    """A field that one client at a time sets: the last acknowledged value, and all whose outcome is unknown.

    A request without an answer may wait in a stopped process and have its effect after later ones, so none is forgotten.
    """

    last: object = None
    maybe: list[object] = field(default_factory=list)

    def set(self, value: object, acknowledged: bool) -> None:
        if acknowledged:
            self.last = value
        else:
            self.maybe.append(value)

    def may_be(self, value: object) -> bool:
        return value == self.last or value in self.maybe


class Ledger:
    """The log of one run."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.projects: list[Project] = []
        self.created: list[Created] = []
        self.calls: dict[int, Call] = {}
        self.limits: dict[str, Value] = {}
        self.instructions: dict[str, Value] = {}
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self.violations: list[tuple[float, str, str]] = []
        self.samples: dict[str, list[float]] = defaultdict(list)
        self._numbers = itertools.count(1)
        self._tokens = itertools.count(FIRST_TOKENS)

    def marker(self, kind: str) -> str:
        """A name that no other resource of the run has."""
        return f"{kind}-{next(self._numbers)}"

    def call(self, project: Project, how: str) -> Call:
        """A request to the model that is about to be sent. Until it is acknowledged, its outcome is unknown."""
        tokens = next(self._tokens)
        call = Call(project, tokens, 20 + tokens % 17, how)
        self.calls[tokens] = call
        return call

    def count(self, operation: str, outcome: str) -> None:
        self.outcomes[operation][outcome] += 1

    def sample(self, figure: str, value: float) -> None:
        """A measured value of the report."""
        self.samples[figure].append(value)

    def violation(self, check: str, text: str) -> None:
        """Something that the cluster promises not to do."""
        self.violations.append((time.monotonic() - self.began, check, text))
        if sum(1 for one in self.violations if one[1] == check) <= 5:
            print(f"[{time.monotonic() - self.began:7.2f}] VIOLATION {check}: {text}", flush=True)

    def note(self, text: str) -> None:
        """A line in the log of the run."""
        print(f"[{time.monotonic() - self.began:7.2f}] {text}", flush=True)
