//! Trains an adapter: accumulates the gradients of batches of texts, and takes steps of the optimizer.

use std::sync::Arc;

use candle_core::{Tensor as Array, Var};

use super::adam_w::{AdamW, PART, clip_factor, squared_norm};
use super::lora_parameters::LoraParameters;
use super::{TargetScore, TrainingText};
use crate::backend::candle::CandleLinear;
use crate::backend::{Backend, Candle, Dropout};
use crate::decoder::{Decoder, TrainingPass};
use crate::error::{ModelError, Result};
use crate::nn::{Adapter, DownProjection, LoraDelta};

/// An adapter in training.
#[derive(Debug)]
pub struct LoraTrainer<'a> {
    decoder: &'a Decoder<Candle>,
    /// The handle that computes; its pause function lets other work run.
    backend: Candle,
    pub parameters: LoraParameters,
    pub optimizer: AdamW,
    /// The sum of the gradients since the last step.
    gradient: Vec<f32>,
    variables: Variables,
    /// Keeps the graphs of all layers for the backward pass, which is faster but takes more memory.
    pub keep_graphs: bool,
    dropout: Option<LoraDropout>,
    /// Passes with gradients since the last step.
    passes: u32,
}

/// Dropout of the inputs of down-projections, as in peft. It does not apply to evaluation and references.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LoraDropout {
    rate: f32,
    seed: u64,
}

/// The parameters on the device.
#[derive(Debug)]
struct Variables {
    /// Down- and up-projection of each module.
    modules: Vec<[Var; 2]>,
    adapter: Arc<Adapter<Candle>>,
}

/// The loss of a pair of a chosen and a rejected text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PreferenceScore {
    pub loss: f32,
    /// The log probabilities of chosen and rejected targets, less those without the adapter, times beta.
    pub rewards: [f32; 2],
}

impl PreferenceScore {
    /// By how much the chosen text's reward is greater.
    fn margin(&self) -> f64 {
        f64::from(self.rewards[0]) - f64::from(self.rewards[1])
    }
}

impl<'a> LoraTrainer<'a> {
    /// Starts with these parameters and this state of the optimizer.
    pub fn new(
        decoder: &'a Decoder<Candle>,
        backend: Candle,
        parameters: LoraParameters,
        optimizer: AdamW,
    ) -> Result<Self> {
        let count = parameters.values.len();
        if optimizer.means.len() != count || optimizer.squares.len() != count {
            return Err(ModelError::Compute("the state of the optimizer is of another adapter".to_owned()));
        }
        let variables = Variables::new(&backend, &parameters)?;
        Ok(Self {
            decoder,
            backend,
            parameters,
            optimizer,
            gradient: vec![0.; count],
            variables,
            keep_graphs: true,
            dropout: None,
            passes: 0,
        })
    }

    /// Zeroes elements of the inputs of down-projections with probability `rate`, and scales the others by `1 / (1 −
    /// rate)`. The choice depends on the seed, the number of steps, the number of passes since the last step, the
    /// module and the element. A training that resumes after a step therefore goes on as if it had not stopped.
    ///
    /// # Errors
    /// If the rate is not in [0, 1).
    pub fn set_dropout(&mut self, rate: f32, seed: u64) -> Result<()> {
        if !(0. ..1.).contains(&rate) {
            return Err(ModelError::Parameters(format!("the rate of dropout must be in [0, 1), not {rate}")));
        }
        self.dropout = (rate > 0.).then_some(LoraDropout { rate, seed });
        Ok(())
    }

    /// Scores the targets of texts, text by text.
    pub fn evaluate(&self, texts: &[TrainingText]) -> Result<Vec<Vec<TargetScore>>> {
        let pass = self.forward(&self.backend, &self.variables.adapter, texts)?;
        Ok(by_text(texts, self.decoder.score_targets(&self.backend, &pass, None)?.0))
    }

    /// The sum of the targets' log probabilities without the adapter, text by text.
    pub fn reference_log_probabilities(&self, texts: &[TrainingText]) -> Result<Vec<f32>> {
        let pass = self.forward(&self.backend, &Arc::new(Adapter::new(&self.backend, [])), texts)?;
        let scores = by_text(texts, self.decoder.score_targets(&self.backend, &pass, None)?.0);
        Ok(scores.iter().map(|scores| log_probability(scores)).collect())
    }

    /// Adds the gradient of the negated log probabilities of all targets, times `weight`.
    pub fn supervised(&mut self, texts: &[TrainingText], weight: f32) -> Result<Vec<Vec<TargetScore>>> {
        let backend = &self.training_backend();
        let pass = self.forward(backend, &self.variables.adapter, texts)?;
        let weights = vec![-weight; pass.targets()];
        let (scores, gradient) = self.decoder.score_targets(&self.backend, &pass, Some(&weights))?;
        self.backward(backend, pass, gradient)?;
        Ok(by_text(texts, scores))
    }

    /// Adds the gradient of direct preference optimization (Rafailov et al. 2023, <https://arxiv.org/abs/2305.18290>),
    /// times `weight`: of the sum over pairs of `−log sigmoid(beta · (chosen − rejected))`. Texts alternate between chosen
    /// and rejected; `references` are their [`reference_log_probabilities`](Self::reference_log_probabilities).
    pub fn preference(
        &mut self,
        texts: &[TrainingText],
        references: &[f32],
        beta: f32,
        weight: f32,
    ) -> Result<Vec<PreferenceScore>> {
        if !texts.len().is_multiple_of(2) || references.len() != texts.len() {
            return Err(ModelError::Compute("each chosen text needs a rejected one, and both a reference".to_owned()));
        }
        let backend = &self.training_backend();
        let pass = self.forward(backend, &self.variables.adapter, texts)?;
        let scores = by_text(texts, self.decoder.score_targets(&self.backend, &pass, None)?.0);
        let (mut results, mut weights) = (Vec::with_capacity(texts.len() / 2), Vec::with_capacity(pass.targets()));
        let pairs = texts.chunks_exact(2).zip(scores.chunks_exact(2)).zip(references.chunks_exact(2));
        for ((texts, scores), references) in pairs {
            let score = preference_score(scores, references, beta)?;
            let slope = weight * beta * ((1. + score.margin().exp()).recip()) as f32;
            weights.extend(std::iter::repeat_n(-slope, texts[0].targets.len()));
            weights.extend(std::iter::repeat_n(slope, texts[1].targets.len()));
            results.push(score);
        }
        let (_, gradient) = self.decoder.score_targets(&self.backend, &pass, Some(&weights))?;
        self.backward(backend, pass, gradient)?;
        Ok(results)
    }

    /// Changes the parameters by the gradients since the last step, clipped to `max_norm`. Returns their norm before.
    ///
    /// # Errors
    /// If it is interrupted. The step has then been taken, or nothing has changed; see [`AdamW::steps`].
    pub fn step(&mut self, learning_rate: f32, weight_decay: f32, max_norm: f32) -> Result<f32> {
        let mut squares = 0.;
        for part in self.gradient.chunks(PART) {
            squares += squared_norm(part);
            self.backend.pause()?;
        }
        let norm = squares.sqrt() as f32;
        let factor = clip_factor(norm, max_norm);
        let Self { backend, parameters, optimizer, gradient, .. } = self;
        let mut interruption = Ok(());
        let mut pause = || {
            if interruption.is_ok() {
                interruption = backend.pause();
            }
        };
        for part in gradient.chunks_mut(PART) {
            part.iter_mut().for_each(|value| *value *= factor);
            pause();
        }
        optimizer.step(&mut parameters.values, gradient, [learning_rate, weight_decay], &mut pause);
        gradient.fill(0.);
        self.passes = 0;
        interruption?;
        self.variables = Variables::new(&self.backend, &self.parameters)?;
        Ok(norm)
    }

    /// The sum of the gradients since the last step, in the order of [`LoraParameters::values`].
    pub fn gradient(&self) -> &[f32] {
        &self.gradient
    }

    /// The handle of a pass with gradients.
    fn training_backend(&self) -> Candle {
        let position = [self.optimizer.steps, self.passes];
        self.backend.with_dropout(self.dropout.map(|LoraDropout { rate, seed }| {
            let key = position.into_iter().fold(seed, |key, part| Dropout::mixed_key(key, part.into()));
            Dropout { rate, key }
        }))
    }

    fn forward(
        &self,
        backend: &Candle,
        adapter: &Arc<Adapter<Candle>>,
        texts: &[TrainingText],
    ) -> Result<TrainingPass> {
        self.decoder.training_forward(backend, adapter, texts, self.keep_graphs)
    }

    fn backward(&mut self, backend: &Candle, pass: TrainingPass, gradient: Option<Array>) -> Result<()> {
        self.passes += 1;
        let Some(gradient) = gradient else { return Ok(()) };
        let Self { decoder, parameters, gradient: sum, variables, .. } = self;
        decoder.training_backward(backend, &variables.adapter, pass, gradient, &mut |gradients| {
            for (module, variables) in parameters.modules.iter().zip(&variables.modules) {
                for (variable, range) in variables.iter().zip([&module.down, &module.up]) {
                    let Some(found) = gradients.get(variable) else { continue };
                    let found: Vec<f32> = found.flatten_all()?.to_vec1()?;
                    sum[range.clone()].iter_mut().zip(found).for_each(|(sum, found)| *sum += found);
                }
            }
            Ok(())
        })
    }
}

impl Variables {
    fn new(backend: &Candle, parameters: &LoraParameters) -> Result<Self> {
        let (LoraParameters { rank, modules, values, .. }, scale) = (parameters, parameters.scale());
        let variable =
            |values: &[f32], rows: usize, columns: usize| Var::from_slice(values, (rows, columns), backend.device());
        let (mut variables, mut deltas) = (Vec::with_capacity(modules.len()), Vec::new());
        for (index, module) in modules.iter().enumerate() {
            let down = variable(&values[module.down.clone()], *rank, module.inputs)?;
            let up = variable(&values[module.up.clone()], module.outputs, *rank)?;
            let shared = Arc::new(DownProjection::Linear(CandleLinear::trained_down(down.as_tensor().clone(), index)?));
            for matrix in &module.matrices {
                let rows = up.narrow(0, matrix.rows.start, matrix.rows.len())?;
                let (down, up) = (Arc::clone(&shared), CandleLinear::trained(rows)?);
                deltas.push((matrix.id, LoraDelta { down, up, scale }));
            }
            variables.push([down, up]);
            backend.pause()?;
        }
        Ok(Self { modules: variables, adapter: Arc::new(Adapter::new(backend, deltas)) })
    }
}

/// The loss of direct preference optimization for the scores of a chosen and a rejected text: `−log sigmoid` of the
/// difference of their rewards.
///
/// # Errors
/// If there are not two texts with two references.
pub fn preference_score(scores: &[Vec<TargetScore>], references: &[f32], beta: f32) -> Result<PreferenceScore> {
    let ([chosen, rejected], [chosen_reference, rejected_reference]) = (scores, references) else {
        return Err(ModelError::Compute("a preference has two texts and two references".to_owned()));
    };
    let rewards = [(chosen, chosen_reference), (rejected, rejected_reference)]
        .map(|(scores, reference)| beta * (log_probability(scores) - reference));
    let score = PreferenceScore { loss: 0., rewards };
    let margin = score.margin();
    // ln(1 + e^−margin), without overflow.
    let loss = (-margin).max(0.) + (-margin.abs()).exp().ln_1p();
    Ok(PreferenceScore { loss: loss as f32, ..score })
}

fn by_text(texts: &[TrainingText], scores: Vec<TargetScore>) -> Vec<Vec<TargetScore>> {
    let mut scores = scores.into_iter();
    texts.iter().map(|text| scores.by_ref().take(text.targets.len()).collect()).collect()
}

fn log_probability(scores: &[TargetScore]) -> f32 {
    scores.iter().map(|score| f64::from(score.log_probability)).sum::<f64>() as f32
}
