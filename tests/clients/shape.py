"""The one shape of errors."""


def wrong_with(response):
    """What is wrong with the body of an error; None if all is well."""
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
        return f"not texts: {texts}"
    return None
