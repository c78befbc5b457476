"""The format of error responses."""

from urllib.parse import urlsplit


def format_problem(response):
    """A description of what is wrong with the body of an error response, or `None`."""
    if urlsplit(str(response.request.url)).path.startswith("/api/"):
        return ollama_problem(response)
    try:
        error = response.json()["error"]
        fields = sorted(error)
    except (ValueError, KeyError, TypeError) as cause:
        return f"no error object: {cause!r}"
    if fields != ["code", "message", "param", "request_id", "type"]:
        return f"fields {fields}"
    header = response.headers.get("x-request-id", [""])
    if error["request_id"] not in (header, *header):
        return f"request id {error['request_id']} in the body, {header} in the header"
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
