"""Runs the tests of async-openai, `rust/`, against the same server."""

import json
import os
import subprocess
from pathlib import Path

from conftest import ROOT

MANIFEST = Path(__file__).with_name("rust") / "Cargo.toml"


def test_async_openai(server, plain_vector):
    own = {"OUTPOST_BASE_URL": server.url + "/openai/v1", "OUTPOST_KEY": server.admin_key}
    own |= {"OUTPOST_CHAT": server.chat_model, "OUTPOST_EMBED": server.embed_model}
    own |= {"OUTPOST_VECTOR": json.dumps(plain_vector("the sea")), "CARGO_TARGET_DIR": str(ROOT / "target/clients-rust")}
    command = ["cargo", "test", "--locked", "--manifest-path", str(MANIFEST)]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
