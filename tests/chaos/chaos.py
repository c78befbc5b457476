"""Clients write to all nodes while nodes, links and the database fail; then everything that was acknowledged is checked.

Run it with `tests/chaos/run.sh`; README.md says how.
"""

import argparse
import asyncio
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time

import clock
from calls import Calls
from client import Clients
from cluster import Cluster
from conversations import Conversations
from faults import Faults
from ledger import Ledger
from rates import BURST, PER_MINUTE, Hammer
from report import table
from revocation import Prober
from upgrade import Upgrade
from verify import Verify, binary_of
from workload import Workload

QUIET = 12.0
SETTLE = 90.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long faults are injected (60; a full run: 600)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="determines the faults and the clients' choices")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--skew", type=int, default=5, help="seconds by which the clocks of the 2nd and 3rd node are wrong (5)")
    parser.add_argument("--pace", type=float, default=0.15, help="mean pause of a client between two operations (0.15 s)")
    parser.add_argument("--rate-slack", type=float, default=5, help="requests that may be missing at the lower bound of the rate limit (5)")
    parser.add_argument("--faults", default="", help="only these kinds of faults, separated by commas; 'none': no faults")
    parser.add_argument("--upgrade-from", default="", metavar="BINARY", help="a rolling upgrade from this program, without faults unless --faults names some")
    parser.add_argument("--without", default="", help="leave out: background, batch, rates")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the logs")
    return parser.parse_args()


async def client(number: int, options: argparse.Namespace, work: Workload, talks: Conversations, calls: Calls, stop: asyncio.Event) -> None:
    """One client: random operations, one after the other."""
    rng = random.Random(f"{options.seed} {number}")
    chances = {work.key_lifecycle: 5, work.agent: 2, work.file: 1, work.limit: 0.7, work.project_lifecycle: 0.5, talks.step: 6, calls.chat: 5, calls.stream: 2}
    without = options.without.split(",")
    chances |= {} if "background" in without else {calls.background: 1.5}
    chances |= {} if "batch" in without else {calls.batch: 0.3}
    while not stop.is_set():
        operation = rng.choices(list(chances), list(chances.values()))[0]
        try:
            await operation()
        except Exception as error:  # noqa: BLE001 - a defect of the test is reported
            work.ledger.violation("the test itself works", f"{operation.__qualname__}: {type(error).__name__} {error}")
        await asyncio.sleep(rng.expovariate(1 / options.pace) if options.pace else 0)


async def run(options: argparse.Namespace, folder: pathlib.Path) -> bool:
    ledger, rng = Ledger(), random.Random(options.seed)
    cluster = Cluster(folder, binary_of(os.environ.get("OUTPOST_BIN", "target/debug/outpost")), options.nodes, options.skew)
    if options.upgrade_from:
        cluster.programs = dict.fromkeys(cluster.programs, binary_of(options.upgrade_from))
    try:
        await cluster.start()
        assert cluster.admin
        errors = await cluster.clock_errors()
        ledger.note("clocks of the nodes: " + ", ".join(f"{error:+.1f} s" for error in errors))
        if options.skew and not clock.is_available():
            ledger.note("libfaketime is missing: all clocks are right")
        clients = Clients(ledger, cluster.nodes, rng)
        try:
            return await test(options, ledger, cluster, clients)
        finally:
            await clients.close()
    finally:
        cluster.stop()


async def test(options: argparse.Namespace, ledger: Ledger, cluster: Cluster, clients: Clients) -> bool:
    assert cluster.admin
    prober = Prober(ledger, clients)
    work = Workload(ledger, clients, prober, cluster.admin)
    await work.prepare(3)
    talks, calls, stop = Conversations(work), Calls(work), asyncio.Event()
    await talks.prepare()
    pulse_project, limited_project = await work.new_project(), await work.new_project()
    assert pulse_project and limited_project
    pulse_key, limited_key = await work.new_key(pulse_project), await work.new_key(limited_project)
    assert pulse_key and limited_key
    limits = {"requests_per_minute": PER_MINUTE, "burst_limit": BURST}
    await clients.write("PATCH", f"/v1/projects/{limited_project.id}/rate-limits", cluster.admin, limits)
    await asyncio.sleep(1)
    hammer = Hammer(ledger, clients, limited_key)
    tasks = [asyncio.create_task(client(number, options, work, talks, calls, stop)) for number in range(options.clients)]
    tasks.append(asyncio.create_task(prober.again(stop)))
    faults = Faults(ledger, cluster, clients, prober, pulse_key, options.seed)
    upgrade = Upgrade(ledger, cluster, clients, faults, is_strict=options.faults in ("", "none")) if options.upgrade_from else None
    if clients.balancer:
        tasks.append(asyncio.create_task(clients.balancer.run(stop)))
    if "rates" not in options.without.split(","):
        tasks.append(asyncio.create_task(hammer.run(stop)))
    began = time.monotonic()
    await asyncio.sleep(QUIET)
    if "rates" not in options.without.split(","):
        hammer.check_quiet(began, time.monotonic(), options.rate_slack)
    await disturb(options, faults, upgrade)
    hammer.kills = faults.database_kills
    if upgrade and upgrade.is_strict and hammer.began:
        hammer.check_quiet(began, time.monotonic(), options.rate_slack)
    stop.set()
    await asyncio.gather(*tasks)
    seconds = time.monotonic() - began
    ledger.note("the load has ended; checks")
    for node in cluster.nodes:
        await cluster.wait_ready(node.server, 60)
    ledger.sample("background work ends after the last fault (s)", await calls.finish(SETTLE))
    verify = Verify(ledger, cluster, clients, work.tenants)
    await prober.all()
    await verify.resources(talks.all)
    # Reports end at the present, which may differ by milliseconds between nodes.
    await asyncio.sleep(2)
    await verify.usage()
    await verify.audit(talks.all)
    await verify.store()
    if hammer.began:
        hammer.check()
    if upgrade:
        upgrade.check()
    figures = {
        "seed": str(options.seed),
        "load": f"{seconds:.0f} s, {options.clients} clients, {options.nodes} nodes, clocks ±{options.skew} s",
        "dead keys": f"{len(prober.dead)}, {prober.probes} probes, last accepted {prober.greatest_lag:.2f} s after the acknowledgement (allowed: 1 s)",
        "rate limit": f"{len(hammer.admitted)} admitted, {hammer.limited} refused, excess in the worst window {hammer.excess():.1f}",
    }
    figures |= upgrade.figures() if upgrade else {}
    print(table(ledger, dict(verify.checked), figures), flush=True)
    return not ledger.violations


async def disturb(options: argparse.Namespace, faults: Faults, upgrade: Upgrade | None) -> None:
    """The faults of a run, a rolling upgrade, or both."""
    tasks = [asyncio.sleep(options.seconds)]
    if upgrade:
        tasks.append(upgrade.run(options.seconds))
    if options.faults != "none" and (options.faults or not upgrade):
        tasks.append(faults.run(time.monotonic() + options.seconds, [kind for kind in options.faults.split(",") if kind]))
    await asyncio.gather(*tasks)


def main() -> None:
    options = arguments()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="outpost-cluster-"))
    folder.chmod(0o755)
    print(f"tests/chaos: seed {options.seed}, logs in {folder}", flush=True)
    passed = False
    try:
        passed = asyncio.run(run(options, folder))
    finally:
        if passed and not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
