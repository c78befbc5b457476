//! Reads `scheduler_config.json`, with the keys and defaults of diffusers' schedulers.

use serde_json::{Map, Value};

use super::alpha_schedule::{AlphaSchedule, AlphaSolver};
use super::clipping::Clipping;
use super::config_fields::{ConfigFields, Result};
use super::flow_schedule::FlowSchedule;
use super::prediction::PredictionType;
use super::sigma_schedule::{SigmaSchedule, SigmaSolver};
use super::sigma_spacing::{SIGMA_SPACINGS, SigmaSpacing};
use crate::diffusion::SchedulerName;
use crate::error::ModelError;

/// diffusers' scheduler classes and their names in requests.
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

/// The configuration of a sampler, from `scheduler_config.json`.
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    /// The fields of the config, for [`Self::with_scheduler`].
    fields: Map<String, Value>,
    pub(super) prediction_type: PredictionType,
    pub(super) clipping: Clipping,
    pub(super) schedule: Schedule,
}

#[derive(Clone, Debug)]
pub(super) enum Schedule {
    Alpha(AlphaSchedule),
    Sigma(SigmaSchedule),
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
            let Some((_, name)) = CLASSES.iter().find(|(known, _)| *known == class) else {
                let known: Vec<&str> = CLASSES.iter().map(|(known, _)| *known).collect();
                return Err(format!("`{class}` is not supported; supported: {}", known.join(", ")));
            };
            Self::from_fields(*name, explicit_fields(config))
        };
        read().map_err(|error| ModelError::checkpoint(format!("scheduler_config.json: {error}")))
    }

    /// The configuration of another sampler for the same model. It has the same fields; missing fields take the
    /// defaults of the other class.
    ///
    /// # Errors
    /// A flow-matching sampler is combined with another kind of model or vice versa, or the sampler does not support a
    /// field.
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
        let mut fields = self.fields.clone();
        if matches!(name, SchedulerName::DpmPp2M | SchedulerName::DpmPp2MKarras) {
            for (field, _) in SIGMA_SPACINGS.iter().chain(&[("use_beta_sigmas", SigmaSpacing::FromTimesteps)]) {
                fields.remove(*field);
            }
            fields.insert("use_karras_sigmas".into(), (name == SchedulerName::DpmPp2MKarras).into());
        }
        Self::from_fields(name, fields)
            .map_err(|error| format!("the scheduler '{name}' does not fit this model: {error}"))
    }

    /// The sampler's name in requests.
    pub fn name(&self) -> SchedulerName {
        match &self.schedule {
            Schedule::Alpha(schedule) => match schedule.solver {
                AlphaSolver::Ddim(_) => SchedulerName::Ddim,
                AlphaSolver::Ddpm(_) => SchedulerName::Ddpm,
                AlphaSolver::Pndm(_) => SchedulerName::Pndm,
                AlphaSolver::Lcm(_) => SchedulerName::Lcm,
            },
            Schedule::Sigma(schedule) => match schedule.solver {
                SigmaSolver::Euler { .. } => SchedulerName::Euler,
                SigmaSolver::EulerAncestral => SchedulerName::EulerAncestral,
                SigmaSolver::UniPc(_) => SchedulerName::UniPc,
                SigmaSolver::DpmSolver { .. } if schedule.table.spacing == SigmaSpacing::Karras => {
                    SchedulerName::DpmPp2MKarras
                }
                SigmaSolver::DpmSolver { .. } => SchedulerName::DpmPp2M,
            },
            Schedule::Flow(_) => SchedulerName::FlowEuler,
        }
    }

    /// True for models that were trained with flow matching.
    pub fn is_flow(&self) -> bool {
        matches!(self.schedule, Schedule::Flow(_))
    }

    fn from_fields(name: SchedulerName, fields: Map<String, Value>) -> Result<Self> {
        let config = ConfigFields(&fields);
        let train_steps = config.count("num_train_timesteps", 1000, 2..=100_000)?;
        let schedule = match name {
            SchedulerName::Ddim | SchedulerName::Ddpm | SchedulerName::Pndm | SchedulerName::Lcm => {
                Schedule::Alpha(AlphaSchedule::read(name, config, train_steps)?)
            }
            SchedulerName::FlowEuler => Schedule::Flow(FlowSchedule::read(config, train_steps)?),
            _ => Schedule::Sigma(SigmaSchedule::read(name, config, train_steps)?),
        };
        let prediction_type = match name {
            SchedulerName::FlowEuler => PredictionType::Flow,
            SchedulerName::Pndm | SchedulerName::EulerAncestral => PredictionType::read(config, false)?,
            _ => PredictionType::read(config, true)?,
        };
        let clipping = match name {
            SchedulerName::Ddim | SchedulerName::Ddpm => Clipping::read(config, Some(true))?,
            SchedulerName::Lcm => Clipping::read(config, Some(false))?,
            SchedulerName::DpmPp2M | SchedulerName::DpmPp2MKarras | SchedulerName::UniPc => {
                Clipping::read(config, None)?
            }
            _ => Clipping::None,
        };
        Ok(Self { prediction_type, clipping, schedule, fields })
    }
}

/// Drops the fields that diffusers filled with its defaults and listed in `_use_default_values`.
fn explicit_fields(config: &Map<String, Value>) -> Map<String, Value> {
    const DEFAULTS: &str = "_use_default_values";
    /// Limits the work; no class has this many fields.
    const MAX_FIELDS: usize = 100;
    let defaults = config.get(DEFAULTS).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let defaults = defaults.get(..MAX_FIELDS).unwrap_or(defaults);
    let is_explicit = |name: &str| !name.starts_with('_') && !defaults.iter().any(|default| default == name);
    config.iter().filter(|(name, _)| is_explicit(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}
