//! Reads `scheduler_config.json`, with the keys and defaults of diffusers' schedulers.

use serde_json::{Map, Value};

use super::alpha_schedule::{AlphaSchedule, AlphaSolver};
use super::config_fields::{ConfigFields, Result};
use super::flow_schedule::FlowSchedule;
use super::prediction::{Clipping, Prediction};
use super::sigma_schedule::{SigmaSchedule, SigmaSolver};
use super::sigmas::{SIGMA_SPACINGS, SigmaSpacing};
use crate::models::diffusion::SchedulerName;
use crate::models::error::ModelError;

/// diffusers' classes and their names in requests.
pub(super) const CLASSES: [(&str, SchedulerName); 9] = [
    ("DDIMScheduler", SchedulerName::Ddim),
    ("DDPMScheduler", SchedulerName::Ddpm),
    ("PNDMScheduler", SchedulerName::Pndm),
    ("EulerDiscreteScheduler", SchedulerName::Euler),
    ("EulerAncestralDiscreteScheduler", SchedulerName::EulerAncestral),
    ("DPMSolverMultistepScheduler", SchedulerName::DpmPp2M),
    ("UniPCMultistepScheduler", SchedulerName::UniPc),
    ("LCMScheduler", SchedulerName::Lcm),
    ("FlowMatchEulerDiscreteScheduler", SchedulerName::FlowEuler),
];

/// The configuration of a sampler.
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    /// The fields of the config, kept for [`Self::with_scheduler`].
    fields: Map<String, Value>,
    pub(super) prediction: Prediction,
    pub(super) clipping: Clipping,
    pub(super) kind: ScheduleKind,
}

#[derive(Clone, Debug)]
pub(super) enum ScheduleKind {
    Alphas(AlphaSchedule),
    Sigmas(SigmaSchedule),
    Flow(FlowSchedule),
}

impl SchedulerConfig {
    /// Reads a config that has a `_class_name`.
    ///
    /// # Errors
    /// Names an unsupported class or field, or a value out of range.
    pub fn read(config: &Value) -> std::result::Result<Self, ModelError> {
        let read = || {
            let config = config.as_object().ok_or("not an object")?;
            let class = config.get("_class_name").and_then(Value::as_str).ok_or("`_class_name` is missing")?;
            let Some((_, name)) = CLASSES.iter().find(|(one, _)| *one == class) else {
                let known: Vec<&str> = CLASSES.iter().map(|(one, _)| *one).collect();
                return Err(format!("`{class}` is not supported; supported: {}", known.join(", ")));
            };
            Self::with_fields(*name, chosen_fields(config))
        };
        read().map_err(|error| ModelError::checkpoint(format!("scheduler_config.json: {error}")))
    }

    /// The same model with another sampler. Fields of the config are kept; the rest takes the other class's defaults.
    ///
    /// # Errors
    /// Flow-matching and other models cannot share samplers, and not every sampler supports every field.
    pub fn with_scheduler(&self, name: SchedulerName) -> Result<Self> {
        if name == self.name() {
            return Ok(self.clone());
        }
        match (self.is_flow(), name == SchedulerName::FlowEuler) {
            (true, false) => {
                return Err(format!(
                    "the scheduler '{name}' cannot run a flow-matching model; use '{}'",
                    SchedulerName::FlowEuler
                ));
            }
            (false, true) => return Err(format!("the scheduler '{name}' runs flow-matching models only")),
            _ => {}
        }
        let mut named = self.fields.clone();
        if matches!(name, SchedulerName::DpmPp2M | SchedulerName::DpmPp2MKarras) {
            for (other, _) in SIGMA_SPACINGS.iter().chain(&[("use_beta_sigmas", SigmaSpacing::FromTimesteps)]) {
                named.remove(*other);
            }
            named.insert("use_karras_sigmas".into(), (name == SchedulerName::DpmPp2MKarras).into());
        }
        Self::with_fields(name, named)
            .map_err(|error| format!("the scheduler '{name}' does not fit this model: {error}"))
    }

    /// The sampler's name in requests.
    pub fn name(&self) -> SchedulerName {
        match &self.kind {
            ScheduleKind::Alphas(schedule) => match schedule.solver {
                AlphaSolver::Ddim(_) => SchedulerName::Ddim,
                AlphaSolver::Ddpm(_) => SchedulerName::Ddpm,
                AlphaSolver::Pndm(_) => SchedulerName::Pndm,
                AlphaSolver::Lcm(_) => SchedulerName::Lcm,
            },
            ScheduleKind::Sigmas(schedule) => match schedule.solver {
                SigmaSolver::Euler { .. } => SchedulerName::Euler,
                SigmaSolver::EulerAncestral => SchedulerName::EulerAncestral,
                SigmaSolver::UniPc(_) => SchedulerName::UniPc,
                SigmaSolver::Dpm { .. } if schedule.sigmas.spacing == SigmaSpacing::Karras => {
                    SchedulerName::DpmPp2MKarras
                }
                SigmaSolver::Dpm { .. } => SchedulerName::DpmPp2M,
            },
            ScheduleKind::Flow(_) => SchedulerName::FlowEuler,
        }
    }

    /// Whether the model was trained with flow matching.
    pub fn is_flow(&self) -> bool {
        matches!(self.kind, ScheduleKind::Flow(_))
    }

    fn with_fields(name: SchedulerName, named: Map<String, Value>) -> Result<Self> {
        let fields = ConfigFields(&named);
        let train_steps = fields.count("num_train_timesteps", 1000, 2..=100_000)?;
        let kind = match name {
            SchedulerName::Ddim | SchedulerName::Ddpm | SchedulerName::Pndm | SchedulerName::Lcm => {
                ScheduleKind::Alphas(AlphaSchedule::read(name, fields, train_steps)?)
            }
            SchedulerName::FlowEuler => ScheduleKind::Flow(FlowSchedule::read(fields, train_steps)?),
            _ => ScheduleKind::Sigmas(SigmaSchedule::read(name, fields, train_steps)?),
        };
        let prediction = match name {
            SchedulerName::FlowEuler => Prediction::Flow,
            SchedulerName::Pndm | SchedulerName::EulerAncestral => Prediction::read(fields, false)?,
            _ => Prediction::read(fields, true)?,
        };
        let clipping = match name {
            SchedulerName::Ddim | SchedulerName::Ddpm => Clipping::read(fields, Some(true))?,
            SchedulerName::Lcm => Clipping::read(fields, Some(false))?,
            SchedulerName::DpmPp2M | SchedulerName::DpmPp2MKarras | SchedulerName::UniPc => {
                Clipping::read(fields, None)?
            }
            _ => Clipping::None,
        };
        Ok(Self { prediction, clipping, kind, fields: named })
    }
}

/// Drops fields that diffusers wrote from its own defaults.
fn chosen_fields(config: &Map<String, Value>) -> Map<String, Value> {
    const DEFAULTS: &str = "_use_default_values";
    /// No class has as many fields.
    const MAX_FIELDS: usize = 100;
    let defaults = config.get(DEFAULTS).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let defaults = defaults.get(..MAX_FIELDS).unwrap_or(defaults);
    let chosen = |name: &str| !name.starts_with('_') && !defaults.iter().any(|default| default == name);
    config.iter().filter(|(name, _)| chosen(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}
