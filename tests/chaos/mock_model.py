"""An OpenAI-compatible chat server that answers at once and tells the usage that the prompt asks for.

The last user message is `mark=M in=I out=O parts=P wait=W`: the answer is `echo M` in P pieces with W milliseconds between
them, and its usage is I input and O output tokens. So the clients know what must be recorded.
"""

import asyncio
import json
import re
import sys

PROMPT = re.compile(r"mark=(\S+) in=(\d+) out=(\d+) parts=(\d+) wait=(\d+)")


def prompt(mark: str, tokens_in: int, tokens_out: int, parts: int = 1, wait: int = 0) -> str:
    """A prompt that the mock understands. It is so long that its usage can be true."""
    return f"mark={mark} in={tokens_in} out={tokens_out} parts={parts} wait={wait} {'.' * tokens_in}"


class Mock(asyncio.Protocol):
    """A connection. Requests on it are answered one after the other."""

    served = 0

    def __init__(self) -> None:
        self.buffer = b""
        self.queue: asyncio.Queue[bytes] = asyncio.Queue()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.worker = asyncio.get_running_loop().create_task(self.work())

    def connection_lost(self, error: Exception | None) -> None:
        self.worker.cancel()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while True:
            head, separator, rest = self.buffer.partition(b"\r\n\r\n")
            if not separator:
                return
            found = re.search(rb"content-length:\s*(\d+)", head, re.IGNORECASE)
            length = int(found.group(1)) if found else 0
            if len(rest) < length:
                return
            self.buffer = rest[length:]
            self.queue.put_nowait(rest[:length])

    async def work(self) -> None:
        while True:
            body = await self.queue.get()
            await self.answer(json.loads(body) if body else {})

    def send(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    async def answer(self, request: dict) -> None:
        text = next((text_of(one) for one in reversed(request.get("messages", [])) if one.get("role") == "user"), "")
        found = PROMPT.search(text)
        if not found:
            body = b'{"error":{"message":"no instructions for the mock"}}'
            self.send(b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
            return
        Mock.served += 1
        mark, numbers = found.group(1), [int(number) for number in found.groups()[1:]]
        usage = {"prompt_tokens": numbers[0], "completion_tokens": numbers[1], "total_tokens": numbers[0] + numbers[1]}
        if request.get("stream"):
            await self.stream(f"echo {mark}", usage, numbers[2], numbers[3])
        else:
            choice = {"index": 0, "message": {"role": "assistant", "content": f"echo {mark}"}, "finish_reason": "stop"}
            body = json.dumps({"id": "mock", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
            self.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))

    async def stream(self, text: str, usage: dict, parts: int, wait: int) -> None:
        size = -(-len(text) // max(1, parts))
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        pending = head + event(delta={"role": "assistant", "content": ""})
        for piece in pieces:
            pending += event(delta={"content": piece})
            if wait:
                self.send(pending)
                pending = b""
                await asyncio.sleep(wait / 1000)
        pending += event(delta={}, finish="stop") + event(usage=usage) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        self.send(pending)


def text_of(message: dict) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(delta: dict | None = None, finish: str | None = None, usage: dict | None = None) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    body = {"id": "mock", "object": "chat.completion.chunk", "created": 1, "model": "mock", "choices": choices, "usage": usage}
    return chunk(b"data: " + json.dumps(body).encode() + b"\n\n")


async def serve(address: str, port: int) -> asyncio.Server:
    """Starts the server in the running loop."""
    return await asyncio.get_running_loop().create_server(Mock, address, port, backlog=1024)


async def main() -> None:
    server = await serve(sys.argv[1], int(sys.argv[2]))
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
