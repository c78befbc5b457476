"""What a run of an agent sent and received, in short lines."""

import json

WIDTH = 160


def lines(exchanges):
    """A few lines for each exchange."""
    for number, exchange in enumerate(exchanges, 1):
        parts = exchange.method, exchange.path, exchange.status, f"{exchange.seconds} s", exchange.forced
        yield f"{number}. " + "  ".join(str(part) for part in parts).rstrip()
        for name in ("x-outpost-ignored", "x-outpost-unenforced", "x-outpost-truncated-messages"):
            if value := exchange.response_headers.get(name):
                yield f"   {name}: {value}"
        if isinstance(exchange.body, dict):
            yield "   request: " + request_line(exchange.body)
            for item in new_input(exchange.body):
                yield "   last input: " + shorten(item)
        if exchange.broken:
            yield f"   broken: {exchange.broken}"
        if exchange.method == "POST":
            yield from (f"   {line}" for line in response_lines(exchange))


def request_line(body):
    tools = body.get("tools") or []
    size = len(json.dumps(tools, ensure_ascii=False, separators=(",", ":")).encode())
    limits = {name: body[name] for name in ("max_tokens", "max_completion_tokens", "max_output_tokens") if name in body}
    fields = sorted(set(body) - {"tools", "messages", "input", "system", "instructions", *limits})
    return f"{len(tools)} tools of {size} bytes, limits {limits}, other fields {', '.join(fields)}"


def new_input(body):
    """The last result of a tool, or the last message."""
    for message in reversed(body.get("input") or body.get("messages") or []):
        if not isinstance(message, dict):
            continue
        content = message.get("output", message.get("content"))
        if isinstance(content, list):
            content = " | ".join(str(part.get("content", part.get("text"))) for part in content)
        yield f"{message.get('role', message.get('type'))}: {content}"
        return


def response_lines(exchange):
    if exchange.status != 200:
        yield "error: " + shorten(exchange.response, 400)
        return
    events = [event for event in parsed(exchange.response) if isinstance(event, dict)]
    text, calls, usage, end = read(events)
    for call in calls:
        yield "call: " + shorten(call)
    if text:
        yield "text: " + shorten(text)
    if end:
        yield f"end: {end}"
    if usage:
        total, cached, output = usage
        yield f"tokens: prompt {total}, cached {cached} ({100 * cached / max(total, 1):.1f} %), output {output}"


def parsed(response):
    """The events of a stream, or the one body."""
    if response.startswith("{"):
        return [json.loads(response)]
    data = [line[5:].strip() for line in response.splitlines() if line.startswith("data:")]
    return [json.loads(part) for part in data if part and part != "[DONE]"]


def read(events):
    """Text, calls, (prompt, cached, output) tokens and the reason of the end, in any of the formats."""
    text, calls, usage, end = "", [], None, ""
    for event in events:
        kind = event.get("type", "")
        if kind in ("response.completed", "response.incomplete", "response.failed") or event.get("object") == "response":
            response = event.get("response", event)
            for item in response["output"]:
                if item["type"] == "function_call":
                    calls.append(f"{item['name']} {item['arguments']}")
                text += "".join(part.get("text", "") for part in item.get("content") or [])
            end = json.dumps(response.get("error")) if response.get("error") else response["status"]
            if counts := response.get("usage"):
                cached = counts["input_tokens_details"]["cached_tokens"]
                usage = counts["input_tokens"], cached, counts["output_tokens"]
        elif kind == "content_block_start" and event["content_block"]["type"] == "tool_use":
            calls.append(event["content_block"]["name"] + " ")
        elif kind == "content_block_delta":
            text += event["delta"].get("text", "")
            if "partial_json" in event["delta"]:
                calls[-1] += event["delta"]["partial_json"]
        elif kind in ("message_delta", "message"):
            counts = event["usage"]
            cached = counts.get("cache_read_input_tokens", 0)
            usage = counts.get("input_tokens", 0) + cached, cached, counts["output_tokens"]
            end = event.get("delta", event).get("stop_reason")
            for block in event.get("content") or []:
                text += block.get("text", "")
        elif kind == "error" or "error" in event:
            end = json.dumps(event)
        else:
            for choice in event.get("choices") or []:
                delta = choice.get("delta") or choice.get("message") or {}
                text += delta.get("content") or ""
                for call in delta.get("tool_calls") or []:
                    function = call["function"]
                    if function.get("name"):
                        calls.append(function["name"] + " ")
                    calls[-1] += function.get("arguments") or ""
                end = choice.get("finish_reason") or end
            if counts := event.get("usage"):
                cached = (counts.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
                usage = counts["prompt_tokens"], cached, counts["completion_tokens"]
    return text, calls, usage, end


def shorten(text, width=WIDTH):
    line = " ".join(str(text).split())
    return line if len(line) <= width else line[: width - 1] + "…"
