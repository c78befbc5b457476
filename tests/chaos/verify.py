"""The checks at the end, with all nodes up: what was acknowledged is there on every node, once, and nothing else is."""

import asyncio
import csv
import json
import pathlib
import subprocess
from collections import Counter, defaultdict

from client import Clients
from cluster import Cluster
from conversations import Conversation
from ledger import Key, Ledger, Project
from nodes import MODEL, Server
from workload import Tenant

SAMPLED_FILES = 60
AUDITED = {"project": "project", "key": "api_key", "agent": "agent", "file": "file", "conversation": "conversation"}


class Verify:
    """All checks of one run."""

    def __init__(self, ledger: Ledger, cluster: Cluster, clients: Clients, tenants: list[Tenant]) -> None:
        self.ledger, self.cluster, self.clients, self.tenants = ledger, cluster, clients, tenants
        assert cluster.admin
        self.admin: Key = cluster.admin
        self.checked: Counter[str] = Counter()

    async def resources(self, conversations: list[Conversation]) -> None:
        """Every node lists every resource that was acknowledged, and none twice."""
        for node in self.cluster.nodes:
            server = node.server
            lists: list[tuple[str, Project | None, str, str, Key]] = [("project", None, "/v1/projects", "name", self.admin)]
            for project in self.ledger.projects:
                if any(one.kind == "key" and one.project is project for one in self.ledger.created):
                    lists.append(("key", project, f"/v1/api-keys?project_id={project.id}", "name", self.admin))
            for tenant in self.tenants:
                lists.append(("agent", tenant.project, "/v1/agents", "name", tenant.key))
                lists.append(("file", tenant.project, "/v1/files", "filename", tenant.key))
                lists.append(("conversation", tenant.project, "/v1/conversations", "marker", tenant.key))
            for kind, owner, path, field, key in lists:
                entries = await self.clients.pages(path, key, server)
                found = Counter((one.get("metadata") or {}).get("marker") if field == "marker" else one[field] for one in entries)
                self.compare(kind, owner, found, server)
            await self.fields(server)
            for conversation in conversations:
                await self.conversation(conversation, server)
        await self.files()

    def compare(self, kind: str, project: Project | None, found: Counter, server: Server) -> None:
        created = [one for one in self.ledger.created if one.kind == kind and one.project is project]
        for one in created:
            self.checked[kind] += 1
            count = found[one.marker]
            if one.id and not count:
                self.ledger.violation("0 acknowledged writes lost", f"{kind} {one.marker} ({one.id}) is not on {server.name}")
            if count > 1:
                self.ledger.violation("0 duplicated effects", f"{kind} {one.marker} is {count} times on {server.name}")
        known = {one.marker for one in created}
        strange = [name for name in found if str(name).startswith(f"{kind}-") and name not in known]
        if strange:
            self.ledger.violation("0 effects of refused requests", f"{kind}s on {server.name}: {strange[:5]}")

    async def fields(self, server: Server) -> None:
        """Fields that were set have the last acknowledged value, or one whose outcome is unknown."""
        for tenant in self.tenants:
            value = self.ledger.limits.get(tenant.project.id)
            answer = await self.clients.read(f"/v1/projects/{tenant.project.id}/rate-limits", self.admin, server)
            if value and not value.may_be(answer.body["requests_per_minute"]):
                text = f"limit of {tenant.project.name} on {server.name}: {answer.body['requests_per_minute']}, last {value.last}"
                self.ledger.violation("0 acknowledged writes lost", text)
            for entry in await self.clients.pages("/v1/agents", tenant.key, server):
                expected = self.ledger.instructions.get(entry["id"])
                if expected and not expected.may_be(entry["instructions"]):
                    text = f"agent {entry['name']} on {server.name}: {entry['instructions']}, last {expected.last}"
                    self.ledger.violation("0 acknowledged writes lost", text)

    async def conversation(self, conversation: Conversation, server: Server) -> None:
        """Acknowledged turns are there in the order of their versions, once, and refused ones are not."""
        answer = await self.clients.read(f"/v1/conversations/{conversation.id}", conversation.key, server)
        stored = [mark_of(message["content"]) for message in answer.body["messages"]]
        where = {mark: index for index, mark in enumerate(stored)}
        present, last = 0, -1
        if len(where) != len(stored):
            twice = [mark for mark, count in Counter(stored).items() if count > 1]
            self.ledger.violation("0 duplicated effects", f"turns {twice[:5]} of {conversation.id} on {server.name}")
        for turn in sorted(conversation.turns, key=lambda one: one.version or 0):
            self.checked["turn"] += 1
            places = [where.get(mark, -1) for mark in turn.markers]
            if places[0] < 0 and turn.version is None:
                continue
            present += 1
            if places[0] < 0 or places != list(range(places[0], places[0] + len(places))):
                self.ledger.violation("0 acknowledged writes lost", f"turn {turn} of {conversation.id} on {server.name} is at {places}")
            elif turn.version is not None:
                if places[0] < last:
                    self.ledger.violation("turns are in order", f"turn {turn} of {conversation.id} on {server.name}")
                last = places[0]
        versions = Counter(turn.version for turn in conversation.turns if turn.version is not None)
        if any(count > 1 for count in versions.values()):
            self.ledger.violation("version checks hold", f"{conversation.id}: a version was acknowledged twice")
        if answer.body["version"] != 1 + present:
            text = f"{conversation.id} on {server.name}: version {answer.body['version']}, turns {present}"
            self.ledger.violation("0 duplicated effects", text)
        kept = [turn for turn in conversation.refused if turn.markers[0] in where]
        if kept:
            self.ledger.violation("0 effects of refused requests", f"turns {kept[:3]} of {conversation.id}")

    async def files(self) -> None:
        """The content of files, each on one of the nodes."""
        files = [one for one in self.ledger.created if one.kind == "file" and one.id]
        keys = {tenant.project.id: tenant.key for tenant in self.tenants}
        for one in self.clients.rng.sample(files, min(SAMPLED_FILES, len(files))):
            assert one.project
            answer = await self.clients.read(f"/v1/files/{one.id}/content", keys[one.project.id])
            self.checked["file content"] += 1
            if not answer.ok or answer.body.decode() != one.content:
                self.ledger.violation("0 acknowledged writes lost", f"content of {one.marker}: {answer.status}")

    async def usage(self) -> None:
        """The usage of each project: every node tells the same, and it is what the clients have counted."""
        rows = await asyncio.to_thread(self.export)
        self.rows(rows)
        for project in [tenant.project for tenant in self.tenants]:
            told = [await self.report(project, node.server) for node in self.cluster.nodes]
            if any(one != told[0] for one in told):
                self.ledger.violation("all nodes tell the same usage", f"{project.name}: {told}")
            mine = [call for call in self.ledger.calls.values() if call.project is project]
            for index, name in enumerate(("tokens_in", "tokens_out"), 1):
                least = sum(getattr(call, name) for call in mine if call.acknowledged)
                most = sum(getattr(call, name) for call in mine)
                self.within(f"{name} of {project.name}", told[0][index], least, most)
            aside = [call for call in mine if call.how in ("background", "batch")]
            least = project.answered + sum(1 for call in aside if call.acknowledged)
            most = project.answered + project.unknown + len(aside)
            self.within(f"requests of {project.name}", told[0][0], least, most)

    def within(self, what: str, stored: int, least: int, most: int) -> None:
        self.ledger.note(f"usage: {what}: acknowledged {least}, stored {stored}, with unknown ones {most}")
        self.checked["usage total"] += 1
        if not least <= stored <= most:
            self.ledger.violation("usage equals the clients' count", f"{what}: stored {stored}, allowed {least} to {most}")

    async def report(self, project: Project, server: Server) -> tuple[int, int, int]:
        answer = await self.clients.read(f"/v1/projects/{project.id}/usage", self.admin, server)
        return answer.body["requests"], answer.body["tokens"]["input"], answer.body["tokens"]["output"]

    def export(self) -> list[dict[str, str]]:
        """All usage records, through the first node."""
        path = self.cluster.folder / "usage.csv"
        self.command("usage", "export", str(path), "--format", "csv")
        with open(path, newline="") as file:
            return [row for row in csv.DictReader(file)]

    def command(self, *words: str) -> str:
        """Runs a command of the server on the first node's data folder, while the server runs."""
        data = self.cluster.nodes[0].server.folder
        done = subprocess.run([str(self.cluster.binary), *words, "--data", str(data)], capture_output=True, text=True, check=False)
        if done.returncode:
            self.ledger.violation("commands work", f"outpost {' '.join(words)}: {done.stdout[-500:]} {done.stderr[-500:]}")
        return done.stdout

    def rows(self, rows: list[dict[str, str]]) -> None:
        """Each acknowledged call has one usage record, each unknown one at most one. The tokens tell which is which."""
        found: dict[int, list[int]] = defaultdict(list)
        for row in rows:
            if row["model"] == MODEL and int(row["input_tokens"]):
                found[int(row["input_tokens"])].append(int(row["output_tokens"]))
        for call in self.ledger.calls.values():
            outputs = found.pop(call.tokens_in, [])
            self.checked["call"] += 1
            if call.acknowledged and not outputs:
                self.ledger.violation("0 acknowledged writes lost", f"usage of a {call.how} ({call.tokens_in} tokens)")
            if len(outputs) > 1:
                self.ledger.violation("0 duplicated effects", f"usage of a {call.how} ({call.tokens_in} tokens): {len(outputs)} records")
            if call.acknowledged and outputs and outputs[0] != call.tokens_out:
                self.ledger.violation("usage equals the clients' count", f"{call}: {outputs} output tokens")
        if found:
            self.ledger.note(f"usage records with tokens that no client asked for: {list(found.items())[:5]} ({len(found)})")
            self.ledger.sample("usage records with estimated tokens", len(found))

    async def audit(self, conversations: list[Conversation]) -> None:
        """The audit log has one event for each effect."""
        told = [await self.events(node.server) for node in self.cluster.nodes]
        if any(one != told[0] for one in told):
            self.ledger.violation("all nodes tell the same audit log", f"{[sum(one.values()) for one in told]} events")
        for one in self.ledger.created:
            if one.id:
                self.audited(f"{AUDITED[one.kind]}.created", one.id, 1, told[0])
        for conversation in conversations:
            answer = await self.clients.read(f"/v1/conversations/{conversation.id}", conversation.key)
            self.audited("conversation.appended", conversation.id, answer.body["version"] - 1, told[0])

    def audited(self, action: str, target: str, count: int, events: Counter[tuple[str, str]]) -> None:
        self.checked["audit event"] += count
        if events[action, target] != count:
            self.ledger.violation("the audit log has each effect once", f"{action} of {target}: {events[action, target]}, not {count}")

    async def events(self, server: Server) -> Counter[tuple[str, str]]:
        """How often each action was done to each resource."""
        answer = await self.clients.read("/v1/audit-events", self.admin, server, "application/jsonl")
        events = [json.loads(line) for line in answer.body.decode().splitlines()]
        return Counter((event["action"], event["target"]) for event in events)

    async def store(self) -> None:
        """`outpost check` finds every record intact, and sums that match the records."""
        output = await asyncio.to_thread(self.command, "check")
        self.ledger.note(f"outpost check: {output.strip().splitlines()[-1] if output.strip() else 'no output'}")


def mark_of(content: str | list[dict]) -> str:
    """The marker of a stored message: a prompt for the mock contains it."""
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    return text.split()[0].removeprefix("mark=") if text.startswith("mark=") else text


def binary_of(path: str) -> pathlib.Path:
    """The binary, as an absolute path."""
    binary = pathlib.Path(path).resolve()
    if not binary.exists():
        raise SystemExit(f"tests/chaos: {binary} is missing; build it, or set OUTPOST_BIN")
    return binary
