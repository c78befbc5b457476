"""Calls of the model: chats, streamed or not, responses in the background and batches. The tokens of each are different."""

import json
import time
from dataclasses import dataclass
from typing import Any

import aiohttp

from client import Answer, Lost, decode, multipart
from ledger import Call, Key
from mock_model import prompt
from nodes import MODEL
from workload import Tenant, Workload

LINES = 5
# A project may have 100 responses, and 100 batches, that have not ended.
MOST_OPEN = 40
MOST_OPEN_BATCHES = 5


@dataclass
class Background:
    """A response in the background that was acknowledged."""

    id: str
    key: Key
    marker: str
    call: Call
    ended: bool = False


@dataclass
class Batch:
    """A batch that was acknowledged, with the markers and calls of its lines."""

    id: str
    key: Key
    lines: dict[str, Call]
    ended: bool = False


class Calls:
    """The operations that call the model."""

    def __init__(self, work: Workload) -> None:
        self.work, self.ledger, self.clients, self.rng = work, work.ledger, work.clients, work.rng
        self.backgrounds: list[Background] = []
        self.batches: list[Batch] = []

    def request(self, marker: str, call: Call) -> dict:
        slow = self.rng.random() < 0.1
        text = prompt(marker, call.tokens_in, call.tokens_out, 5 if slow else 1, 200 if slow else 0)
        return {"model": MODEL, "messages": [{"role": "user", "content": text}]}

    async def chat(self) -> None:
        """A chat that is not streamed."""
        tenant, marker = self.work.tenant(), self.ledger.marker("chat")
        call = self.ledger.call(tenant.project, "chat")
        outcome = await self.clients.request("POST", "/v1/chat/completions", tenant.key, self.request(marker, call))
        if isinstance(outcome, Answer) and outcome.ok:
            content, usage = outcome.body["choices"][0]["message"]["content"], outcome.body["usage"]
            self.check(call, marker, content, usage)
            self.acknowledge("chat", call)
        else:
            self.unanswered("chat", call, outcome)

    def acknowledge(self, operation: str, call: Call) -> None:
        call.acknowledged = True
        self.ledger.count(operation, "acknowledged")

    def unanswered(self, operation: str, call: Call, outcome: Answer | Lost) -> None:
        """A call without a response: it was not sent, or its outcome is unknown."""
        if isinstance(outcome, Lost) and not outcome.sent:
            del self.ledger.calls[call.tokens_in]
            self.ledger.count(operation, "not sent")
        elif isinstance(outcome, Lost) or outcome.status >= 429:
            self.ledger.count(operation, "unknown")
        else:
            self.work.unexpected(operation, outcome)

    def check(self, call: Call, marker: str, content: str, usage: dict) -> None:
        """The client sees the answer and the usage that belong to its request."""
        expected = (f"echo {marker}", call.tokens_in, call.tokens_out)
        if (content, usage["prompt_tokens"], usage["completion_tokens"]) != expected:
            self.ledger.violation("answers are right", f"expected {expected}, got {content!r} with {usage}")

    async def stream(self) -> None:
        """A streamed chat. It is acknowledged when the stream has ended with [DONE]."""
        tenant, marker = self.work.tenant(), self.ledger.marker("chat")
        call = self.ledger.call(tenant.project, "stream")
        body = self.request(marker, call) | {"stream": True, "stream_options": {"include_usage": True}}
        outcome = await self.clients.request("POST", "/v1/chat/completions", tenant.key, body, timeout=15, read=read_events)
        if isinstance(outcome, Answer) and outcome.ok:
            self.check(call, marker, outcome.body["content"], outcome.body["usage"])
            self.acknowledge("stream", call)
        else:
            self.unanswered("stream", call, outcome)

    def open_of(self, entries: list, tenant: Tenant) -> int:
        return sum(1 for one in entries if not one.ended and one.key is tenant.key)

    async def background(self) -> None:
        """Starts a response in the background, or looks at one."""
        tenant = self.work.tenant()
        if self.open_of(self.backgrounds, tenant) >= MOST_OPEN or (self.backgrounds and self.rng.random() < 0.5):
            await self.look(self.rng.choice(self.backgrounds))
            return
        marker = self.ledger.marker("response")
        call = self.ledger.call(tenant.project, "background")
        text = prompt(marker, call.tokens_in, call.tokens_out, 5, self.rng.choice([0, 100, 400]))
        body = {"model": MODEL, "input": text, "background": True, "store": True}
        outcome = await self.clients.request("POST", "/v1/responses", tenant.key, body)
        if isinstance(outcome, Answer) and outcome.ok:
            self.backgrounds.append(Background(outcome.body["id"], tenant.key, marker, call))
            self.acknowledge("background", call)
        else:
            self.unanswered("background", call, outcome)

    async def look(self, entry: Background) -> str:
        """Reads a response on any node. An ended one must have the whole answer."""
        outcome = await self.clients.request("GET", f"/v1/responses/{entry.id}", entry.key)
        if not isinstance(outcome, Answer) or outcome.status >= 429:
            return "unknown"
        if not outcome.ok:
            self.ledger.violation("acknowledged writes are read on every node", f"response {entry.id}: {outcome}")
            return "missing"
        status = outcome.body["status"]
        if status in ("completed", "failed", "incomplete", "cancelled"):
            entry.ended = True
            texts = [part.get("text") for item in outcome.body["output"] for part in item.get("content") or []]
            if status != "completed" or texts != [f"echo {entry.marker}"]:
                self.ledger.violation("responses in the background complete", f"{entry.id} is {status} with {texts}: {outcome.body.get('error')}")
        return status

    async def batch(self) -> None:
        """Uploads the requests of a batch and starts it. With several open ones, looks at one instead."""
        tenant = self.work.tenant()
        if self.open_of(self.batches, tenant) >= MOST_OPEN_BATCHES:
            await self.look_at_batch(self.rng.choice([one for one in self.batches if not one.ended and one.key is tenant.key]))
            return
        lines = {self.ledger.marker("line"): self.ledger.call(tenant.project, "batch") for _ in range(LINES)}
        requests = [self.line(marker, call) for marker, call in lines.items()]
        data, headers = multipart(self.ledger.marker("input"), "".join(requests).encode(), "batch")
        outcome, _ = await self.clients.write("POST", "/v1/files", tenant.key, data=data, headers=headers)
        if isinstance(outcome, Answer) and outcome.ok:
            body = {"input_file_id": outcome.body["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
            outcome, _ = await self.clients.write("POST", "/v1/batches", tenant.key, body)
            if isinstance(outcome, Answer) and outcome.ok:
                self.batches.append(Batch(outcome.body["id"], tenant.key, lines))
                for call in lines.values():
                    call.acknowledged = True
                self.ledger.count("batch", "acknowledged")
                return
        self.ledger.count("batch", "unknown")

    def line(self, marker: str, call: Call) -> str:
        text = prompt(marker, call.tokens_in, call.tokens_out, 2, self.rng.choice([0, 0, 200]))
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
        return json.dumps({"custom_id": marker, "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n"

    async def look_at_batch(self, entry: Batch) -> str:
        """Reads a batch on any node. A completed one must have each line's answer once."""
        answer = await self.clients.read(f"/v1/batches/{entry.id}", entry.key)
        state = answer.body.get("state") if answer.ok else "missing"
        if state not in ("completed", "failed", "expired", "cancelled", "missing"):
            return str(state)
        entry.ended = True
        if state != "completed" or not answer.body["output_file_id"]:
            self.ledger.violation("batches complete", f"{entry.id} is {state}: {str(answer.body)[:500]}")
            return str(state)
        output = await self.clients.read(f"/v1/files/{answer.body['output_file_id']}/content", entry.key)
        found = [json.loads(line) for line in output.body.decode().splitlines()]
        contents = [(one["custom_id"], one["response"]["body"]["choices"][0]["message"]["content"]) for one in found]
        if contents != [(marker, f"echo {marker}") for marker in entry.lines]:
            self.ledger.violation("each line of a batch is answered once", f"{entry.id}: {contents}")
        return str(state)

    async def finish(self, seconds: float) -> float:
        """Waits until all background work has ended. Returns the seconds that it took."""
        began = time.monotonic()
        for entry in self.backgrounds:
            while not entry.ended and time.monotonic() < began + seconds:
                await self.look(entry)
            if not entry.ended:
                self.ledger.violation("responses in the background complete", f"{entry.id} has not ended after {seconds} s")
        for batch in self.batches:
            while not batch.ended and time.monotonic() < began + seconds:
                await self.look_at_batch(batch)
            if not batch.ended:
                self.ledger.violation("batches complete", f"{batch.id} has not ended after {seconds} s")
        return time.monotonic() - began


async def read_events(response: aiohttp.ClientResponse) -> Any:
    """The content and the usage of a streamed chat. Fails if it does not end with [DONE]."""
    if response.status != 200:
        return await decode(response)
    content, usage, done, error = "", None, False, None
    async for line in response.content:
        if line.startswith(b"data: [DONE]"):
            done = True
        elif line.startswith(b"data: "):
            event = json.loads(line[6:])
            usage, error = event.get("usage") or usage, event.get("error") or error
            content += "".join(one["delta"].get("content") or "" for one in event.get("choices", []))
    if not done or not usage:
        raise aiohttp.ClientPayloadError(f"the stream ended with the error {error.get('code')}" if error else "the stream has no end")
    return {"content": content, "usage": usage}
