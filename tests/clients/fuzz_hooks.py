"""Schemathesis hooks for this server. `test_fuzz.py` loads them."""

import os

import schemathesis
from schemathesis.core.failures import Failure
from error_format import format_problem

CHAT = os.environ["OUTPOST_TEST_CHAT"]
IMAGE = os.environ["OUTPOST_TEST_IMAGE"]


@schemathesis.check
def error_has_the_documented_format(ctx, response, case):
    """Every error is an object with five fields, one of which is the request ID."""
    if response.status_code < 400:
        return
    problem = format_problem(response)
    if problem:
        raise Failure(operation=case.operation.label, title="Error with an undocumented format", message=problem)


@schemathesis.hook
def before_call(context, case, kwargs):
    """Sets an existing model in valid requests, and limits them to one token or step."""
    valid = case.meta and case.meta.generation.mode.is_positive
    if valid and case.path.endswith("/chat/completions") and isinstance(case.body, dict):
        case.body |= {"model": CHAT, "max_tokens": 1, "n": 1}
        case.body.pop("max_completion_tokens", None)
        case.body.pop("min_tokens", None)
    if valid and case.path in ("/api/chat", "/api/generate") and isinstance(case.body, dict):
        case.body |= {"model": CHAT, "options": {"num_predict": 1}}
    if valid and case.path.endswith("/completion") and isinstance(case.body, dict):
        case.body |= {"model": CHAT, "n_predict": 1, "n_cmpl": 1}
        case.body.pop("min_tokens", None)
    if valid and case.path.endswith("/responses") and isinstance(case.body, dict):
        case.body |= {"model": CHAT, "max_output_tokens": 1}
        case.body.pop("min_tokens", None)
    if valid and "/images/" in case.path and isinstance(case.body, dict):
        case.body |= {"model": IMAGE, "size": "64x64", "steps": 1, "n": 1}
        case.body.pop("num_inference_steps", None)
