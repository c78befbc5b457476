use std::fs;
use std::path::Path;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::process::{MODEL, ServerProcess, folder, output_text, run};
use crate::tiny_model::TinyModel;
use crate::tune::examples;
use crate::wait::until;

/// Uploads training examples and returns the file's ID.
fn upload(serving: &ServerProcess, content: &str) -> String {
    let part =
        |head: &str, content: &str| format!("--xYzZY\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n");
    let body = part("name=\"purpose\"", "fine-tune")
        + &part("name=\"file\"; filename=\"train.jsonl\"", content)
        + "--xYzZY--\r\n";
    let request = reqwest::blocking::Client::new().post(format!("{}/v1/files", serving.url)).bearer_auth(serving.key());
    let reply = request.header("content-type", "multipart/form-data; boundary=xYzZY").body(body).send().unwrap();
    let reply: Value = reply.json().unwrap();
    reply["id"].as_str().unwrap_or_else(|| panic!("{reply}")).to_owned()
}

/// Creates a job, and returns its path.
fn create_job(serving: &ServerProcess, content: &str, hyperparameters: &Value) -> String {
    let body = json!({
        "model": MODEL, "training_file": upload(serving, content), "suffix": "mine", "seed": 7,
        "method": { "type": "supervised", "supervised": { "hyperparameters": hyperparameters } },
    });
    let job: Value = serving.request(Method::POST, "/v1/fine_tuning/jobs", Some(&body)).json().unwrap();
    format!("/v1/fine_tuning/jobs/{}", job["id"].as_str().unwrap_or_else(|| panic!("{job}")))
}

/// Waits until a job is as expected, and returns it.
fn wait_for_job(serving: &ServerProcess, path: &str, what: &str, is_met: impl Fn(&Value) -> bool) -> Value {
    let mut job = Value::Null;
    until(
        || format!("the job is {what}"),
        || {
            job = serving.request(Method::GET, path, None).json().unwrap();
            assert!(job["state"] != "failed", "{job}");
            is_met(&job)
        },
    );
    job
}

fn wait_for_success(serving: &ServerProcess, path: &str) -> Value {
    wait_for_job(serving, path, "complete", |job| job["state"] == "succeeded")
}

fn read(folder: &Path, name: &str) -> [Vec<u8>; 2] {
    ["adapter_config.json", "adapter_model.safetensors"].map(|file| fs::read(folder.join(name).join(file)).unwrap())
}

#[test]
fn a_model_of_a_job_is_exported_with_and_without_a_server() {
    let folder = folder(&TinyModel::default());
    let path = folder.path();
    let mut serving = ServerProcess::start(path, &[]);
    let none = run(path, &["models", "export", "ft:x", "x"]);
    assert!(output_text(&none).contains("no job has trained a model yet"), "{}", output_text(&none));
    let job = wait_for_success(&serving, &create_job(&serving, &examples(4), &json!({ "n_epochs": 2 })));
    let name = job["fine_tuned_model"].as_str().unwrap().to_owned();

    let output = run(path, &["models", "export", &name, "online"]);
    let text = output_text(&output);
    assert!(output.status.success() && text.starts_with(&format!("{name} (")) && text.contains("online"), "{text}");
    assert_eq!(fs::read_dir(path.join("online")).unwrap().count(), 2);
    let again = run(path, &["models", "export", &name, "online"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(output_text(&again).contains("online exists already; choose another folder"), "{}", output_text(&again));
    let nowhere = run(path, &["models", "export", &name, "absent/folder"]);
    assert!(
        !nowhere.status.success() && output_text(&nowhere).contains("absent/folder: "),
        "{}",
        output_text(&nowhere)
    );

    // A checkpoint is exported by its own name.
    let checkpoints: Value = {
        let jobs: Value = serving.request(Method::GET, "/v1/fine_tuning/jobs", None).json().unwrap();
        let job = jobs["data"][0]["id"].as_str().unwrap();
        serving.request(Method::GET, &format!("/v1/fine_tuning/jobs/{job}/checkpoints"), None).json().unwrap()
    };
    let checkpoint = checkpoints["data"][1]["fine_tuned_model_checkpoint"].as_str().unwrap();
    assert!(run(path, &["models", "export", checkpoint, "checkpoint"]).status.success());

    serving.signal("TERM");
    serving.wait(Duration::from_secs(10));
    let output = run(path, &["models", "export", &name, "offline"]);
    assert!(output.status.success(), "{}", output_text(&output));
    assert_eq!(read(path, "offline"), read(path, "online"));
    assert_ne!(read(path, "checkpoint")[1], read(path, "online")[1]);
    let near = run(path, &["models", "export", &name.replace("mine", "mein"), "x"]);
    assert_eq!(near.status.code(), Some(1));
    let near = output_text(&near);
    assert!(near.contains("did you mean ") && near.contains(&name), "{near}");
    assert!(!path.join("x").exists());

    // The command line trains as the job did.
    fs::write(path.join("train.jsonl"), examples(4)).unwrap();
    let tune = ["tune", "train.jsonl", "--model", MODEL, "--epochs", "2", "--seed", "7", "--output", "tuned"];
    let output = run(path, &tune);
    assert!(output.status.success(), "{}", output_text(&output));
    assert_eq!(read(path, "tuned"), read(path, "online"));

    // The exported folder is a model.
    fs::rename(path.join("offline"), path.join("models/mine")).unwrap();
    let serving = ServerProcess::start(path, &[]);
    let found: Value = serving.request(Method::GET, "/v1/models/mine", None).json().unwrap();
    assert_eq!((&found["base_model"], &found["problem"]), (&json!(MODEL), &Value::Null), "{found}");
}

#[test]
fn a_job_that_is_killed_five_times_ends_as_an_unbroken_one() {
    let folder = folder(&TinyModel::default());
    let path = folder.path();
    let hyperparameters = json!({ "n_epochs": 50, "batch_size": 1 });
    let mut serving = ServerProcess::start(path, &[]);
    let job = create_job(&serving, &examples(72), &hyperparameters);
    let step = |job: &Value| job["progress"]["step"].as_u64().unwrap_or(0);
    let mut reached = 0;
    for kill in 0..5 {
        // At another moment of an epoch each time, and after the state that the last kill left.
        let found = wait_for_job(&serving, &job, "ahead", |job| step(job) > reached + 30 * kill % 50);
        assert_eq!(found["state"], "running", "it is killed before its end");
        reached = step(&found);
        std::thread::sleep(Duration::from_millis(17 * kill));
        serving.signal("KILL");
        serving.wait(Duration::from_secs(10));
        serving = ServerProcess::start(path, &[]);
    }
    let killed = wait_for_success(&serving, &job);
    let unbroken = wait_for_success(&serving, &create_job(&serving, &examples(72), &hyperparameters));
    for field in ["train_loss", "train_mean_token_accuracy", "step"] {
        assert_eq!(killed["progress"][field], unbroken["progress"][field], "{field}");
    }
    assert_eq!(killed["trained_tokens"], unbroken["trained_tokens"]);
    for (job, to) in [(&killed, "killed"), (&unbroken, "unbroken")] {
        let output = run(path, &["models", "export", job["fine_tuned_model"].as_str().unwrap(), to]);
        assert!(output.status.success(), "{}", output_text(&output));
    }
    assert!(read(path, "killed") == read(path, "unbroken"), "the adapters have the same bytes");
}
