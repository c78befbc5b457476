//! A fine-tuning job while the disk is full: it waits, and ends with the same adapter as without the interruption.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outpost::calls::fine_tuning::TrainingLoop;
use outpost::clock_rng::ClockRng;
use outpost::engine::{Engine, Settings};
use outpost::ids::{FileId, JobId};
use outpost::service::files::{NewFile, Purpose};
use outpost::service::fine_tuning::{Job, JobState, Jobs, Method, NewJob, RequestedHyperparameters, export_model};
use outpost::service::{Access, PageRequest, Services};
use serde_json::json;
use tokio::task::LocalSet;

use crate::clock::ShiftedClock;
use crate::panics;
use crate::server::{Installation, runtime};
use crate::simulated_disk::{Disk, Fault};
use crate::tiny_model::{self, TinyModel};

const PATIENCE: Duration = Duration::from_secs(60);

async fn upload(services: &Services, access: &Access) -> FileId {
    let line = |index: usize| {
        json!({ "messages": [
            { "role": "user", "content": format!("question {index}") },
            { "role": "assistant", "content": format!("answer {index}") },
        ] })
    };
    let lines: Vec<String> = (0..8).map(|index| line(index).to_string()).collect();
    let mut upload = services.files.begin(access, None, (None, None), "train.jsonl").await.unwrap();
    upload.write(lines.join("\n").as_bytes()).await.unwrap();
    let new = NewFile { project: None, name: "train.jsonl".to_owned(), purpose: Purpose::FineTune };
    services.files.create(access, upload.finish().await.unwrap(), new).await.unwrap().id
}

fn new_job(training_file: FileId, n_epochs: i64) -> NewJob {
    let hyperparameters = RequestedHyperparameters {
        path: "hyperparameters",
        n_epochs: Some(n_epochs),
        batch_size: Some(2),
        ..RequestedHyperparameters::default()
    };
    NewJob {
        project: None,
        name: None,
        metadata: None,
        model: "tiny".to_owned(),
        training_file,
        validation_file: None,
        method: Method::Supervised,
        hyperparameters,
        suffix: None,
        seed: Some(7),
    }
}

/// Waits until the job is as expected.
async fn wait_for(jobs: &Jobs, access: &Access, id: JobId, what: &str, is_met: impl Fn(&Job) -> bool) -> Job {
    let began = Instant::now();
    loop {
        let job = jobs.get(access, id).await.unwrap();
        if is_met(&job) {
            return job;
        }
        assert!(job.state != JobState::Failed, "{:?}", job.error);
        assert!(began.elapsed() < PATIENCE, "the job shall be {what}: {job:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Trains the job, with a full disk in between if `is_full`. Returns its end and the bytes of its adapter.
fn train(models: &Path, is_full: bool) -> (Job, Vec<u8>) {
    let installation = Installation::new(6);
    let disk = Disk::new(installation.database.clone());
    let server = installation.open(&disk).unwrap();
    let clock = Arc::new(ShiftedClock::default());
    let clock_rng: Arc<dyn ClockRng> = clock.clone();
    let engine = Engine::start(Settings::new(models, 1 << 30), clock_rng.clone()).unwrap();
    let job = runtime().block_on(LocalSet::new().run_until(async {
        let access = server.admin(&installation).await.unwrap();
        let services = Services::start(&server.store, &clock_rng, Duration::from_secs(1)).await.unwrap();
        let jobs = services.jobs.clone();
        let file = upload(&services, &access).await;
        let id = jobs.create(&access, new_job(file, 40)).await.unwrap().id;
        let (training, stopper) = TrainingLoop::new(engine.clone(), jobs.clone(), clock_rng.clone());
        let running = tokio::task::spawn_local(training.run());
        if is_full {
            wait_for(&jobs, &access, id, "in its third epoch", |job| job.progress.is_some_and(|at| at.step > 8)).await;
            // From now on it has nowhere to save its state.
            disk.fail(Some(Fault::Full { bytes: 0, sparse: true }));
            let began = Instant::now();
            while disk.failures() == 0 {
                assert!(began.elapsed() < PATIENCE, "the disk is never full");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
            disk.fail(None);
            // The job is tried again after a quarter of a minute. A change of the queue wakes the loop.
            clock.pass(Duration::from_secs(15));
            let began = Instant::now();
            let other = loop {
                match jobs.create(&access, new_job(file, 1)).await {
                    Ok(other) => break other.id,
                    Err(error) => assert!(began.elapsed() < PATIENCE, "the disk has room: {error}"),
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            };
            jobs.cancel(&access, other).await.unwrap();
        }
        let job = wait_for(&jobs, &access, id, "complete", |job| job.state == JobState::Succeeded).await;
        let (mut request, mut went_on) = (PageRequest { limit: Some(100), ..PageRequest::default() }, false);
        loop {
            let events = jobs.events(&access, id, request.clone()).await.unwrap();
            went_on |= events.items.iter().any(|event| event.message.starts_with("The training goes on after step"));
            request.cursor = events.next_cursor;
            if request.cursor.is_none() {
                break;
            }
        }
        assert_eq!(went_on, is_full, "it was interrupted");
        stopper.stop();
        running.await.unwrap();
        job
    }));
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("exported");
    export_model(&server.store, job.fine_tuned_model.as_deref().unwrap(), &to).unwrap();
    server.close();
    (job, std::fs::read(to.join("adapter_model.safetensors")).unwrap())
}

#[test]
fn a_job_waits_while_the_disk_is_full_and_ends_as_an_unbroken_one() {
    let panics = panics::watch();
    let models = tempfile::tempdir().unwrap();
    tiny_model::write(models.path(), "tiny", &TinyModel::default());
    let (unbroken, expected) = train(models.path(), false);
    let (interrupted, adapter) = train(models.path(), true);
    let loss = |job: &Job| job.progress.as_ref().unwrap().train_loss;
    assert_eq!(loss(&interrupted).to_bits(), loss(&unbroken).to_bits());
    assert_eq!(adapter, expected);
    assert_eq!(interrupted.trained_tokens, unbroken.trained_tokens);
    assert_eq!(panics.count(), 0, "something panicked");
}
