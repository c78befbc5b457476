"""Runs a coding agent against Outpost: it must read a file and correct a word in it. The exit status is 0 only if the file
has changed as wanted."""

import argparse
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from urllib.parse import urlsplit

import transcript
from agents import AFTER, AGENTS, FILE, write_files
from proxy import Proxy

ROOT = Path(__file__).resolve().parents[2]
LISTENING = re.compile(r"is listening on (http://\S+)")
STOP_SECONDS = 40
# Fields that do not fit a request that is not streamed, for one token.
NOT_AGAIN = {"max_completion_tokens", "stream_options"}


def main():
    options = arguments()
    folder = Path(tempfile.mkdtemp(prefix=f"outpost-{options.agent}-")) if options.keep is None else options.keep
    folder.mkdir(parents=True, exist_ok=True)
    server, proxy = None, None
    try:
        server, url = start_server(options, folder)
        is_done, proxy = run_agent(options, folder.resolve(), url)
        if options.measure:
            measure(proxy, url, (folder / "data" / "admin.key").read_text().strip())
    finally:
        if proxy:
            proxy.close()
        if server:
            stop(server)
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    print("passed" if is_done else "failed")
    return 0 if is_done else 1


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agent", choices=sorted(AGENTS))
    parser.add_argument("--outpost", type=Path, default=ROOT / "target/release/outpost", help="the server's binary")
    parser.add_argument("--models", type=Path, default=ROOT / "models", help="the models folder")
    parser.add_argument("--model", default="qwen2.5-coder-0.5b-instruct")
    parser.add_argument("--binary", type=Path, help="the agent's binary; by default it is looked up in PATH")
    parser.add_argument("--keep", type=Path, help="folder for the data, the agent's files and the record; it is kept")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds that the agent may take")
    parser.add_argument("--long", action="store_true", help="the agent reads a file that does not fit into the context")
    parser.add_argument("--measure", action="store_true",
                        help="then send the agent's requests again as it wrote them, and print the token counts")
    options = parser.parse_args()
    if options.binary is None and shutil.which(options.agent) is None:
        parser.error(f"{options.agent} is not in PATH; set --binary")
    return options


def start_server(options, folder):
    """Starts the server with a new data folder on a free port. Returns the process and the URL."""
    command = [options.outpost, "serve", "--listen", "127.0.0.1:0", "--data", folder / "data", "--models", options.models,
               "--no-pull"]
    log = (folder / "server.log").open("w")
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    for line in server.stdout:
        if found := LISTENING.search(line):
            threading.Thread(target=server.stdout.read, daemon=True).start()
            return server, found[1]
    server.wait()
    raise SystemExit("the server did not start:\n" + (folder / "server.log").read_text())


def run_agent(options, folder, url):
    """Returns whether the file is as wanted, and the proxy."""
    work, home = folder / "work", folder / "home"
    for path in (work, home, folder / "bin"):
        path.mkdir()
    write_files(work, options.long)
    agent = AGENTS[options.agent](work, options.long)
    proxy = Proxy(url, folder / "record.jsonl", agent.force)
    environment = variables(folder, options, proxy.url) | agent.variables
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "Greeting"]):
        subprocess.run(["git", *command], cwd=work, env=environment, check=True)
    launch = [options.outpost.resolve(), "launch", options.agent, "--url", proxy.url, "--data", folder / "data",
              "--models", options.models.resolve(), "--model", options.model, "--", *agent.arguments]
    output = folder / "agent.log"
    with output.open("w") as log:
        status = run(launch, work, environment, log, options.timeout)
    report(options, proxy, status, output, work)
    if options.long:
        is_refused = any(exchange.status == 400 for exchange in proxy.exchanges)
        return is_refused and status is not None, proxy
    return (work / FILE).read_text() == AFTER, proxy


def variables(folder, options, proxy):
    """The agent's environment: an empty home, and no way to other hosts."""
    if options.binary:
        (folder / "bin" / options.agent).symlink_to(options.binary.resolve())
    identity = {f"GIT_{role}_{field}": value for role in ("AUTHOR", "COMMITTER")
                for field, value in (("NAME", "Test"), ("EMAIL", "test@example.com"))}
    names = ("http_proxy", "https_proxy", "all_proxy")
    proxies = dict.fromkeys([*names, *(name.upper() for name in names)], proxy)
    direct = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(folder / "home"), "LANG": "C.UTF-8", "TERM": "dumb"} | identity | proxies | direct


def run(command, work, environment, log, timeout):
    """The agent's exit status, or None if it took too long."""
    process = subprocess.Popen(command, cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                               stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def report(options, proxy, status, output, work):
    print("\n".join(transcript.lines(proxy.exchanges)))
    print("requests for other hosts, refused:", ", ".join(proxy.outside) or "none")
    shown = output.read_text(errors="replace").strip()
    print(f"{options.agent}: exit status {'none, stopped after the timeout' if status is None else status}")
    print("its output ends with:", *(transcript.shorten(line, 300) for line in shown.splitlines()[-8:]), sep="\n  ")
    print(f"{FILE}:", *(work / FILE).read_text().splitlines(), sep="\n  ")


def measure(proxy, url, key):
    """Sends the requests of the conversation again, without what was forced."""
    address = urlsplit(url)
    for exchange in [exchange for exchange in proxy.exchanges if exchange.forced.startswith("turn")]:
        limit = "max_output_tokens" if exchange.path.endswith("/responses") else "max_tokens"
        body = {name: value for name, value in exchange.body.items() if name not in NOT_AGAIN}
        body |= {limit: 1, "stream": False}
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=3600)
        connection.request("POST", exchange.path, json.dumps(body), headers)
        response = connection.getresponse()
        again = type(exchange)("POST", exchange.path, {}, body, status=response.status, response=response.read().decode())
        connection.close()
        print(f"unforced {exchange.forced.split(':')[0]}:", *list(transcript.response_lines(again))[-1:])


def stop(server):
    server.terminate()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
