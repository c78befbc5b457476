//! The training itself, as straight code: epochs, steps, validation and saved states.

use std::sync::Arc;
use std::time::Duration;

use ring::digest::{Context, SHA256};

use super::events::{EventSender, Measurement, StepReport, StopSignal, TrainingCheckpoint, TrainingEvent};
use super::options::{TrainingData, TrainingMethod, TrainingOptions, example_lengths};
use super::plan::{Plan, micro_batches};
use super::state::{self, Progress};
use super::trainable::TrainableModel;
use crate::discovery::AdapterFiles;
use outpost_common::clock_rng::ClockRng;
use outpost_common::display::hex;
use outpost_models::ModelError;
use outpost_models::backend::{Backend, Pause, RequestOptions};
use outpost_models::training::{AdamW, LearningRate, LoraTrainer, TargetScore, TrainingText, preference_score};

/// Gradients are clipped to this norm.
const MAX_GRADIENT_NORM: f32 = 1.;
const WEIGHT_DECAY: f32 = 0.;
/// The time between two saved states.
const SAVE_INTERVAL: Duration = Duration::from_secs(120);
/// Validations in a training, besides those at the ends of epochs.
const VALIDATIONS: u32 = 10;

/// A training that has started.
pub struct Training {
    pub model: TrainableModel,
    pub data: TrainingData,
    pub options: TrainingOptions,
    /// The saved state from which to resume.
    pub saved: Option<Vec<u8>>,
    pub events: EventSender,
    /// The request to save the state and end.
    pub stop: Arc<StopSignal>,
    pub clock: Arc<dyn ClockRng>,
}

/// The outcome of a training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Complete,
    /// It was asked to stop.
    Stopped,
}

/// Identifies what decides the course of a training: the base, the options and the examples.
pub fn fingerprint(base: &str, options: &TrainingOptions, data: &TrainingData) -> String {
    let mut digest = Context::new(&SHA256);
    digest.update(format!("{base}\n{options:?}\n").as_bytes());
    let texts = data.training.iter().map(Some).chain([None]).chain(data.validation.iter().map(Some));
    for text in texts {
        let Some(TrainingText { tokens, targets }) = text else {
            digest.update(b"validation");
            continue;
        };
        digest.update(&(tokens.len() as u64).to_le_bytes());
        digest.update(&(targets.len() as u64).to_le_bytes());
        tokens.iter().for_each(|token| digest.update(&token.to_le_bytes()));
        targets.iter().for_each(|target| digest.update(&(*target as u64).to_le_bytes()));
    }
    hex(digest.finish().as_ref())
}

/// Loss and accuracy over targets.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    loss: f64,
    hits: f64,
    /// The divisor of the loss and the hits: targets, or pairs.
    count: f64,
}

impl Sums {
    fn add_scores(&mut self, scores: &[Vec<TargetScore>]) {
        for score in scores.iter().flatten() {
            self.loss -= f64::from(score.log_probability);
            self.hits += f64::from(u8::from(score.is_greedy));
            self.count += 1.;
        }
    }

    fn add_pair(&mut self, loss: f32, rewards: [f32; 2]) {
        self.loss += f64::from(loss);
        self.hits += f64::from(u8::from(rewards[0] > rewards[1]));
        self.count += 1.;
    }

    fn measurement(self) -> Measurement {
        let count = self.count.max(1.);
        Measurement { loss: (self.loss / count) as f32, accuracy: (self.hits / count) as f32 }
    }
}

impl Training {
    /// Trains to the end, or until it is asked to stop.
    pub fn run(self, pause: Pause) -> Result<Ending, ModelError> {
        let Self { model, data, options, saved, events, stop, clock } = self;
        let TrainableModel { id, decoder, backend, mut parameters, micro_batch, keep_graphs, lease: _lease, .. } =
            model;
        let fingerprint = fingerprint(&id, &options, &data);
        let (progress, optimizer) = match saved {
            Some(bytes) => {
                let (progress, optimizer) = state::decode(&bytes, &mut parameters).map_err(ModelError::Compute)?;
                if progress.fingerprint != fingerprint {
                    let text = "the base model or the examples have changed since the training began";
                    return Err(ModelError::Compute(text.to_owned()));
                }
                (progress, optimizer)
            }
            None => {
                let optimizer = AdamW::new(parameters.values.len());
                (Progress { step: 0, tokens: 0, micro_batch, fingerprint }, optimizer)
            }
        };
        let receiver = events.clone();
        let pause: Pause = Arc::new(move || if receiver.is_closed() { Err(ModelError::Interrupted) } else { pause() });
        let handle = backend.for_request(RequestOptions { pause: Arc::clone(&pause), bf16_attention: false });
        let mut trainer = LoraTrainer::new(&decoder, handle, parameters, optimizer)?;
        trainer.keep_graphs = keep_graphs;
        trainer.set_dropout(options.dropout, options.seed)?;
        let lengths: Vec<usize> = example_lengths(&data.training, options.method).collect();
        let plan = Plan::new(&lengths, &options);
        let steps = plan.steps();
        let rate = LearningRate { peak: options.learning_rate, warmup: TrainingOptions::warmup(steps), steps };
        let references = vec![None; lengths.len()];
        let steps =
            Steps { base: id, trainer, data, options, lengths, references, progress, events, pause, rate, plan };
        steps.run(&stop, &*clock)
    }
}

/// A training between two steps.
struct Steps<'a> {
    /// The ID of the base model.
    base: String,
    trainer: LoraTrainer<'a>,
    data: TrainingData,
    options: TrainingOptions,
    /// The tokens of each example.
    lengths: Vec<usize>,
    /// The log probabilities of pairs without the adapter; `None` until they are computed.
    references: Vec<Option<[f32; 2]>>,
    progress: Progress,
    events: EventSender,
    pause: Pause,
    rate: LearningRate,
    plan: Plan,
}

impl Steps<'_> {
    fn run(mut self, stop: &StopSignal, clock: &dyn ClockRng) -> Result<Ending, ModelError> {
        let per_epoch = self.plan.steps_per_epoch();
        let validation_interval = (self.plan.steps() / VALIDATIONS).max(1);
        let mut saved_at = clock.uptime();
        for epoch in self.progress.step / per_epoch.max(1)..self.options.epochs {
            let taken = (self.progress.step - epoch * per_epoch) as usize;
            for batch in self.plan.epoch(epoch).iter().skip(taken) {
                self.step(batch, clock)?;
                let ends_epoch = self.progress.step == (epoch + 1) * per_epoch;
                if ends_epoch || self.progress.step.is_multiple_of(validation_interval) {
                    self.validate()?;
                }
                let stops = stop.is_set() && self.progress.step < self.plan.steps();
                if ends_epoch || stops || clock.uptime().saturating_sub(saved_at) >= SAVE_INTERVAL {
                    saved_at = clock.uptime();
                    self.save(ends_epoch || stops && stop.wants_adapter())?;
                }
                if stops {
                    return Ok(Ending::Stopped);
                }
            }
        }
        Ok(Ending::Complete)
    }

    /// Takes a step of the optimizer.
    fn step(&mut self, batch: &[usize], clock: &dyn ClockRng) -> Result<(), ModelError> {
        let began = clock.uptime();
        let texts = self.options.method.texts_per_example();
        let targets = |example: &usize| -> usize {
            self.data.training[example * texts..][..texts].iter().map(|text| text.targets.len()).sum()
        };
        let weight = match self.options.method {
            TrainingMethod::Supervised => (batch.iter().map(targets).sum::<usize>().max(1) as f32).recip(),
            TrainingMethod::Preference { .. } => (batch.len() as f32).recip(),
        };
        let mut sums = Sums::default();
        for examples in micro_batches(batch, |example| self.lengths[example], self.progress.micro_batch) {
            let texts: Vec<TrainingText> =
                examples.iter().flat_map(|example| &self.data.training[example * texts..][..texts]).cloned().collect();
            match self.options.method {
                TrainingMethod::Supervised => sums.add_scores(&self.trainer.supervised(&texts, weight)?),
                TrainingMethod::Preference { beta } => {
                    let references = self.references_of(examples)?;
                    for score in self.trainer.preference(&texts, &references, beta, weight)? {
                        sums.add_pair(score.loss, score.rewards);
                    }
                }
            }
        }
        let learning_rate = self.rate.at(self.progress.step);
        let gradient_norm = self.trainer.step(learning_rate, WEIGHT_DECAY, MAX_GRADIENT_NORM)?;
        if !gradient_norm.is_finite() || !sums.loss.is_finite() {
            return Err(ModelError::Compute(format!(
                "the loss of step {} is not a finite number; a lower learning_rate_multiplier may help",
                self.progress.step + 1
            )));
        }
        let tokens: usize = batch.iter().map(|example| self.lengths[*example]).sum();
        self.progress.step += 1;
        self.progress.tokens += tokens as u64;
        let report = StepReport {
            step: self.progress.step,
            steps: self.plan.steps(),
            measured: sums.measurement(),
            learning_rate,
            gradient_norm,
            tokens: tokens as u64,
            trained_tokens: self.progress.tokens,
            took: clock.uptime().saturating_sub(began),
        };
        self.send(TrainingEvent::Step(report))
    }

    /// The log probabilities of pairs without the adapter. Each pair is computed alone, so that a training that was
    /// interrupted gets the same ones.
    fn references_of(&mut self, examples: &[usize]) -> Result<Vec<f32>, ModelError> {
        let mut references = Vec::with_capacity(2 * examples.len());
        for example in examples {
            let pair = match self.references[*example] {
                Some(pair) => pair,
                None => {
                    let texts = &self.data.training[2 * example..][..2];
                    let found = self.trainer.reference_log_probabilities(texts)?;
                    let pair: [f32; 2] = found
                        .try_into()
                        .map_err(|_| ModelError::Compute("a preference has not exactly two texts".to_owned()))?;
                    self.references[*example] = Some(pair);
                    pair
                }
            };
            references.extend(pair);
        }
        Ok(references)
    }

    /// Computes the loss of the validation examples, one by one.
    fn validate(&self) -> Result<(), ModelError> {
        let mut sums = Sums::default();
        for texts in self.data.validation.chunks(self.options.method.texts_per_example()) {
            let scores = self.trainer.evaluate(texts)?;
            match self.options.method {
                TrainingMethod::Supervised => sums.add_scores(&scores),
                TrainingMethod::Preference { beta } => {
                    let references = self.trainer.reference_log_probabilities(texts)?;
                    let score = preference_score(&scores, &references, beta)?;
                    sums.add_pair(score.loss, score.rewards);
                }
            }
        }
        if self.data.validation.is_empty() {
            return Ok(());
        }
        self.send(TrainingEvent::Validation { step: self.progress.step, measured: sums.measurement() })
    }

    /// Sends the state of the training.
    fn save(&self, with_adapter: bool) -> Result<(), ModelError> {
        let LoraTrainer { parameters, optimizer, .. } = &self.trainer;
        let state = state::encode(&self.progress, parameters, optimizer).map_err(ModelError::Compute)?;
        let adapter = match with_adapter {
            true => Some(AdapterFiles::from(parameters.to_peft(&self.base)?)),
            false => None,
        };
        let Progress { step, tokens, .. } = self.progress;
        self.send(TrainingEvent::Checkpoint(Box::new(TrainingCheckpoint { step, tokens, state, adapter })))
    }

    fn send(&self, event: TrainingEvent) -> Result<(), ModelError> {
        self.events.send(event, &self.pause)
    }
}
