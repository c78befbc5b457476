//! A panic anywhere in a workload fails the affected requests, and later requests are served.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use outpost_testing::fixtures::add_fixture;
use outpost_testing::test_clock::TestClock;
use outpost_testing::tiny_model;
use tempfile::TempDir;
use tokio::time::timeout;

use super::*;

/// A timeout that exceeds the duration of any request, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// An engine with a tiny model of each kind.
struct Rig {
    engine: Engine,
    text: Arc<TextModel>,
    encoder: Arc<EncoderModel>,
    image: Arc<ImageModel>,
    _models: TempDir,
}

impl Rig {
    fn new() -> Self {
        let models = tempfile::tempdir().unwrap();
        tiny_model::write(models.path(), "text", &tiny_model::TinyModel::default());
        add_fixture("encoders", models.path(), "bert-mean");
        add_fixture("pipelines", models.path(), "sd1");
        let clock = Arc::new(TestClock::default());
        let engine = Engine::start(Settings::new(models.path(), 1 << 30), clock).unwrap();
        let registry = engine.models();
        let text = registry.load("text").unwrap();
        let encoder = registry.load_encoder("bert-mean", ModelKind::Embedding).unwrap();
        let image = registry.load_model::<ImageModel>("sd1").unwrap();
        Self { engine, text, encoder, image, _models: models }
    }

    fn faults(&self) -> &runtime::fault_injection::FaultInjector {
        &self.engine.owner.devices[0].runtime.faults
    }

    fn submit(&self) -> Result<Generation, Refused> {
        let sampling = Sampling { ignore_eos: true, ..Sampling::default() };
        let request = GenerationRequest {
            prompt: (1..40).collect::<Vec<_>>().into(),
            prompt_logprobs: None,
            choices: 2,
            max_tokens: 24,
            sampling,
            grammar: None,
            reasoning: None,
            stop: Vec::new(),
            text: TextOptions::default(),
            logprobs: None,
            tenant: 1,
        };
        self.engine.submit(&self.text, request)
    }

    /// Tokens of all choices.
    async fn generate(&self) -> Result<u32, Failure> {
        let mut generation = self.submit().map_err(|refused| Failure::Internal(refused.to_string()))?;
        let mut tokens = [0; 2];
        while let Some(delta) = generation.deltas.recv().await {
            let delta = delta?;
            tokens[delta.choice as usize] = delta.generated;
        }
        Ok(tokens.iter().sum())
    }

    async fn embed(&self) -> Result<usize, Failure> {
        let texts = vec![Tokenized::new(vec![2, 3, 4]), Tokenized::new(vec![2, 5])];
        let vectors = self.engine.embed(&self.encoder, 1, texts).unwrap().await;
        Ok(vectors.expect("a request is answered")?.len())
    }

    async fn generate_images(&self) -> Result<usize, Failure> {
        let request = ImageRequest {
            prompt: "a".to_owned(),
            negative_prompt: None,
            size: [16, 16],
            steps: 2,
            guidance: 1.,
            scheduler: None,
            seeds: vec![1, 2],
            init_image: None,
            lora: Vec::new(),
            previews: 0,
            tenant: 1,
        };
        let mut events = self.engine.generate_images(&self.image, request).unwrap();
        let mut images = 0;
        while let Some(event) = events.next().await {
            images += usize::from(matches!(event?, ImageEvent::Done { .. }));
        }
        Ok(images)
    }

    /// Runs one request of each kind concurrently.
    async fn all(&self) -> (Result<u32, Failure>, Result<usize, Failure>, Result<usize, Failure>) {
        let all = async { tokio::join!(self.generate(), self.embed(), self.generate_images()) };
        timeout(PATIENCE, all).await.expect("a request never ends")
    }
}

#[tokio::test]
async fn a_panic_at_any_point_fails_only_the_affected_requests() {
    let rig = Rig::new();
    let internal = |failure: &Failure| matches!(failure, Failure::Internal(_));
    assert_eq!(rig.all().await, (Ok(48), Ok(2), Ok(2)));
    let points = [
        "text.sweep",
        "text.propose",
        "text.plan",
        "text.reserve_blocks",
        "text.forward",
        "text.sample",
        "text.commit_step",
        "embedding.step",
        "embedding.deliver",
        "image.next_job",
        "image.work",
        "image.requeue",
    ];
    for point in points {
        rig.faults().arm(point);
        let (text, embedding, image) = rig.all().await;
        assert!(!rig.faults().is_armed(), "{point} was not reached");
        match point.split('.').next() {
            Some("text") => {
                // A request that had not started is served after the panic.
                assert!(
                    text.as_ref().is_ok_and(|tokens| *tokens == 48) || text.as_ref().is_err_and(internal),
                    "{point}"
                );
                assert_eq!((embedding, image), (Ok(2), Ok(2)), "{point}");
            }
            Some("embedding") => {
                assert!(embedding.as_ref().is_err_and(internal), "{point}: {embedding:?}");
                assert_eq!((text, image), (Ok(48), Ok(2)), "{point}");
            }
            _ => {
                // A request in the queue is not affected.
                let expected =
                    if point == "image.next_job" { image == Ok(2) } else { image.as_ref().is_err_and(internal) };
                assert!(expected, "{point}: {image:?}");
                assert_eq!((text, embedding), (Ok(48), Ok(2)), "{point}");
            }
        }
        assert_eq!(rig.all().await, (Ok(48), Ok(2), Ok(2)), "after {point}");
        assert!(rig.engine.is_healthy(), "{point}");
    }
    let metrics = rig.engine.metrics();
    for (workload, count) in [("text", 7), ("embedding", 2), ("image", 3)] {
        let line = format!("outpost_workload_panics_total{{workload=\"{workload}\"}} {count}");
        assert!(metrics.contains(&line), "{line} is not in\n{metrics}");
    }
    let load = rig.engine.load();
    assert_eq!((load.queued, load.running, load.kv_bytes), (0, 0, 0), "nothing is leaked");
}

#[tokio::test]
async fn a_panicking_caller_leaves_the_queue_usable() {
    let rig = Rig::new();
    let running = rig.submit().unwrap();
    rig.faults().arm("text.push");
    assert!(catch_unwind(AssertUnwindSafe(|| rig.submit())).is_err());
    let mut deltas = running.deltas;
    let ended = async { while deltas.recv().await.is_some_and(|piece| piece.is_ok()) {} };
    timeout(PATIENCE, ended).await.expect("the running request ends with a result or a failure");
    assert_eq!(rig.all().await, (Ok(48), Ok(2), Ok(2)));
}

#[tokio::test]
async fn requests_that_wait_during_a_panic_are_served_after_it() {
    let rig = Rig::new();
    rig.faults().arm("text.commit_step");
    let all: Vec<_> = (0..6).map(|_| rig.generate()).collect();
    let all = timeout(PATIENCE, futures_util::future::join_all(all)).await.expect("a request never ends");
    assert!(all.iter().any(Result::is_err) || !rig.faults().is_armed());
    assert!(all.iter().all(|one| matches!(one, Ok(48) | Err(Failure::Internal(_)))), "{all:?}");
}

#[tokio::test]
async fn a_workload_that_panics_during_recovery_retries() {
    let rig = Rig::new();
    rig.faults().arm("text.plan");
    rig.faults().arm("text.recover");
    let (text, embedding, image) = rig.all().await;
    assert!(text.is_ok() || matches!(text, Err(Failure::Internal(_))), "{text:?}");
    assert_eq!((embedding, image), (Ok(2), Ok(2)));
    assert_eq!(rig.all().await, (Ok(48), Ok(2), Ok(2)));
    assert!(!rig.faults().is_armed() && rig.engine.is_healthy());
    let panics = "outpost_workload_panics_total{workload=\"text\"} 2";
    assert!(rig.engine.metrics().contains(panics));
}
