"""Forces the next step of an agent: its request gets a `tool_choice`, and constants in the schema of that tool.

The server samples the call under the grammar of the schema, so the model can write nothing else. Which step is next is
read from the request, so that a request that is sent again gets the same step.
"""

import copy
import json
from dataclasses import dataclass

# Tokens for requests that are not part of the conversation, such as titles.
SIDE_TOKENS = 16
# How Claude Code and Codex ask for a summary of the conversation, which must end by itself. Claude Code also sends its
# tools. They are part of the prompt, so they must be the same as in the conversation.
SUMMARY_REQUESTS = ("Do NOT call any tools", "CONTEXT CHECKPOINT COMPACTION")
SUMMARY = "The greeting is to be corrected."


@dataclass(frozen=True)
class Step:
    """A call of a tool; its arguments are constants."""

    tool: str
    arguments: dict


@dataclass(frozen=True)
class Plan:
    """What an agent is made to do."""

    steps: list
    # Its last message.
    end: str

    def turns(self):
        """Returns a function that checks the number of a turn. A conversation that has become shorter was compacted, and
        is ended."""
        most = 0

        def checked(turn):
            nonlocal most
            if turn < most:
                return len(self.steps)
            most = turn
            return turn

        return checked

    def step_for(self, tool, turn):
        """The step whose arguments the schema of a tool gets. It is that of the turn, or else the first with this tool: the
        tools are part of the prompt, which should begin alike in all turns."""
        of_tool = [step for step in self.steps if step.tool == tool]
        if turn < len(self.steps) and self.steps[turn].tool == tool:
            return self.steps[turn]
        return of_tool[0] if of_tool else None


def pinned(schema, arguments):
    """The schema with these arguments as its only value."""
    known = schema.get("properties", {})
    described = {name: {key: known[name][key] for key in ("type", "description") if key in known[name]}
                 for name in arguments if name in known}
    properties = {name: described.get(name, {}) | {"const": value} for name, value in arguments.items()}
    return {"type": "object", "properties": properties, "required": list(arguments), "additionalProperties": False}


def json_format(text):
    """The output format of a text, which is thereby a JSON string."""
    return {"type": "json_schema", "schema": {"type": "string", "const": text}}


def asks_for_summary(messages):
    last = json.dumps(messages[-1])
    return any(sign in last for sign in SUMMARY_REQUESTS)


def messages(plan):
    """Anthropic's Messages API, for Claude Code."""
    names, checked = {step.tool for step in plan.steps}, plan.turns()

    def force(path, body):
        if not path.split("?")[0].endswith("/messages"):
            return body, ""
        body = copy.deepcopy(body)
        tools = body.get("tools") or []
        blocks = [block for message in body["messages"] if isinstance(message["content"], list)
                  for block in message["content"]]
        turn = sum(block.get("type") == "tool_use" for block in blocks)
        is_summary = asks_for_summary(body["messages"])
        if not names <= {tool.get("name") for tool in tools}:
            body["max_tokens"] = min(body.get("max_tokens", SIDE_TOKENS), SIDE_TOKENS)
            return body, "side request"
        turn = turn if is_summary else checked(turn)
        for tool in tools:
            if step := plan.step_for(tool.get("name"), turn):
                tool["input_schema"] = pinned(tool["input_schema"], step.arguments)
        if is_summary:
            body["output_config"] = (body.get("output_config") or {}) | {"format": json_format(SUMMARY)}
            return body, "summary"
        if turn < len(plan.steps):
            body["tool_choice"] = {"type": "tool", "name": plan.steps[turn].tool}
            return body, f"turn {turn + 1}: {plan.steps[turn].tool}"
        body["tool_choice"] = {"type": "none"}
        body["output_config"] = (body.get("output_config") or {}) | {"format": json_format(plan.end)}
        return body, f"turn {turn + 1}: end"

    return force


def responses(plan):
    """OpenAI's Responses API, for Codex."""
    names, checked = {step.tool for step in plan.steps}, plan.turns()

    def force(path, body):
        if not path.split("?")[0].endswith("/responses"):
            return body, ""
        body = copy.deepcopy(body)
        if asks_for_summary(body["input"]):
            # The summary replaces the conversation, so the next turn is the last.
            checked(len(plan.steps))
            body["text"] = (body.get("text") or {}) | {"format": json_format(SUMMARY) | {"name": "summary"}}
            return body, "summary"
        if not names <= {tool.get("name") for tool in body.get("tools") or []}:
            body["max_output_tokens"] = SIDE_TOKENS
            return body, "side request"
        turn = checked(sum(item.get("type") == "function_call" for item in body["input"]))
        for tool in body["tools"]:
            if step := plan.step_for(tool.get("name"), turn):
                tool["parameters"] = pinned(tool["parameters"], step.arguments)
                tool.pop("strict", None)
        if turn < len(plan.steps):
            body["tool_choice"] = {"type": "function", "name": plan.steps[turn].tool}
            return body, f"turn {turn + 1}: {plan.steps[turn].tool}"
        body["tool_choice"] = "none"
        body["text"] = (body.get("text") or {}) | {"format": json_format(plan.end) | {"name": "end"}}
        return body, f"turn {turn + 1}: end"

    return force


def chat(plan):
    """Chat completions with tools, for opencode."""
    names, checked = {step.tool for step in plan.steps}, plan.turns()

    def force(path, body):
        if not path.split("?")[0].endswith("/chat/completions"):
            return body, ""
        body = copy.deepcopy(body)
        tools = [tool["function"] for tool in body.get("tools") or []]
        if not names <= {tool["name"] for tool in tools}:
            return _short(body), "side request"
        turn = checked(sum(len(message.get("tool_calls") or []) for message in body["messages"]))
        for tool in tools:
            if step := plan.step_for(tool["name"], turn):
                tool["parameters"] = pinned(tool["parameters"], step.arguments)
        if turn < len(plan.steps):
            body["tool_choice"] = {"type": "function", "function": {"name": plan.steps[turn].tool}}
            return body, f"turn {turn + 1}: {plan.steps[turn].tool}"
        body["tool_choice"] = "none"
        body["guided_choice"] = [plan.end]
        return body, f"turn {turn + 1}: end"

    return force


def text(replies, is_side):
    """Chat completions without tools, for aider. `replies`: pairs of a sign, which the messages contain from this turn on,
    and the text of the turn."""

    def force(path, body):
        if not path.split("?")[0].endswith("/chat/completions"):
            return body, ""
        body = copy.deepcopy(body)
        if is_side(body):
            return _short(body), "side request"
        said = "\n".join(str(message.get("content")) for message in body["messages"])
        turn = max(index for index, (sign, _) in enumerate(replies) if sign in said)
        body["guided_choice"] = [replies[turn][1]]
        return body, f"turn {turn + 1}: text"

    return force


def _short(body):
    field = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    body[field] = min(body.get(field) or SIDE_TOKENS, SIDE_TOKENS)
    return body
