"""What the clients do: keys, agents, files, projects and limits. Each operation records its outcome in the ledger."""

import asyncio
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from client import Answer, Clients, Lost, multipart
from ledger import Created, Key, Ledger, Project, Value
from nodes import Server
from revocation import Prober

# Keys of a project, so that the lists at the end stay short.
MOST_KEYS = 3000
# The error of the database's time as the nodes know it: half a round trip, which may take long on a busy machine.
CLOCK_ERROR = 1.0


@dataclass
class Tenant:
    """A project that all clients share, with a key that lives as long as the run."""

    project: Project
    key: Key
    keys: list[Key] = field(default_factory=list)
    agents: list[Created] = field(default_factory=list)
    limits: asyncio.Lock = field(default_factory=asyncio.Lock)
    next_limit: int = 500_000
    keys_made: int = 0


class Workload:
    """The operations on resources. Conversations and calls of the model are in files of their own."""

    def __init__(self, ledger: Ledger, clients: Clients, prober: Prober, admin: Key) -> None:
        self.ledger, self.clients, self.prober, self.admin = ledger, clients, prober, admin
        self.rng = clients.rng
        self.tenants: list[Tenant] = []

    async def prepare(self, count: int) -> None:
        """Creates the shared projects and their keys."""
        for _ in range(count):
            project = await self.new_project()
            assert project, "the cluster does not work before the first fault"
            key = await self.new_key(project)
            assert key, "the cluster does not work before the first fault"
            quotas = {"quotas": {"api_keys": 100_000, "agents": 100_000, "files": 100_000}}
            await self.clients.write("PATCH", f"/v1/projects/{project.id}/rate-limits", self.admin, quotas)
            self.tenants.append(Tenant(project, key))

    def tenant(self) -> Tenant:
        return self.rng.choice(self.tenants)

    async def create(self, kind: str, path: str, key: Key, body: dict, marker: str, project: Project | None) -> Answer | None:
        """Creates a resource, sometimes by the same request on two nodes. None: refused or unknown."""
        began, twice = time.monotonic(), self.rng.random() < 0.1
        outcome, _ = await self.clients.write("POST", path, key, body, twice=twice)
        if isinstance(outcome, Answer) and outcome.ok:
            self.check_time(kind, outcome.body.get("created_at"), time.monotonic() - began)
            self.ledger.created.append(Created(kind, marker, project, outcome.body["id"]))
            self.ledger.count(f"create {kind}", "acknowledged")
            return outcome
        if isinstance(outcome, Lost) or outcome.status >= 500 or outcome.status == 429:
            self.ledger.created.append(Created(kind, marker, project))
            self.ledger.count(f"create {kind}", "unknown")
            return None
        if outcome.body["error"]["param"] == "expires_at" and time.monotonic() > began + 2:
            # The key has expired meanwhile. An earlier attempt may have created it.
            self.ledger.created.append(Created(kind, marker, project))
            self.ledger.count(f"create {kind}", "too late")
            return None
        self.unexpected(f"create {kind}", outcome)
        return None

    def check_time(self, kind: str, text: str | None, seconds: float) -> None:
        """The time of a creation is the true time, whatever the clock of the node says. `seconds`: since the request."""
        age = (datetime.now(UTC) - datetime.fromisoformat(text)).total_seconds() if text else 0.0
        error = max(-age, age - seconds, 0.0)
        self.ledger.sample("error of the time of a creation (s)", error)
        if error > CLOCK_ERROR:
            self.ledger.violation("clock skew changes nothing", f"{kind} was created {age:.2f} s ago, but requested {seconds:.2f} s ago")

    def unexpected(self, operation: str, outcome: Answer) -> None:
        """A refusal of a request that is valid."""
        self.ledger.count(operation, f"refused {outcome.status}")
        self.ledger.violation("valid requests are not refused", f"{operation}: {outcome}")

    async def new_project(self) -> Project | None:
        marker = self.ledger.marker("project")
        answer = await self.create("project", "/v1/projects", self.admin, {"name": marker}, marker, None)
        if not answer:
            return None
        project = Project(answer.body["id"], marker)
        self.ledger.projects.append(project)
        return project

    async def new_key(self, project: Project, seconds: float | None = None) -> Key | None:
        """Creates a key, which expires after some seconds if given. None: the secret is not known."""
        marker = self.ledger.marker("key")
        body = {"name": marker, "project_id": project.id}
        expires = time.monotonic() + (seconds or 0)
        if seconds:
            body["expires_at"] = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
        answer = await self.create("key", "/v1/api-keys", self.admin, body, marker, project)
        if not answer or not answer.body.get("secret"):
            return None
        key = Key(answer.body["id"], marker, answer.body["secret"], project)
        if seconds:
            self.prober.add(key, expires, "expired")
        return key

    async def key_lifecycle(self) -> None:
        """Creates, uses, rotates or revokes a key."""
        tenant = self.tenant()
        if len(tenant.keys) < 3 or self.rng.random() < 0.3:
            await self.another_key(tenant)
            return
        key = tenant.keys.pop(self.rng.randrange(len(tenant.keys)))
        await asyncio.gather(*(self.use_on(key, node.server) for node in self.clients.nodes))
        if self.rng.random() < 0.5:
            await self.rotate(tenant, key)
        else:
            await self.revoke(key)

    async def another_key(self, tenant: Tenant) -> None:
        if tenant.keys_made >= MOST_KEYS:
            return
        tenant.keys_made += 1
        expiring = self.rng.uniform(2, 5) if self.rng.random() < 0.2 else None
        key = await self.new_key(tenant.project, expiring)
        if key and not expiring:
            await self.use(key)
            tenant.keys.append(key)

    async def use(self, key: Key) -> None:
        self.accepted(key, await self.clients.request("GET", "/v1/me", key, timeout=5))

    async def use_on(self, key: Key, server: Server) -> None:
        self.accepted(key, await self.clients.send(server, "GET", "/v1/me", key, timeout=5))

    def accepted(self, key: Key, answer: Answer | Lost) -> None:
        """A valid key must be accepted, or get no answer; a 401 is a violation."""
        if isinstance(answer, Answer) and answer.status in (401, 403):
            self.ledger.violation("valid keys are accepted", f"{key.name}: {answer}")

    async def rotate(self, tenant: Tenant, key: Key) -> None:
        grace = self.rng.choice([0, 0, 2])
        began = time.monotonic()
        outcome, _ = await self.clients.write("PUT", f"/v1/api-keys/{key.id}", self.admin, {"grace_period_seconds": grace})
        if not isinstance(outcome, Answer) or outcome.status >= 429:
            self.ledger.count("rotate key", "unknown")
        elif outcome.ok:
            self.ledger.count("rotate key", "acknowledged")
            self.ledger.sample("rotation (s)", outcome.ended - began)
            # An earlier attempt may have been the one that counted, so the grace period ends at the latest then.
            self.prober.add(key, outcome.ended + grace, f"rotated (grace {grace} s)")
            if outcome.body.get("secret"):
                tenant.keys.append(Key(key.id, key.name, outcome.body["secret"], key.project))
        else:
            self.unexpected("rotate key", outcome)

    async def revoke(self, key: Key) -> None:
        outcome, _ = await self.clients.write("DELETE", f"/v1/api-keys/{key.id}", self.admin, idempotent=False)
        if not isinstance(outcome, Answer) or outcome.status >= 429:
            self.ledger.count("revoke key", "unknown")
        elif outcome.ok:
            self.ledger.count("revoke key", "acknowledged")
            self.prober.add(key, outcome.ended, "revoked")
        else:
            self.unexpected("revoke key", outcome)

    async def project_lifecycle(self) -> None:
        """Creates a project with a key, uses the key on all nodes, and archives the project."""
        project = await self.new_project()
        key = await self.new_key(project) if project else None
        if not project or not key:
            return
        await asyncio.gather(*(self.use_on(key, node.server) for node in self.clients.nodes))
        outcome, _ = await self.clients.write("POST", f"/v1/projects/{project.id}/archive", self.admin, {})
        if isinstance(outcome, Answer) and outcome.ok:
            self.ledger.count("archive project", "acknowledged")
            self.prober.add(key, outcome.ended, "archived")
        else:
            self.ledger.count("archive project", "unknown")

    async def agent(self) -> None:
        """Creates an agent, or changes the instructions of one."""
        tenant = self.tenant()
        if len(tenant.agents) < 3 or self.rng.random() < 0.3:
            marker = self.ledger.marker("agent")
            body = {"name": marker, "instructions": "none"}
            answer = await self.create("agent", "/v1/agents", tenant.key, body, marker, tenant.project)
            if answer:
                self.ledger.instructions[answer.body["id"]] = Value("none")
                tenant.agents.append(self.ledger.created[-1])
                await self.read_back(f"/v1/agents/{answer.body['id']}", tenant.key)
            return
        agent = tenant.agents.pop(self.rng.randrange(len(tenant.agents)))
        text = self.ledger.marker("instructions")
        outcome, _ = await self.clients.write("PATCH", f"/v1/agents/{agent.id}", tenant.key, {"instructions": text})
        self.assigned("change agent", self.ledger.instructions[str(agent.id)], text, outcome)
        tenant.agents.append(agent)

    def assigned(self, operation: str, value: Value, new: object, outcome: Answer | Lost) -> None:
        """Records the outcome of a write that sets a field."""
        known = isinstance(outcome, Answer) and outcome.status < 429
        if isinstance(outcome, Answer) and known and not outcome.ok:
            return self.unexpected(operation, outcome)
        value.set(new, known)
        self.ledger.count(operation, "acknowledged" if known else "unknown")

    async def read_back(self, path: str, key: Key) -> None:
        """An acknowledged write must be seen by the next read, on any node."""
        if self.rng.random() > 0.3:
            return
        answer = await self.clients.request("GET", path, key)
        if isinstance(answer, Answer) and answer.status in (401, 403, 404):
            self.ledger.violation("acknowledged writes are read on every node", f"GET {path}: {answer}")

    async def file(self) -> None:
        """Uploads a small file."""
        tenant = self.tenant()
        marker = self.ledger.marker("file")
        content = "".join(f'{{"custom_id":"{marker}-{line}"}}\n' for line in range(self.rng.randint(1, 200)))
        data, headers = multipart(marker, content.encode(), "batch")
        outcome, _ = await self.clients.write("POST", "/v1/files", tenant.key, data=data, headers=headers)
        if isinstance(outcome, Answer) and outcome.ok:
            self.ledger.created.append(Created("file", marker, tenant.project, outcome.body["id"], content))
            self.ledger.count("create file", "acknowledged")
            await self.read_back(f"/v1/files/{outcome.body['id']}", tenant.key)
        elif isinstance(outcome, Lost) or outcome.status >= 429:
            self.ledger.created.append(Created("file", marker, tenant.project))
            self.ledger.count("create file", "unknown")
        else:
            self.unexpected("create file", outcome)

    async def limit(self) -> None:
        """Sets the rate limit of a project to a value that it never had, far above what is sent."""
        tenant = self.tenant()
        async with tenant.limits:
            tenant.next_limit += 1
            path = f"/v1/projects/{tenant.project.id}/rate-limits"
            outcome, _ = await self.clients.write("PATCH", path, self.admin, {"requests_per_minute": tenant.next_limit})
            value = self.ledger.limits.setdefault(tenant.project.id, Value())
            self.assigned("change limits", value, tenant.next_limit, outcome)
