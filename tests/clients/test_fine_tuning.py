"""Files and fine-tuning jobs (endpoint 9 among them) with the official client, on both mounts."""

import json

import openai
import pytest

LINE = json.dumps({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]})
CONTENT = (LINE + "\n" + LINE + "\n").encode()


@pytest.fixture(params=["client", "strict"])
def any_client(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def uploaded(strict):
    return strict.files.create(file=("train.jsonl", CONTENT), purpose="fine-tune")


@pytest.fixture
def job(strict, server, uploaded):
    return strict.fine_tuning.jobs.create(model=server.chat_model, training_file=uploaded.id, suffix="mine", seed=1)


def test_an_uploaded_file_can_be_downloaded(any_client):
    created = any_client.files.create(file=("train.jsonl", CONTENT), purpose="fine-tune")
    assert (created.bytes, created.filename, created.purpose) == (len(CONTENT), "train.jsonl", "fine-tune")
    assert any_client.files.retrieve(created.id).id == created.id
    assert any_client.files.content(created.id).read() == CONTENT
    assert created.id in [file.id for file in any_client.files.list(purpose="fine-tune", limit=2)]
    deleted = any_client.files.delete(created.id)
    assert deleted.deleted and deleted.id == created.id
    with pytest.raises(openai.NotFoundError):
        any_client.files.retrieve(created.id)


def test_a_file_on_the_openai_mount_has_openais_format(uploaded):
    assert (uploaded.object, uploaded.status, uploaded.expires_at) == ("file", "processed", None)
    assert isinstance(uploaded.created_at, int)


def test_files_are_listed_page_by_page(strict):
    created = [strict.files.create(file=(f"{n}.jsonl", CONTENT), purpose="fine-tune").id for n in range(3)]
    listed = [file.id for file in strict.files.list(limit=1)]
    assert listed[:3] == created[::-1] and len(listed) == len(set(listed))


def test_an_invalid_line_is_reported(any_client):
    with pytest.raises(openai.BadRequestError) as caught:
        any_client.files.create(file=("bad.jsonl", CONTENT + b'{"messages": []}'), purpose="fine-tune")
    assert caught.value.param == "file" and "line 3" in caught.value.message


def test_a_job_fails(strict, job, uploaded, server):
    assert (job.object, job.status, job.model) == ("fine_tuning.job", "failed", server.chat_model)
    assert (job.training_file, job.seed, job.fine_tuned_model, job.result_files) == (uploaded.id, 1, None, [])
    assert job.error.code == "training_unavailable" and "cannot train" in job.error.message
    assert isinstance(job.created_at, int) and isinstance(job.finished_at, int)
    assert job.method.type == "supervised" and job.hyperparameters.n_epochs == "auto"
    again = strict.fine_tuning.jobs.retrieve(job.id)
    assert again == job
    assert job.id in [one.id for one in strict.fine_tuning.jobs.list(limit=1)]
    events = list(strict.fine_tuning.jobs.list_events(job.id, limit=1))
    assert [event.level for event in events] == ["error", "info"]
    with pytest.raises(openai.ConflictError):
        strict.fine_tuning.jobs.cancel(job.id)


def test_hyperparameters_are_accepted_in_both_formats(strict, server, uploaded):
    given = {"n_epochs": 2, "batch_size": "auto", "learning_rate_multiplier": 0.5}
    old = strict.fine_tuning.jobs.create(model=server.chat_model, training_file=uploaded.id, hyperparameters=given)
    method = {"type": "supervised", "supervised": {"hyperparameters": given}}
    new = strict.fine_tuning.jobs.create(model=server.chat_model, training_file=uploaded.id, method=method)
    for job in (old, new):
        assert job.hyperparameters.n_epochs == 2 and job.method.supervised.hyperparameters.n_epochs == 2


def test_9_metadata_is_updated(http, mount, job):
    path = f"{mount}/fine_tuning/jobs/{job.id}"
    changed = http.patch(path, json={"name": "mine", "metadata": {"team": "a"}})
    assert changed.status_code == 200, changed.text
    body = changed.json()
    assert (body["name"], body["metadata"], body["training_file"]) == ("mine", {"team": "a"}, job.training_file)
    if mount == "/v1":
        assert (body["object"], body["status"], body["state"]) == ("service.resource", "succeeded", "failed")
    cleared = http.patch(path, json={"metadata": None}).json()
    assert (cleared["name"], cleared["metadata"]) == ("mine", None)
    refused = http.patch(path, json={"training_file": "x"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "training_file"
    assert http.patch(f"{mount}/fine_tuning/jobs/ftjob-missing", json={}).status_code == 404
