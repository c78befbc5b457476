"""The agents: how each is started, and what it is made to do."""

from dataclasses import dataclass
from pathlib import Path

import forcing
from forcing import Plan, Step

FILE = "greeting.py"
WRONG = '    return f"Helo, {name}!"'
RIGHT = '    return f"Hello, {name}!"'
BEFORE = f'def greet(name):\n{WRONG}\n\n\nprint(greet("world"))\n'
AFTER = BEFORE.replace(WRONG, RIGHT)
TASK = f"Read {FILE} and correct the wrong word in it."
END = "I corrected the greeting."

# A file that does not fit into the context, at 20 tokens a line. Some agents read a part of it at a time.
LONG_FILE = "log.txt"
LONG_TASK = f"Read {LONG_FILE} and tell me what it says."
LONG_LINES = 800
LONG_READS = 4
# Linux does not accept longer arguments of programs.
LONG_BYTES = 120_000


@dataclass(frozen=True)
class Agent:
    """Arguments after those that `outpost launch` sets, variables, and the function that forces the steps."""

    arguments: list
    force: object
    variables: dict


def claude(folder, is_long):
    path = str(folder / FILE)
    steps = [
        Step("Read", {"file_path": path}),
        Step("Edit", {"file_path": path, "old_string": WRONG, "new_string": RIGHT}),
    ]
    if is_long:
        look = Step("Bash", {"command": f"cat {FILE}", "description": "Show the program"})
        # The last step is never done: its request is too long.
        steps = [look, Step("Read", {"file_path": str(folder / LONG_FILE), "limit": LONG_LINES}), steps[1]]
    arguments = ["-p", _task(is_long), "--permission-mode", "acceptEdits", "--output-format", "stream-json", "--verbose"]
    debug = ["--debug-file", str(folder.parent / "debug.log")]
    return Agent(arguments + debug, forcing.messages(Plan(steps, END)), {})


def codex(_, is_long):
    commands = [f"cat {FILE}", f"sed -i s/Helo/Hello/ {FILE}"]
    steps = [Step("exec_command", {"cmd": command}) for command in commands]
    # Codex shortens the output of commands, so the long text is in the message.
    task = f"What does this log say?\n{long_text()[:LONG_BYTES]}" if is_long else TASK
    arguments = ["exec", "--dangerously-bypass-approvals-and-sandbox", task]
    variables = {"RUST_LOG": "info,codex_core=debug,codex_api=debug,codex_client=debug"}
    return Agent(arguments, forcing.responses(Plan(steps, END)), variables)


def opencode(folder, is_long):
    path = str(folder / FILE)
    steps = [
        Step("read", {"filePath": path}),
        Step("edit", {"filePath": path, "oldString": WRONG, "newString": RIGHT}),
    ]
    if is_long:
        steps = [Step("read", {"filePath": str(folder / LONG_FILE)})] * LONG_READS
    arguments = ["run", "--print-logs", _task(is_long)]
    return Agent(arguments, forcing.chat(Plan(steps, END)), {})


def aider(_, is_long):
    file = LONG_FILE if is_long else FILE
    task = f"Read {LONG_FILE}." if is_long else "Correct the wrong word in the greeting."
    block = f"{FILE}\n```python\n<<<<<<< SEARCH\n{WRONG}\n=======\n{RIGHT}\n>>>>>>> REPLACE\n```"
    # aider adds a file to the chat if the model names it, and then asks again.
    replies = [("", f"Please add {file} to the chat."), (WRONG, block)]
    arguments = ["--message", task, "--yes-always", "--edit-format", "diff", "--no-check-update",
                 "--analytics-disable", "--verbose"]
    return Agent(arguments, forcing.text(replies, _is_commit_message), {})


AGENTS = {"aider": aider, "claude": claude, "codex": codex, "opencode": opencode}


def write_files(folder: Path, is_long: bool):
    (folder / FILE).write_text(BEFORE)
    if is_long:
        (folder / LONG_FILE).write_text(long_text())


def long_text():
    words = "The harbour master wrote down each ship, its cargo and its port of origin."
    return "".join(f"{number:04} {words}\n" for number in range(1, 2001))


def _task(is_long):
    return LONG_TASK if is_long else TASK


def _is_commit_message(body):
    return "commit message" in str(body["messages"][0].get("content"))
