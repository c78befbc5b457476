"""The formats of error responses: OpenAI's, and those of Anthropic's, Ollama's and Cohere's APIs."""

from urllib.parse import urlsplit


def format_problem(response):
    """A description of what is wrong with the body of an error response, or `None`."""
    if urlsplit(str(response.request.url)).path.startswith("/api/"):
        return ollama_problem(response)
    if urlsplit(str(response.request.url)).path.startswith("/v2/"):
        return cohere_problem(response)
    try:
        body = response.json()
        error = body["error"]
        fields = sorted(error)
    except (ValueError, KeyError, TypeError) as cause:
        return f"no error object: {cause!r}"
    if body.get("type") == "error":
        # Anthropic's format has the request ID outside the error.
        request_id, expected = body.get("request_id"), ["code", "message", "param", "type"]
    else:
        request_id, expected = error.get("request_id"), ["code", "message", "param", "request_id", "type"]
    if fields != expected:
        return f"fields {fields}"
    header = response.headers.get("x-request-id", [""])
    if request_id not in (header, *header):
        return f"request id {request_id} in the body, {header} in the header"
    texts = [error["message"], error["type"], error["code"], error["param"] or "-"]
    if not all(isinstance(text, str) and text for text in texts):
        return f"not non-empty strings: {texts}"
    return None


def ollama_problem(response):
    """The same for Ollama's API, whose errors are a text."""
    try:
        body = response.json()
    except ValueError as cause:
        return f"no JSON: {cause!r}"
    if not isinstance(body, dict) or list(body) != ["error"] or not isinstance(body["error"], str) or not body["error"]:
        return f"no error of Ollama: {body}"
    return None if response.headers.get("x-request-id") else "no request id"


def cohere_problem(response):
    """The same for Cohere's API."""
    try:
        body = response.json()
    except ValueError as cause:
        return f"no JSON: {cause!r}"
    if not isinstance(body, dict) or sorted(body) != ["code", "id", "message", "param"]:
        return f"no error of Cohere: {body}"
    header = response.headers.get("x-request-id", [""])
    if body["id"] not in (header, *header):
        return f"request id {body['id']} in the body, {header} in the header"
    texts = [body["message"], body["code"], body["param"] or "-"]
    return None if all(isinstance(text, str) and text for text in texts) else f"not non-empty strings: {texts}"
