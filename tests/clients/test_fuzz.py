"""Runs schemathesis on the whole OpenAPI document, both mounts: no 5xx, and every response and error has the documented
format. Routes come from `/openapi.json`, so new routes are covered automatically.

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
    "error_has_the_documented_format",
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


def test_schemathesis_finds_no_failures(fuzz_server, tmp_path):
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", fuzz_server.url + "/openapi.json"),
        *("--header", f"Authorization: Bearer {fuzz_server.admin_key}"),
        *("--phases", "examples,coverage,fuzzing,stateful"),
        *("--checks", ",".join(CHECKS)),
        *("--max-examples", EXAMPLES),
        *("--generation-deterministic", "--continue-on-failure", "--no-color"),
        # One worker: before 3.11.8, Python can fail when two threads parse source code, as Hypothesis does
        # (python/cpython#106905).
        *("--request-timeout", "30", "--warnings", "off", "--workers", "1"),
    ]
    variables = {"SCHEMATHESIS_HOOKS": "fuzz_hooks", "PYTHONPATH": str(HERE), "OUTPOST_TEST_CHAT": fuzz_server.chat_model}
    variables["OUTPOST_TEST_IMAGE"] = fuzz_server.image_model
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    # Hypothesis stores its examples in the working directory.
    run = subprocess.run(command, cwd=tmp_path, env=os.environ | variables, **pipes)
    assert run.returncode == 0, run.stdout[-20_000:]
    print(run.stdout[-800:])
