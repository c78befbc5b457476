"""HTTP over the cluster: one request to one node, and writes that go to another node until their outcome is known."""

import asyncio
import json
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import aiohttp

from balancer import Balancer
from ledger import Key, Ledger
from nodes import Node, Server

TIMEOUT = 10.0
# How long a client repeats a write before it gives up and the outcome stays unknown.
PATIENCE = 40.0


@dataclass
class Answer:
    """A response. `began` and `ended` are monotonic seconds."""

    status: int
    body: Any
    headers: dict[str, str]
    began: float
    ended: float
    node: str

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def code(self) -> str | None:
        """The error's code."""
        error = self.body.get("error") if isinstance(self.body, dict) else None
        return error.get("code") if isinstance(error, dict) else None

    def __str__(self) -> str:
        return f"{self.status} {str(self.body)[:300]} from {self.node}"


@dataclass
class Lost:
    """No response. `sent`: whether the server may have got the request. `kept`: whether the connection had been used before."""

    sent: bool
    why: str
    began: float
    ended: float
    node: str
    kept: bool = False

    ok = False
    status = 0
    code = None

    def __str__(self) -> str:
        return f"no response ({self.why}) from {self.node}"


Outcome = Answer | Lost
# Makes the body of an answer.
Reader = Callable[[aiohttp.ClientResponse], Awaitable[Any]]


class Clients:
    """The HTTP client of all workers."""

    def __init__(self, ledger: Ledger, nodes: list[Node], rng: random.Random) -> None:
        self.ledger, self.nodes, self.rng = ledger, nodes, rng
        # Chooses the nodes of requests to any node. Without it, clients do not know which of them run.
        self.balancer: Balancer | None = None
        # Gets each outcome, and whether the request was one to any node.
        self.seen: Callable[[Outcome, bool], None] = lambda outcome, is_balanced: None
        connector = aiohttp.TCPConnector(limit=0, force_close=False, keepalive_timeout=30)
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_reuseconn.append(_is_kept)
        self.session = aiohttp.ClientSession(connector=connector, trace_configs=[tracing])
        # Otherwise a GET, PUT or DELETE whose connection is closed is sent twice, and the ledger knows only of one.
        self.session._retry_connection = False

    async def close(self) -> None:
        await self.session.close()

    def anywhere(self, without: list[Server] | None = None) -> Server:
        """The server of a random node, whether it runs or not: clients cannot know. A balancer knows, and skips those `without`."""
        if self.balancer:
            return self.rng.choice(self.balancer.servers(without or []))
        return self.rng.choice(self.nodes).server

    async def request(
        self, method: str, path: str, key: Key, body: object = None, *, timeout: float = TIMEOUT, read: Reader | None = None
    ) -> Outcome:
        """A request to a random node. With a balancer, another node gets it if the connection fails or the status is 503."""
        tried: list[Server] = []
        while True:
            tried.append(self.anywhere(tried))
            outcome = await self.send(tried[-1], method, path, key, body, timeout=timeout, read=read, is_balanced=True)
            refused = outcome.status == 503 or isinstance(outcome, Lost) and not outcome.sent
            if not self.balancer or not refused or len(tried) == len(self.nodes):
                return outcome

    async def send(
        self,
        server: Server,
        method: str,
        path: str,
        key: Key,
        body: object = None,
        *,
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
        timeout: float = TIMEOUT,
        is_balanced: bool = False,
        read: Reader | None = None,
    ) -> Outcome:
        """One request to one server. Counts it for the usage of the key's project.

        `is_balanced`: for `seen`. `read`: how the response is read, if not by `decode`.
        """
        address = f"10.{self.rng.randrange(100, 200)}.{self.rng.randrange(256)}.{self.rng.randrange(256)}"
        sent = {"Authorization": f"Bearer {key.secret}", "X-Forwarded-For": address} | (headers or {})
        if body is not None:
            data, sent["Content-Type"] = json.dumps(body).encode(), "application/json"
        limit = aiohttp.ClientTimeout(total=timeout, sock_connect=2.0)
        # Whether the connection had been used before, and whether a response has begun.
        context = {"kept": False, "answered": False}
        key.project.unknown += 1
        call = self.session.request(method, server.base + path, data=data, headers=sent, timeout=limit, trace_request_ctx=context)
        outcome = await exchange(call, server, context, read or decode)
        self.account(key, outcome)
        if outcome.status == 500:
            self.ledger.violation("no internal errors", f"{method} {path}: {outcome}")
        self.seen(outcome, is_balanced)
        return outcome

    def account(self, key: Key, outcome: Outcome) -> None:
        """Counts the outcome of a request that was counted as unknown."""
        if isinstance(outcome, Lost):
            key.project.unknown -= 0 if outcome.sent else 1
        # A refused key belongs to no project; whether a failed request is recorded is not known.
        elif outcome.status == 401 or key.dead_at and outcome.status == 429:
            key.project.unknown -= 1
        elif outcome.status < 500:
            key.project.unknown -= 1
            key.project.answered += 1

    async def write(
        self,
        method: str,
        path: str,
        key: Key,
        body: object = None,
        *,
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
        idempotent: bool = True,
        twice: bool = False,
    ) -> tuple[Outcome, bool]:
        """A write, repeated on random nodes with the same idempotency key until its outcome is known.

        Returns the last outcome, and whether an earlier attempt may have had its effect. `twice`: the same request is
        sent to two nodes at once. Without `idempotent`, the request must be one that has the same effect if repeated.
        """
        sent = dict(headers or {})
        if idempotent:
            sent["Idempotency-Key"] = str(uuid.UUID(int=self.rng.getrandbits(128)))
        deadline, doubtful = time.monotonic() + PATIENCE, False
        while True:
            if twice:
                pair = [self.send(self.anywhere(), method, path, key, body, data=data, headers=sent, is_balanced=True) for _ in range(2)]
                both = await asyncio.gather(*pair)
                # The first answer, which has the secret of a key, rather than the one that repeats it.
                outcome = max(both, key=lambda one: (settled(one), isinstance(one, Answer) and "idempotent-replayed" not in one.headers))
                self.same(both, f"{method} {path}")
            else:
                both = [await self.send(self.anywhere(), method, path, key, body, data=data, headers=sent, is_balanced=True)]
                outcome = both[0]
            if settled(outcome) or time.monotonic() > deadline:
                return outcome, doubtful
            doubtful = doubtful or any(isinstance(one, Answer) or one.sent for one in both if not settled(one))
            await asyncio.sleep(self.rng.uniform(0.05, 0.3))

    def same(self, both: list[Outcome], what: str) -> None:
        """Two answers to one idempotency key must name the same resource."""
        ids = {one.body.get("id") for one in both if isinstance(one, Answer) and one.ok and isinstance(one.body, dict)}
        if len(ids) > 1:
            self.ledger.violation("one effect", f"{what} with one idempotency key made {ids}")

    async def read(self, path: str, key: Key, server: Server | None = None, accept: str = "application/json") -> Answer:
        """A read, repeated until it has an answer other than 503."""
        deadline = time.monotonic() + PATIENCE
        while True:
            target = server or self.anywhere()
            outcome = await self.send(target, "GET", path, key, headers={"Accept": accept}, timeout=60, is_balanced=server is None)
            if isinstance(outcome, Answer) and settled(outcome):
                return outcome
            if time.monotonic() > deadline:
                raise RuntimeError(f"GET {path} got {outcome} for {PATIENCE} s")
            await asyncio.sleep(0.1)

    async def pages(self, path: str, key: Key, server: Server) -> list[dict[str, Any]]:
        """All entries of a list."""
        entries: list[dict[str, Any]] = []
        cursor = ""
        while True:
            joined = f"{path}{'&' if '?' in path else '?'}limit=100{cursor}"
            answer = await self.read(joined, key, server)
            if not answer.ok:
                raise RuntimeError(f"GET {joined}: {answer}")
            entries += answer.body["data"]
            if not answer.body["has_more"]:
                return entries
            cursor = f"&cursor={answer.body['next_cursor']}"


async def exchange(
    call: AbstractAsyncContextManager[aiohttp.ClientResponse], server: Server, context: dict[str, bool], read: Reader
) -> Outcome:
    """Sends a request and reads its response."""
    began = time.monotonic()
    try:
        async with call as response:
            context["answered"] = True
            body = await read(response)
            names = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, body, names, began, time.monotonic(), server.name)
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        sent = not isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError))
        why = f"response broke off: {type(error).__name__} {error}"[:100] if context["answered"] else type(error).__name__
        return Lost(sent, why, began, time.monotonic(), server.name, context["kept"])


async def _is_kept(_session: aiohttp.ClientSession, context: SimpleNamespace, _parameters: aiohttp.TraceConnectionReuseconnParams) -> None:
    """Tells the request that its connection had been used before."""
    context.trace_request_ctx["kept"] = True


def settled(outcome: Outcome) -> bool:
    """Whether the request needs no repetition: it was carried out or refused."""
    return isinstance(outcome, Answer) and outcome.status < 500 and outcome.status not in (408, 429)


async def decode(response: aiohttp.ClientResponse) -> Any:
    """JSON as objects, anything else as bytes."""
    raw = await response.read()
    if "application/json" in response.headers.get("Content-Type", ""):
        try:
            return json.loads(raw)
        except ValueError:
            return raw
    return raw


def multipart(name: str, content: bytes, purpose: str) -> tuple[bytes, dict[str, str]]:
    """The body and headers of an upload."""
    boundary = uuid.uuid4().hex
    parts = [f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n'.encode()]
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
    parts += [head.encode(), b"Content-Type: application/octet-stream\r\n\r\n", content, f"\r\n--{boundary}--\r\n".encode()]
    return b"".join(parts), {"Content-Type": f"multipart/form-data; boundary={boundary}"}
