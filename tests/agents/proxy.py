"""An HTTP proxy between an agent and the server. It records every exchange, and may change the requests."""

import contextlib
import http.client
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

# Headers of one connection, and those that would compress what is recorded.
NOT_FORWARDED = {"accept-encoding", "connection", "content-length", "host", "keep-alive", "transfer-encoding"}
SECRET = {"authorization", "x-api-key"}
TIMEOUT_SECONDS = 3600


@dataclass
class Exchange:
    """A request of the agent, and the server's response."""

    method: str
    path: str
    headers: dict
    # The body as the agent sent it.
    body: object
    # What the proxy changed, for the reader.
    forced: str = ""
    # The body as the server received it.
    sent: object = None
    status: int = 0
    response_headers: dict = field(default_factory=dict)
    response: str = ""
    seconds: float = 0.0
    # Why the exchange ended early, if it did.
    broken: str = ""


class Proxy:
    """Forwards requests to `upstream` in background threads. `force(path, body)` returns the body to send, and a note."""

    def __init__(self, upstream, record, force):
        self.upstream = urlsplit(upstream)
        self.record = Path(record)
        self.force = force
        self.exchanges = []
        # Requests for other hosts. They are refused.
        self.outside = []
        self._lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def add(self, exchange):
        with self._lock:
            self.exchanges.append(exchange)
            with self.record.open("a") as file:
                file.write(json.dumps(vars(exchange)) + "\n")

    def refuse(self, target):
        with self._lock:
            self.outside.append(target)
            with self.record.open("a") as file:
                file.write(json.dumps({"outside": target}) + "\n")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner = None

    def handle(self):
        # Agents may end with open connections.
        with contextlib.suppress(ConnectionError):
            super().handle()

    def do_CONNECT(self):
        self.owner.refuse(self.path)
        self.close_connection = True
        self._reply(403)

    def forward(self):
        if "://" in self.path:
            self.owner.refuse(self.path)
            self._reply(403)
            return
        length = int(self.headers.get("content-length", 0))
        raw = self.rfile.read(length)
        headers = {name.lower(): value for name, value in self.headers.items()}
        shown = {name: value for name, value in headers.items() if name not in SECRET}
        exchange = Exchange(self.command, self.path, shown, _parsed(raw))
        if isinstance(exchange.body, dict):
            body, exchange.forced = self.owner.force(self.path, exchange.body)
            if exchange.forced:
                exchange.sent = body
                raw = json.dumps(body).encode()
        started = time.monotonic()
        try:
            self._pass_on(exchange, headers, raw)
        except OSError as cause:
            exchange.broken = repr(cause)
            self.close_connection = True
        exchange.seconds = round(time.monotonic() - started, 2)
        self.owner.add(exchange)

    do_DELETE = do_GET = do_HEAD = do_OPTIONS = do_PATCH = do_POST = do_PUT = forward

    def _pass_on(self, exchange, headers, raw):
        upstream = self.owner.upstream
        connection = http.client.HTTPConnection(upstream.hostname, upstream.port, timeout=TIMEOUT_SECONDS)
        try:
            kept = {name: value for name, value in headers.items() if name not in NOT_FORWARDED}
            connection.request(self.command, self.path, body=raw or None, headers=kept)
            response = connection.getresponse()
            exchange.status = response.status
            exchange.response_headers = {name.lower(): value for name, value in response.getheaders()}
            self._copy(response, exchange)
        finally:
            connection.close()

    def _copy(self, response, exchange):
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in {"connection", "keep-alive", "transfer-encoding"}:
                self.send_header(name, value)
        has_body = self.command != "HEAD" and response.status not in {204, 304}
        is_chunked = has_body and response.getheader("content-length") is None
        if is_chunked:
            self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        received = b""
        try:
            while has_body and (part := response.read1(65536)):
                received += part
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part) if is_chunked else part)
                self.wfile.flush()
            if is_chunked:
                self.wfile.write(b"0\r\n\r\n")
        finally:
            exchange.response = received.decode(errors="replace")

    def _reply(self, status):
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def _parsed(raw):
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")
