"""Durable key creations and metered requests per second: a store in a file, and PostgreSQL with one to three nodes.

    cargo build --release
    OUTPOST_BIN=target/release/outpost CHAOS_PROGRAM=benches/peers/store_writes.py tests/chaos/run.sh [--seconds 10] [--repeat 5]

Needs root and `wrk`. The nodes, the database and the load generator share the machine. 64 connections in total ask the nodes of
a cluster of tests/chaos. The 100 % line is `pgbench` with 64 clients, on the same server and connections with TLS: one upsert
of 200 bytes a transaction. A metered request is `GET /v1/models/ID`: authentication, limits, and a usage record that is durable
before the response is sent. All figures are medians.
"""

import argparse
import asyncio
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass

import smoke

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent / "tests" / "chaos"))
# What tests/chaos/run.sh installs is not there in a smoke run outside of it.
if smoke.lacks("aiohttp") or smoke.lacks("wrk"):
    smoke.finish()

from client import Answer, Clients
from cluster import Cluster
from database import PASSWORD, PORT, USER, Database, binaries
from ledger import Ledger
from network import node_address
from nodes import PORT as NODE_PORT
from verify import binary_of

CONNECTIONS = 64
PROJECTS = 60
LOADS = ["keys in one project", "keys in 60 projects", "keys in 60 projects, each on one node", "metered requests"]
UPSERT = r"""
\set a random(1, 1000000000)
INSERT INTO bench (k, v) VALUES (decode(md5(:a::text), 'hex'), decode(repeat('ab', 200), 'hex')) ON CONFLICT (k) DO UPDATE SET v = excluded.v;
"""


@dataclass
class Figure:
    """One run: per second, and milliseconds."""

    rate: float
    p50: float
    p99: float


def median(runs: list[Figure]) -> Figure:
    """The median of each figure."""
    return Figure(*(statistics.median(getattr(run, name) for run in runs) for name in ("rate", "p50", "p99")))


async def prepare(cluster: Cluster) -> tuple[list[str], list[str]]:
    """Creates projects without quotas for keys, and a key for each. Returns the secrets and the projects."""
    assert cluster.admin
    clients = Clients(Ledger(), cluster.nodes, random.Random(0))
    secrets, projects = [], []
    try:
        for number in range(PROJECTS):
            made = [await clients.write("POST", "/v1/projects", cluster.admin, {"name": f"bench {number}"})]
            project = body(made[0][0])["id"]
            quotas = {"quotas": {"api_keys": 100_000_000}}
            body((await clients.write("PATCH", f"/v1/projects/{project}/rate-limits", cluster.admin, quotas))[0])
            new = {"name": "bench", "project_id": project, "scopes": ["project", "inference"]}
            secrets.append(body((await clients.write("POST", "/v1/api-keys", cluster.admin, new))[0])["secret"])
            projects.append(project)
    finally:
        await clients.close()
    return secrets, projects


def body(outcome: object) -> dict:
    assert isinstance(outcome, Answer) and outcome.ok, outcome
    return outcome.body


def wrk(load: str, cluster: Cluster, secrets: list[str], projects: list[str], seconds: int) -> Figure:
    """One run of the load generator, with a thread per node."""
    kind = {LOADS[2]: "apart", LOADS[3]: "metered"}.get(load, "keys")
    used = [projects[0]] if load == LOADS[0] else projects
    keys = secrets[:1] if load == LOADS[0] else secrets
    hosts = [node_address("clients", node.number) for node in cluster.nodes]
    environment = os.environ | {"BENCH_HOSTS": ",".join(hosts), "BENCH_PORT": str(NODE_PORT)}
    words = ["wrk", f"-t{len(hosts)}", f"-c{CONNECTIONS}", f"-d{seconds}s", "--timeout", "10s", "-s", str(HERE / "store_writes.lua")]
    words += [f"http://{hosts[0]}:{NODE_PORT}", "--", kind, ",".join(keys), ",".join(used)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("RESULT ")).removeprefix("RESULT "))
    if found["refused"] or found["lost"]:
        print(f"    {found['refused']} requests were refused, {found['lost']} lost", flush=True)
    return Figure((found["requests"] - found["refused"]) / found["seconds"], found["p50"], found["p99"])


def pgbench(database: Database, clients: int, seconds: int) -> Figure:
    """One run of pgbench: an upsert a transaction."""
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder, "upsert.sql")
        script.write_text(UPSERT)
        environment = os.environ | {"PGPASSWORD": PASSWORD, "PGSSLMODE": "require"}
        words = [str(binaries() / "pgbench"), "-h", database.address, "-p", str(PORT), "-U", USER, "-n", "-M", "prepared"]
        words += ["-c", str(clients), "-j", "2", "-T", str(seconds), "-f", str(script), "-l", f"--log-prefix={folder}/log", "outpost"]
        subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        times = sorted(int(line.split()[2]) / 1000 for path in pathlib.Path(folder).glob("log*") for line in path.open())
    return Figure(len(times) / seconds, times[len(times) // 2], times[int(len(times) * 0.99)])


def line(name: str, figure: Figure, whole: float | None) -> None:
    share = f"{100 * figure.rate / whole:6.0f} %" if whole else ""
    print(f"{name:60}{figure.rate:9.0f}/s   p50 {figure.p50:7.2f} ms   p99 {figure.p99:7.2f} ms {share}", flush=True)


async def measure(options: argparse.Namespace, folder: pathlib.Path) -> None:
    whole: float | None = None
    for store in options.stores.split(","):
        count = 1 if store == "redb" else int(store.removeprefix("pg"))
        kind = "redb" if store == "redb" else "postgres"
        cluster = Cluster(folder / store, binary_of(os.environ.get("OUTPOST_BIN", "target/release/outpost")), count, 0, kind)
        try:
            await cluster.start()
            if cluster.database and whole is None:
                cluster.database.execute("CREATE TABLE bench (k bytea PRIMARY KEY, v bytea NOT NULL)")
                for clients in (1, CONNECTIONS):
                    found = median([pgbench(cluster.database, clients, options.seconds) for _ in range(options.repeat)])
                    line(f"pgbench, {clients} clients, one upsert a commit", found, None)
                whole = found.rate
            secrets, projects = await prepare(cluster)
            for load in LOADS:
                runs = [wrk(load, cluster, secrets, projects, options.seconds) for _ in range(options.repeat + 1)][1:]
                line(f"{load}, {'file (redb)' if store == 'redb' else f'PostgreSQL, {count} nodes'}", median(runs), whole)
        finally:
            cluster.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--stores", default="redb,pg1,pg2,pg3")
    parser.add_argument("--folder", help="where the stores are; default: a temporary folder")
    smoke.run(parser, start, "--seconds 1 --repeat 1 --stores redb")


def start(options: argparse.Namespace) -> None:
    os.environ.setdefault("OUTPOST_LOG", "warn")
    with tempfile.TemporaryDirectory(prefix="outpost-bench-", dir=options.folder) as folder:
        pathlib.Path(folder).chmod(0o755)
        asyncio.run(measure(options, pathlib.Path(folder)))


if __name__ == "__main__":
    main()
