"""Runs the tests of the Node packages, `node/*.test.mjs`, against the same server."""

import os
import subprocess
from pathlib import Path

NODE = Path(__file__).with_name("node")


def test_the_node_packages(server):
    assert (NODE / "node_modules/openai").is_dir(), f"run npm install --no-package-lock --prefix {NODE}"
    more = {"OUTPOST_URL": server.url, "OUTPOST_KEY": server.admin_key}
    more |= {"OUTPOST_CHAT": server.chat_model, "OUTPOST_EMBED": server.embed_model}
    more |= {"OUTPOST_WHISPER": server.whisper_model, "OUTPOST_SPEECH": server.speech_model}
    found = subprocess.run(["node", "--test"], cwd=NODE, env=os.environ | more, capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stdout + found.stderr
