//! Trainings as the engine runs them: interrupted and continued, cancelled, and beside text generation.

use std::path::Path;

use outpost_engine::{
    Engine, Failure, LoadError, Settings, TrainingCheckpoint, TrainingData, TrainingEvent, TrainingMethod,
    TrainingOptions, TrainingRun, TrainingText,
};

use crate::harness::{Rig, greedy, memory, rig, settings, tiny};
use crate::tiny_model::TinyModel;

fn options(method: TrainingMethod) -> TrainingOptions {
    TrainingOptions {
        method,
        epochs: 2,
        batch_size: 3,
        learning_rate: 1e-2,
        rank: 4,
        alpha: 8.,
        dropout: 0.1,
        target_modules: Vec::new(),
        packed_length: None,
        seed: 7,
    }
}

/// Texts of different lengths. With preferences, they are pairs.
fn data() -> TrainingData {
    let text = |index: u32| {
        let tokens: Vec<u32> = (0..5 + index * 3 % 11).map(|position| (index * 31 + position * 7) % 250).collect();
        TrainingText { targets: (2..tokens.len()).collect(), tokens }
    };
    TrainingData { training: (0..14).map(text).collect(), validation: (20..24).map(text).collect() }
}

fn begin(engine: &Engine, options: &TrainingOptions, saved: Option<Vec<u8>>) -> TrainingRun {
    let model = engine.models().load_for_training("tiny", &data(), options, saved.as_deref()).unwrap();
    engine.train(model, data(), options.clone(), saved).unwrap()
}

/// What a training has reported.
#[derive(Debug, Default)]
struct Report {
    /// Step and loss of training, and of validation.
    losses: Vec<(u32, f32)>,
    validation: Vec<(u32, f32)>,
    checkpoints: Vec<TrainingCheckpoint>,
    stopped: bool,
}

impl Report {
    fn adapter(&self) -> &[u8] {
        &self.checkpoints.last().unwrap().adapter.as_ref().unwrap().weights
    }
}

/// Receives all events. Stops the training after a step, if there is one to stop after.
async fn follow(mut run: TrainingRun, stop_after: Option<u32>) -> Report {
    let mut report = Report::default();
    loop {
        match run.next().await.expect("the training ends with an event") {
            TrainingEvent::Step(step) => {
                report.losses.push((step.step, step.measured.loss));
                if stop_after == Some(step.step) {
                    run.stop();
                }
            }
            TrainingEvent::Validation { step, measured } => report.validation.push((step, measured.loss)),
            TrainingEvent::Checkpoint(checkpoint) => report.checkpoints.push(*checkpoint),
            TrainingEvent::Complete => return report,
            TrainingEvent::Stopped => return Report { stopped: true, ..report },
            TrainingEvent::Failed(failure) => panic!("{failure}"),
        }
    }
}

fn engine(models: &Path, memory_bytes: u64) -> Engine {
    let settings = Settings { speculate: false, memory_bytes, ..settings(models) };
    Engine::start(settings, std::sync::Arc::new(crate::harness::TestClock::default())).unwrap()
}

#[tokio::test]
async fn a_training_that_was_interrupted_ends_as_one_that_was_not() {
    let Rig { engine: first, dir, .. } = tiny();
    for method in [TrainingMethod::Supervised, TrainingMethod::Preference { beta: 0.5 }] {
        let options = options(method);
        let whole = follow(begin(&first, &options, None), None).await;
        let steps = whole.losses.last().unwrap().0;
        assert_eq!(whole.losses.iter().map(|(step, _)| *step).collect::<Vec<_>>(), (1..=steps).collect::<Vec<_>>());
        assert_eq!(whole.validation.last().unwrap().0, steps);
        let saved: Vec<u32> = whole.checkpoints.iter().map(|checkpoint| checkpoint.step).collect();
        assert_eq!(saved, [steps / 2, steps]);
        assert!(whole.checkpoints.iter().all(|checkpoint| checkpoint.adapter.is_some()));
        for stop_after in [1, steps / 2, steps - 1] {
            // On a busy machine, the training may be complete before it is stopped.
            let mut begun = follow(begin(&first, &options, None), Some(stop_after)).await;
            for _ in 0..20 {
                if begun.stopped {
                    break;
                }
                begun = follow(begin(&first, &options, None), Some(stop_after)).await;
            }
            let state = begun.checkpoints.last().unwrap();
            assert!(begun.stopped && state.step >= stop_after && state.step < steps, "{stop_after}: {}", state.step);
            // With less memory, the graphs of the layers are not kept.
            let second = engine(dir.path(), 120 << 20);
            let rest = follow(begin(&second, &options, Some(state.state.clone())), None).await;
            let taken = state.step as usize;
            assert_eq!(rest.losses, whole.losses[taken..], "{method:?} after step {taken}");
            assert_eq!(rest.adapter(), whole.adapter(), "{method:?} after step {taken}");
        }
    }
}

#[tokio::test]
async fn the_state_of_another_training_is_refused() {
    let rig = tiny();
    let engine = &rig.engine;
    let first = options(TrainingMethod::Supervised);
    let begun = follow(begin(engine, &first, None), Some(1)).await;
    let state = begun.checkpoints.last().unwrap().state.clone();
    let other = TrainingOptions { learning_rate: 2e-2, ..first };
    let mut run = begin(engine, &other, Some(state.clone()));
    let Some(TrainingEvent::Failed(Failure::ModelUnusable { reason, .. })) = run.next().await else {
        panic!("another learning rate is not noticed");
    };
    assert!(reason.contains("changed since the training began"), "{reason}");
    let cut = engine.models().load_for_training("tiny", &data(), &other, Some(&state[..40]));
    assert!(matches!(cut.err(), Some(LoadError::Unusable { reason, .. }) if reason.contains("damaged")));
}

#[tokio::test]
async fn packed_examples_are_trained_in_fewer_steps() {
    let rig = tiny();
    let engine = &rig.engine;
    let alone = TrainingOptions { batch_size: 1, ..options(TrainingMethod::Supervised) };
    let packed = TrainingOptions { packed_length: Some(32), ..alone.clone() };
    let reports = [follow(begin(engine, &alone, None), None).await, follow(begin(engine, &packed, None), None).await];
    let tokens = reports.each_ref().map(|report| report.checkpoints.last().unwrap().tokens);
    assert_eq!(tokens[0], tokens[1]);
    assert_eq!(reports[0].losses.len(), 28);
    assert!(reports[1].losses.len() < 20, "{:?}", reports[1].losses);
}

#[tokio::test]
async fn a_dropped_training_gives_its_memory_back() {
    let rig = tiny();
    let engine = &rig.engine;
    let before = memory(engine, "weights");
    let options = TrainingOptions { epochs: 50, ..options(TrainingMethod::Supervised) };
    let mut run = begin(engine, &options, None);
    assert!(matches!(run.next().await, Some(TrainingEvent::Step(_))));
    assert!(memory(engine, "weights") > before);
    drop(run);
    crate::wait::until(|| "its memory is free", || memory(engine, "weights") == before);
    // The next one runs.
    follow(begin(engine, &options, None), Some(1)).await;
}

#[tokio::test]
async fn text_is_generated_while_a_model_is_trained() {
    let rig = tiny();
    let expected = rig.run_one(greedy(vec![1, 2, 3], 40)).await;
    let options = TrainingOptions { epochs: 50, ..options(TrainingMethod::Supervised) };
    let mut run = begin(&rig.engine, &options, None);
    assert!(matches!(run.next().await, Some(TrainingEvent::Step(_))));
    let mut events = 1;
    let generated = rig.run_one(greedy(vec![1, 2, 3], 40));
    tokio::pin!(generated);
    let output = loop {
        tokio::select! {
            output = &mut generated => break output,
            event = run.next() => events += usize::from(event.is_some()),
        }
    };
    assert_eq!(output, expected);
    assert!(events > 1);
    rig.engine.abort();
    loop {
        match run.next().await {
            Some(TrainingEvent::Failed(failure)) => break assert_eq!(failure, Failure::ShuttingDown),
            Some(_) => {}
            None => panic!("the training ends without an event"),
        }
    }
}

#[test]
fn a_training_that_cannot_run_is_refused() {
    let rig = rig(&TinyModel::default(), |_| ());
    let load = |engine: &Engine, id: &str, options: &TrainingOptions| {
        engine.models().load_for_training(id, &data(), options, None).map(drop)
    };
    let options = options(TrainingMethod::Supervised);
    assert_eq!(load(&rig.engine, "missing", &options), Err(LoadError::NotFound));
    let wrong = TrainingOptions { target_modules: vec!["q_proj".to_owned(), "c_attn".to_owned()], ..options.clone() };
    let error = load(&rig.engine, "tiny", &wrong).unwrap_err().to_string();
    assert!(error.contains("has c_attn, which"), "{error}");
    let some = TrainingOptions { target_modules: vec!["q_proj".to_owned()], ..options.clone() };
    load(&rig.engine, "tiny", &some).unwrap();
    let small = engine(rig.dir.path(), 8 << 20);
    assert!(matches!(load(&small, "tiny", &options), Err(LoadError::TooLarge { .. })));
}
