"""A server for the whole session, and clients for it."""

import os
import re
import signal
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

from tiny_models import ROOT, link_models

START_SECONDS = 120
MOUNTS = ["/v1", "/openai/v1"]


@dataclass
class Server:
    url: str
    admin_key: str
    chat_model: str
    embed_model: str
    image_model: str
    whisper_model: str
    speech_model: str
    moderation_model: str

    def client(self, mount="/v1", key=None, **options):
        return OpenAI(base_url=self.url + mount, api_key=key or self.admin_key, **self._client_options(options))

    def async_client(self, mount="/v1", key=None, **options):
        return AsyncOpenAI(base_url=self.url + mount, api_key=key or self.admin_key, **self._client_options(options))

    def http(self, key=None, **options):
        headers = {"Authorization": f"Bearer {key or self.admin_key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, verify=False, **options)

    @staticmethod
    def _client_options(options):
        # No retries, so that a test gets the first response.
        return {"max_retries": 0, "timeout": 300, **options}


class ServerOutput:
    """Reads the output of the process, so that its pipe never fills, and finds the address in it."""

    def __init__(self, process):
        self.lines, self.url = [], None
        self.settled = threading.Event()
        threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()

    def _read(self, stream):
        for line in stream:
            self.lines.append(line.rstrip())
            found = re.search(r"listening on (https?://[^\s\"',]+)", line)
            if found and not self.url:
                self.url = found.group(1).rstrip("/")
                self.settled.set()
        self.settled.set()

    def address(self):
        self.settled.wait(START_SECONDS)
        assert self.url, "the server did not start:\n" + "\n".join(self.lines[-40:])
        return self.url


@contextmanager
def run_server(data, arguments=None, environment=None):
    """Runs a server with its own data folder, and stops it at the end. `arguments`: instead of the folder of the models."""
    binary = os.environ.get("OUTPOST_BIN", str(ROOT / "target/debug/outpost"))
    if arguments is None:
        arguments = ["--models", os.environ.get("OUTPOST_TEST_MODELS") or link_models(data.parent / "models")]
    command = [binary, "serve", "--listen", "127.0.0.1:0", "--data", str(data), *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    )
    output = ServerOutput(process)
    try:
        url = output.address()
        key = (data / "admin.key").read_text().strip()
        yield Server(
            url,
            key,
            os.environ.get("OUTPOST_TEST_CHAT", "smollm2-135m-instruct"),
            os.environ.get("OUTPOST_TEST_EMBED", "all-minilm-l6-v2"),
            os.environ.get("OUTPOST_TEST_IMAGE", "sd1"),
            os.environ.get("OUTPOST_TEST_WHISPER", "tiny-whisper"),
            os.environ.get("OUTPOST_TEST_SPEECH", "tiny-kokoro"),
            os.environ.get("OUTPOST_TEST_MODERATION", "toxic-bert"),
        )
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    assert process.returncode == 0, f"the server exited with {process.returncode}:\n" + "\n".join(output.lines[-40:])


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with run_server(tmp_path_factory.mktemp("outpost") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def fuzz_server(tmp_path_factory):
    """A server for one test module, which may leave it in any state."""
    with run_server(tmp_path_factory.mktemp("fuzzed") / "data") as server:
        yield server


@pytest.fixture(scope="session")
def client(server):
    return server.client()


@pytest.fixture(scope="session")
def strict(server):
    """A client of the `/openai/v1` mount that validates responses."""
    return server.client("/openai/v1", _strict_response_validation=True)


@pytest.fixture(scope="session")
def http(server):
    with server.http() as http:
        yield http


@pytest.fixture(scope="session")
def plain_vector(server, http):
    """A function that returns the vector of a text, requested without any package."""

    def plain_vector(text):
        response = http.post("/openai/v1/embeddings", json={"model": server.embed_model, "input": text})
        assert response.status_code == 200, response.text
        [item] = response.json()["data"]
        assert len(item["embedding"]) == 384
        return item["embedding"]

    return plain_vector


@pytest.fixture(params=MOUNTS)
def mount(request):
    return request.param


@pytest.fixture
def project(http):
    """A project for one test, so that tests do not see each other's keys."""
    response = http.post("/v1/projects", json={"name": "client suite", "environment": "test"})
    assert response.status_code == 200, response.text
    return response.json()["id"]


@pytest.fixture
def project_key(http, project):
    response = http.post("/v1/api-keys", json={"name": "suite", "project_id": project})
    assert response.status_code == 200, response.text
    return response.json()


@pytest.fixture
def chat_arguments(server):
    """A function that returns the arguments of a short, deterministic chat. Each can be replaced."""

    def arguments(text="Count from one to twenty in words.", **more):
        messages = [{"role": "user", "content": text}]
        return {"model": server.chat_model, "messages": messages, "temperature": 0, "max_completion_tokens": 24, **more}

    return arguments
