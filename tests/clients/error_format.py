"""The format of error responses."""


def format_problem(response):
    """A description of what is wrong with the body of an error response, or `None`."""
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
