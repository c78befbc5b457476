"""Conversations: several clients append to the same ones, with and without the version that they expect."""

from dataclasses import dataclass, field

from client import Answer, Lost
from ledger import Key, Project
from mock_model import prompt
from nodes import MODEL
from workload import Tenant, Workload

# A conversation may have 4,096 messages.
MOST_TURNS = 600


@dataclass
class Turn:
    """Messages that were appended together. `version`: that of the conversation with them, if acknowledged."""

    markers: list[str]
    version: int | None = None


@dataclass
class Conversation:
    """A conversation as the clients know it."""

    id: str
    project: Project
    key: Key
    version: int = 1
    turns: list[Turn] = field(default_factory=list)
    refused: list[Turn] = field(default_factory=list)
    sent: int = 0


class Conversations:
    """The operations on conversations."""

    def __init__(self, work: Workload) -> None:
        self.work, self.ledger, self.clients, self.rng = work, work.ledger, work.clients, work.rng
        self.all: list[Conversation] = []

    async def prepare(self) -> None:
        for tenant in self.work.tenants:
            await self.create(tenant)
        assert self.all, "the cluster does not work before the first fault"

    async def create(self, tenant: Tenant) -> None:
        marker = self.ledger.marker("conversation")
        body = {"metadata": {"marker": marker}}
        answer = await self.work.create("conversation", "/v1/conversations", tenant.key, body, marker, tenant.project)
        if answer:
            self.all.append(Conversation(answer.body["id"], tenant.project, tenant.key, answer.body["version"]))

    def pick(self) -> Conversation:
        """One of the last conversations, so that clients meet."""
        return self.rng.choice(self.all[-6:])

    async def step(self) -> None:
        """Creates a conversation now and then; otherwise appends to one, by itself or by a chat."""
        if self.rng.random() < 0.05 or self.pick().sent > MOST_TURNS:
            await self.create(self.work.tenant())
        elif self.rng.random() < 0.6:
            await self.append(self.pick())
        else:
            await self.chat(self.pick())

    async def append(self, conversation: Conversation) -> None:
        """Appends one or two messages, mostly with a version check."""
        turn = Turn([self.ledger.marker("turn") for _ in range(self.rng.randint(1, 2))])
        roles = ["user", "assistant"]
        body: dict = {"messages": [{"role": role, "content": marker} for role, marker in zip(roles, turn.markers)]}
        checked = self.rng.random() < 0.8
        if checked:
            body["version"] = conversation.version
        conversation.sent += 1
        path = f"/v1/conversations/{conversation.id}/messages"
        outcome, _ = await self.clients.write("POST", path, conversation.key, body, twice=self.rng.random() < 0.1)
        if isinstance(outcome, Answer) and outcome.ok:
            if checked and outcome.body["version"] != body["version"] + 1:
                text = f"{conversation.id}: expected {body['version']}, stored as {outcome.body['version']}"
                self.ledger.violation("version checks hold", text)
            self.acknowledged("append", conversation, turn, outcome.body["version"])
            await self.work.read_back(f"/v1/conversations/{conversation.id}", conversation.key)
        elif isinstance(outcome, Lost) or outcome.status >= 429:
            conversation.turns.append(turn)
            self.ledger.count("append", "unknown")
        elif outcome.status == 409 and checked:
            conversation.refused.append(turn)
            self.ledger.count("append", "conflict")
            await self.refresh(conversation)
        else:
            self.work.unexpected("append", outcome)

    def acknowledged(self, operation: str, conversation: Conversation, turn: Turn, version: int) -> None:
        turn.version = version
        conversation.turns.append(turn)
        conversation.version = max(conversation.version, version)
        self.ledger.count(operation, "acknowledged")

    async def refresh(self, conversation: Conversation) -> None:
        answer = await self.clients.request("GET", f"/v1/conversations/{conversation.id}", conversation.key)
        if isinstance(answer, Answer) and answer.ok:
            conversation.version = max(conversation.version, answer.body["version"])

    async def chat(self, conversation: Conversation) -> None:
        """A chat that stores its turn. It has no idempotency key, so it is sent once."""
        marker = self.ledger.marker("turn")
        call = self.ledger.call(conversation.project, "chat in conversation")
        text = prompt(marker, call.tokens_in, call.tokens_out)
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "conversation_id": conversation.id}
        conversation.sent += 1
        turn = Turn([marker, f"echo {marker}"])
        outcome = await self.clients.request("POST", "/v1/chat/completions", conversation.key, body)
        if isinstance(outcome, Answer) and outcome.ok:
            call.acknowledged = True
            self.acknowledged("chat in conversation", conversation, turn, outcome.body["conversation"]["version"])
        elif isinstance(outcome, Lost) and not outcome.sent:
            del self.ledger.calls[call.tokens_in]
            self.ledger.count("chat in conversation", "not sent")
        elif isinstance(outcome, Answer) and outcome.status == 409:
            # The response was generated, so its tokens may count, but the turn must not be stored.
            conversation.refused.append(turn)
            self.ledger.count("chat in conversation", "conflict")
        elif isinstance(outcome, Lost) or outcome.status >= 500:
            conversation.turns.append(turn)
            self.ledger.count("chat in conversation", "unknown")
        else:
            self.work.unexpected("chat in conversation", outcome)


