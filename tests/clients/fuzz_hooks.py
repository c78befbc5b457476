"""What schemathesis is told about this server. Loaded by `test_fuzz.py`."""

import os

import schemathesis
from schemathesis.core.failures import Failure
from shape import wrong_with

CHAT = os.environ["OUTPOST_TEST_CHAT"]
IMAGE = os.environ["OUTPOST_TEST_IMAGE"]


@schemathesis.check
def error_has_our_shape(ctx, response, case):
    """Every error is one object with five fields, and says the id of its request."""
    if response.status_code < 400:
        return
    problem = wrong_with(response)
    if problem:
        raise Failure(operation=case.operation.label, title="Error of another shape", message=problem)


@schemathesis.hook
def before_call(context, case, kwargs):
    """Valid requests reach the model, for one token or step each; generated names of models do not exist."""
    valid = case.meta and case.meta.generation.mode.is_positive
    if valid and case.path.endswith("/chat/completions") and isinstance(case.body, dict):
        case.body |= {"model": CHAT, "max_tokens": 1, "n": 1}
        case.body.pop("max_completion_tokens", None)
        case.body.pop("min_tokens", None)
    if valid and "/images/" in case.path and isinstance(case.body, dict):
        case.body |= {"model": IMAGE, "size": "64x64", "steps": 1, "n": 1}
        case.body.pop("num_inference_steps", None)
