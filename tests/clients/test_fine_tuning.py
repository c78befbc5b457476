"""Files and fine-tuning jobs (endpoint 9 among them) with the official client, on both mounts."""

import json
import time

import openai
import pytest

LINE = json.dumps({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]})
CONTENT = (LINE + "\n" + LINE + "\n").encode()


PREFERENCE = json.dumps({
    "input": {"messages": [{"role": "user", "content": "hi"}]},
    "preferred_output": [{"role": "assistant", "content": "ho"}],
    "non_preferred_output": [{"role": "assistant", "content": "no"}],
}).encode()
# Two steps.
QUICK = {"n_epochs": 1, "batch_size": 1}


@pytest.fixture(params=["client", "strict"])
def any_client(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def uploaded(strict):
    return strict.files.create(file=("train.jsonl", CONTENT), purpose="fine-tune")


@pytest.fixture
def job(strict, server, uploaded):
    return strict.fine_tuning.jobs.create(
        model=server.chat_model, training_file=uploaded.id, suffix="mine", seed=1, hyperparameters=QUICK
    )


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


def finished(client, job):
    deadline = time.monotonic() + 120
    while job.status not in ("succeeded", "failed", "cancelled"):
        assert time.monotonic() < deadline, job
        time.sleep(0.1)
        job = client.fine_tuning.jobs.retrieve(job.id)
    return job


def test_a_job_trains_a_model(strict, job, uploaded, server):
    assert (job.object, job.model) == ("fine_tuning.job", server.chat_model)
    assert (job.training_file, job.seed, job.fine_tuned_model, job.result_files) == (uploaded.id, 1, None, [])
    assert isinstance(job.created_at, int) and job.finished_at is None and job.error is None
    assert job.method.type == "supervised" and job.hyperparameters.learning_rate_multiplier == "auto"
    done = finished(strict, job)
    assert done.status == "succeeded", done
    assert isinstance(done.finished_at, int) and done.trained_tokens > 0
    assert isinstance(done.hyperparameters.learning_rate_multiplier, float)
    assert done.id in [one.id for one in strict.fine_tuning.jobs.list(limit=1)]

    events = list(strict.fine_tuning.jobs.list_events(done.id, limit=3))
    assert done.fine_tuned_model in events[0].message and events[0].level == "info"
    metrics = [event.data for event in events if event.type == "metrics"]
    assert metrics and all("train_loss" in data for data in metrics)
    checkpoints = list(strict.fine_tuning.jobs.checkpoints.list(done.id, limit=2))
    assert checkpoints[0].fine_tuned_model_checkpoint.startswith(done.fine_tuned_model)
    assert checkpoints[0].metrics.step == checkpoints[0].step_number

    question = [{"role": "user", "content": "hi"}]
    for model in (done.fine_tuned_model, checkpoints[-1].fine_tuned_model_checkpoint):
        answer = strict.chat.completions.create(model=model, messages=question, max_tokens=4)
        assert answer.model == model
    assert done.fine_tuned_model in [model.id for model in strict.models.list()]
    assert strict.models.delete(done.fine_tuned_model).deleted
    with pytest.raises(openai.NotFoundError):
        strict.models.retrieve(done.fine_tuned_model)
    with pytest.raises(openai.ConflictError):
        strict.fine_tuning.jobs.cancel(done.id)


def test_preferences_are_trained(strict, server):
    file = strict.files.create(file=("preferences.jsonl", PREFERENCE), purpose="fine-tune")
    method = {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.2, "n_epochs": 1}}}
    job = strict.fine_tuning.jobs.create(model=server.chat_model, training_file=file.id, method=method)
    done = finished(strict, job)
    assert (done.status, done.method.type, done.method.dpo.hyperparameters.beta) == ("succeeded", "dpo", 0.2)


def test_a_job_is_paused_resumed_and_cancelled(strict, server, http, uploaded):
    given = {"n_epochs": 50, "batch_size": 1}
    job = strict.fine_tuning.jobs.create(model=server.chat_model, training_file=uploaded.id, hyperparameters=given)
    # OpenAI's statuses have no word for a paused job.
    assert strict.fine_tuning.jobs.pause(job.id).status == "queued"
    assert http.get(f"/v1/fine_tuning/jobs/{job.id}").json()["state"] == "paused"
    assert strict.fine_tuning.jobs.resume(job.id).status == "queued"
    assert strict.fine_tuning.jobs.cancel(job.id).status == "cancelled"


def test_hyperparameters_are_accepted_in_both_formats(strict, server, uploaded):
    given = {"n_epochs": 2, "batch_size": "auto", "learning_rate_multiplier": 0.5}
    old = strict.fine_tuning.jobs.create(model=server.chat_model, training_file=uploaded.id, hyperparameters=given)
    method = {"type": "supervised", "supervised": {"hyperparameters": given}}
    new = strict.fine_tuning.jobs.create(model=server.chat_model, training_file=uploaded.id, method=method)
    for job in (old, new):
        assert job.hyperparameters.n_epochs == 2 and job.method.supervised.hyperparameters.n_epochs == 2
        strict.fine_tuning.jobs.cancel(job.id)


def test_9_metadata_is_updated(http, mount, job):
    path = f"{mount}/fine_tuning/jobs/{job.id}"
    changed = http.patch(path, json={"name": "mine", "metadata": {"team": "a"}})
    assert changed.status_code == 200, changed.text
    body = changed.json()
    assert (body["name"], body["metadata"], body["training_file"]) == ("mine", {"team": "a"}, job.training_file)
    if mount == "/v1":
        assert (body["object"], body["status"]) == ("service.resource", "succeeded")
        assert body["state"] in ("queued", "running", "succeeded")
    cleared = http.patch(path, json={"metadata": None}).json()
    assert (cleared["name"], cleared["metadata"]) == ("mine", None)
    refused = http.patch(path, json={"training_file": "x"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "training_file"
    assert http.patch(f"{mount}/fine_tuning/jobs/ftjob-missing", json={}).status_code == 404
