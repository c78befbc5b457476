"""Endpoints 1 to 4, 14 and 15 of the specification, on both mounts."""


import pytest


def ok(response, mount):
    assert response.status_code == 200, response.text
    assert response.headers["x-request-id"].startswith("req_")
    body = response.json()
    assert body["id"]
    if mount == "/v1":
        assert (body["object"], body["status"]) == ("service.resource", "succeeded")
    else:
        assert body["object"] != "service.resource"
    return body


def create_key(http, mount, project, **more):
    return ok(http.post(mount + "/api-keys", json={"name": "k", "project_id": project, **more}), mount)


def is_accepted(server, secret):
    with server.http(secret) as http:
        return http.get("/v1/models").status_code == 200


def test_15_create_a_project(http, mount):
    body = {"name": "p", "environment": "development", "metadata": {"team": "a"}}
    project = ok(http.post(mount + "/projects", json=body), mount)
    assert project["id"].startswith("proj_")
    assert (project["name"], project["environment"], project["metadata"]) == ("p", "development", {"team": "a"})
    assert http.post(mount + "/projects", json={}).json()["error"]["param"] == "name"


def test_14_replace_a_project(http, mount, project):
    replaced = ok(http.put(f"{mount}/projects/{project}", json={"name": "new", "environment": "prod"}), mount)
    assert (replaced["id"], replaced["name"], replaced["environment"]) == (project, "new", "prod")
    cleared = ok(http.put(f"{mount}/projects/{project}", json={"name": "new"}), mount)
    assert cleared.get("environment") is None
    assert http.put(f"{mount}/projects/{project}", json={"environment": "prod"}).status_code == 400
    assert http.put(f"{mount}/projects/proj_missing", json={"name": "x"}).status_code == 404


def test_2_a_new_key_works_and_shows_its_secret_once(server, http, mount, project):
    key = create_key(http, mount, project, expires_at="2099-01-01T00:00:00Z")
    assert key["id"].startswith("key_")
    assert key["secret"].startswith("opk_") and key["value"] == key["secret"]
    assert is_accepted(server, key["secret"])
    listed = http.get(mount + "/api-keys", params={"project_id": project})
    assert key["secret"] not in listed.text


@pytest.mark.parametrize(
    "change,param",
    [
        ({"name": None}, "name"),
        ({"project_id": None}, "project_id"),
        ({"name": ""}, "name"),
        ({"expires_at": "tomorrow"}, "expires_at"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_2_invalid_fields_are_named(http, mount, project, change, param):
    body = {"name": "k", "project_id": project, **change}
    body = {field: value for field, value in body.items() if value is not None}
    response = http.post(mount + "/api-keys", json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_1_keys_are_listed_page_by_page(http, mount, project):
    created = {create_key(http, mount, project, name=f"k{i}")["id"] for i in range(5)}
    seen, cursor = [], None
    for _ in range(10):
        params = {"project_id": project, "limit": 2, **({"cursor": cursor} if cursor else {})}
        page = ok(http.get("/v1/api-keys", params=params), mount) if mount == "/v1" else openai_list(http, params)
        assert len(page["data"]) <= 2
        seen += [key["id"] for key in page["data"]]
        if not page["has_more"]:
            break
        cursor = page["next_cursor"] if mount == "/v1" else page["last_id"]
    assert len(seen) == len(set(seen)) and set(seen) == created
    for bad in ({"limit": 0}, {"limit": 101}, {"limit": "x"}, {"cursor": "broken"}):
        response = http.get(mount + "/api-keys", params={"project_id": project, **bad})
        assert response.status_code == 400 and response.json()["error"]["param"] == list(bad)[0], response.text


def openai_list(http, params):
    """On the `/openai/v1` mount, a list has OpenAI's format: it has no ID, and pages by `after`."""
    params = {("after" if name == "cursor" else name): value for name, value in params.items()}
    response = http.get("/openai/v1/api-keys", params=params)
    assert response.status_code == 200, response.text
    body = response.json()
    assert body["object"] == "list"
    return body


def test_1_parameters_may_be_in_the_body(http, project):
    key = create_key(http, "/v1", project)
    body = ok(http.request("GET", "/v1/api-keys", json={"project_id": project, "limit": 5}), "/v1")
    assert [item["id"] for item in body["data"]] == [key["id"]]
    both = http.request("GET", "/v1/api-keys", params={"limit": 3}, json={"project_id": project, "limit": 5})
    assert both.status_code == 400
    assert http.get("/v1/api-keys").json()["error"]["param"] == "project_id"


def test_3_rotation_replaces_the_secret(server, http, mount, project):
    old = create_key(http, mount, project)
    new = ok(http.put(f"{mount}/api-keys/{old['id']}", json={"reason": "leaked"}), mount)
    assert new["id"] == old["id"] and new["secret"] != old["secret"]
    assert is_accepted(server, new["secret"]) and not is_accepted(server, old["secret"])


def test_3_with_a_grace_period_both_secrets_work(server, http, mount, project):
    old = create_key(http, mount, project)
    new = ok(http.put(f"{mount}/api-keys/{old['id']}", json={"grace_period_seconds": 600}), mount)
    assert is_accepted(server, new["secret"]) and is_accepted(server, old["secret"])
    for bad in (-1, 2_592_001, "long"):
        response = http.put(f"{mount}/api-keys/{old['id']}", json={"grace_period_seconds": bad})
        assert response.status_code == 400 and response.json()["error"]["param"] == "grace_period_seconds", response.text


def test_4_the_name_changes_and_the_secret_is_kept(server, http, mount, project):
    key = create_key(http, mount, project)
    body = {"name": "renamed", "expires_at": "2099-01-01T00:00:00Z"}
    changed = ok(http.patch(f"{mount}/api-keys/{key['id']}", json=body), mount)
    assert (changed["id"], changed["name"]) == (key["id"], "renamed")
    assert "secret" not in changed and is_accepted(server, key["secret"])
    assert http.patch(f"{mount}/api-keys/{key['id']}", json={}).json()["error"]["param"] == "name"
    assert http.patch(f"{mount}/api-keys/key_missing", json={"name": "x"}).status_code == 404
