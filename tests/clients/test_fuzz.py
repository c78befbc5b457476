"""Schemathesis over the whole document, both mounts: no 5xx, every error in our shape, every answer
as documented. Routes are taken from `/openapi.json`, so a new one is covered unasked.

    OUTPOST_FUZZ_EXAMPLES=300 pytest tests/clients/test_fuzz.py     # the long form
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
EXAMPLES = os.environ.get("OUTPOST_FUZZ_EXAMPLES", "10")
CHECKS = [
    "not_a_server_error",
    "error_has_our_shape",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "missing_required_header",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
]


def test_schemathesis_finds_nothing(fuzzed, tmp_path):
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", fuzzed.url + "/openapi.json"),
        *("--header", f"Authorization: Bearer {fuzzed.admin_key}"),
        *("--phases", "examples,coverage,fuzzing,stateful"),
        *("--checks", ",".join(CHECKS)),
        *("--max-examples", EXAMPLES),
        *("--generation-deterministic", "--continue-on-failure", "--no-color"),
        # One worker: before 3.11.8, Python may fail when two threads parse sources, as Hypothesis does (python/cpython#106905).
        *("--request-timeout", "30", "--warnings", "off", "--workers", "1"),
    ]
    more = {"SCHEMATHESIS_HOOKS": "fuzz_hooks", "PYTHONPATH": str(HERE), "OUTPOST_TEST_CHAT": fuzzed.chat_model}
    more["OUTPOST_TEST_IMAGE"] = fuzzed.image_model
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    # It keeps what it found beside where it runs.
    run = subprocess.run(command, cwd=tmp_path, env=os.environ | more, **pipes)
    assert run.returncode == 0, run.stdout[-20_000:]
    print(run.stdout[-800:])
