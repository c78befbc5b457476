//! The numbers that shape sampling, one row each in [`sampling_parameters!`]. The fields of requests with their checks and
//! their text in `/openapi.json`, the settings of models, and the bodies for other servers all follow from the rows. A new
//! parameter is a row here, and a field of [`Sampling`] with its place in the sampler.

use std::fmt;

use outpost_upstream::Api;

use super::Sampling;

/// Calls a macro with its arguments, in braces, and the rows:
///
/// `name [other name in requests] as name in the APIs of llama.cpp and Ollama: type, type in requests, default, rule, servers`
///
/// The defaults are llama.cpp's. Small models produce nonsense if every token of the vocabulary can be sampled.
#[macro_export]
macro_rules! sampling_parameters {
    ({ $($callback:tt)+ } $arguments:tt) => {
        $($callback)+! {
            $arguments
            /// 0–2, 0.8 if absent; 0 always picks the most likely token.
            temperature as temperature: f32, f32, 0.8, SamplingRule::within(0.0, 2.0), Servers::All;
            /// 0–1, 0.95 if absent; 0 always picks the most likely token.
            top_p as top_p: f32, f32, 0.95, SamplingRule::within(0.0, 1.0), Servers::All;
            /// Sample from this many most likely tokens, 40 if absent; 0 and -1 are off.
            top_k as top_k: u32, i64, 40, SamplingRule::Count, Servers::only(&[Api::Vllm, Api::LlamaCpp, Api::Outpost], 0.0);
            /// Sample from tokens with at least this probability, relative to the most likely one: 0–1, 0.05 if absent.
            min_p as min_p: f32, f32, 0.05, SamplingRule::within(0.0, 1.0),
                Servers::only(&[Api::Vllm, Api::LlamaCpp, Api::Outpost], 0.0);
            /// Locally typical sampling: 0–1; 1 is off.
            typical_p as typical_p: f32, f32, 1.0, SamplingRule::within(0.0, 1.0), Servers::only(&[Api::LlamaCpp, Api::Outpost], 1.0);
            /// −2 to 2.
            frequency_penalty as frequency_penalty: f32, f32, 0.0, SamplingRule::within(-2.0, 2.0), Servers::All;
            /// −2 to 2.
            presence_penalty as presence_penalty: f32, f32, 0.0, SamplingRule::within(-2.0, 2.0), Servers::All;
            /// Above 0 up to 10; 1 is off.
            repetition_penalty [repeat_penalty] as repeat_penalty: f32, f32, 1.0, SamplingRule::above_zero(10.0),
                Servers::only(&[Api::Vllm, Api::LlamaCpp, Api::Outpost], 1.0);
        }
    };
}

macro_rules! define {
    ({} $(
        $(#[$doc:meta])* $name:ident $([$other:ident])? as $llama:ident: $type:ty, $sent:ty, $default:expr, $rule:expr,
        $servers:expr;
    )+) => {
        /// Sampling parameters; `None` is not set.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct SamplingParameters {
            $($(#[$doc])* pub $name: Option<$type>,)+
        }

        impl SamplingParameters {
            /// Fills the unset fields from `other`.
            #[must_use]
            pub fn or(self, other: &Self) -> Self {
                Self { $($name: self.$name.or(other.$name),)+ }
            }

            /// Sets the parameters of a model of this server; those that are not set get their defaults.
            pub fn apply(&self, sampling: &mut Sampling) {
                $(sampling.$name = self.$name.unwrap_or($default);)+
            }
        }

        /// The rows.
        pub const SAMPLING_PARAMETERS: &[SamplingParameter] = &[$(SamplingParameter {
            name: stringify!($name),
            llama_name: stringify!($llama),
            rule: $rule,
            servers: $servers,
            get: |parameters| parameters.$name.map(SamplingValue::from),
            set: |parameters, value| parameters.$name = Some(value.into()),
        },)+];
    };
}

sampling_parameters!({ define } {});

/// A row.
#[derive(Debug)]
pub struct SamplingParameter {
    /// The field of requests, and the key of the settings of models.
    pub name: &'static str,
    /// The name in the APIs of llama.cpp and Ollama.
    pub llama_name: &'static str,
    pub rule: SamplingRule,
    servers: Servers,
    get: fn(&SamplingParameters) -> Option<SamplingValue>,
    set: fn(&mut SamplingParameters, SamplingValue),
}

impl SamplingParameter {
    /// The parameter with this field of requests.
    pub fn named(name: &str) -> Option<&'static Self> {
        SAMPLING_PARAMETERS.iter().find(|row| row.name == name)
    }

    /// The value of the parameter, if it is set.
    pub fn of(&self, parameters: &SamplingParameters) -> Option<SamplingValue> {
        (self.get)(parameters)
    }

    /// Sets the parameter.
    ///
    /// # Errors
    /// What is wrong with the value: a predicate without a full stop.
    pub fn set(&self, parameters: &mut SamplingParameters, value: f64) -> Result<(), String> {
        (self.set)(parameters, self.rule.check(value)?);
        Ok(())
    }

    /// The field of a request to a server with this API. `None`: it does not have the parameter.
    pub fn field_at(&self, api: Api) -> Option<&'static str> {
        let is_known = match self.servers {
            Servers::All => true,
            Servers::Only { apis, .. } => apis.contains(&api),
        };
        is_known.then_some(if api == Api::LlamaCpp { self.llama_name } else { self.name })
    }

    /// True if a server without the parameter does what this value asks for.
    pub fn is_off(&self, value: SamplingValue) -> bool {
        matches!(self.servers, Servers::Only { off, .. } if f32::from(value) == off)
    }
}

/// The values that a parameter accepts, in requests and as the default of a model.
#[derive(Clone, Copy, Debug)]
pub enum SamplingRule {
    Within {
        min: f32,
        max: f32,
        excludes_min: bool,
    },
    /// A whole number.
    Count,
}

impl SamplingRule {
    const fn within(min: f32, max: f32) -> Self {
        Self::Within { min, max, excludes_min: false }
    }

    /// Above 0 up to `max`.
    const fn above_zero(max: f32) -> Self {
        Self::Within { min: 0.0, max, excludes_min: true }
    }

    /// The value, or what is wrong with it: a predicate without a full stop.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the nearest number of the sampler's type"
    )]
    fn check(self, value: f64) -> Result<SamplingValue, String> {
        match self {
            Self::Within { min, max, excludes_min } => {
                let value = value as f32;
                match excludes_min {
                    true if value > min && value <= max => Ok(SamplingValue::Real(value)),
                    false if value >= min && value <= max => Ok(SamplingValue::Real(value)),
                    true => Err(format!("is {value}; it must be above {min} and at most {max}")),
                    false => Err(format!("is {value}; it must be from {min} to {max}")),
                }
            }
            Self::Count if value >= 0.0 && value <= u32::MAX.into() => Ok(SamplingValue::Count(value as u32)),
            Self::Count => Err(format!("is {value}; it must be from 0 to {}", u32::MAX)),
        }
    }
}

/// The servers that have a parameter.
#[derive(Clone, Copy, Debug)]
enum Servers {
    All,
    Only {
        apis: &'static [Api],
        /// The value with which it has no effect.
        off: f32,
    },
}

impl Servers {
    const fn only(apis: &'static [Api], off: f32) -> Self {
        Self::Only { apis, off }
    }
}

/// The value of a parameter. Its text has the digits that a person would write: 0.8, not 0.800000011920929.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SamplingValue {
    Real(f32),
    Count(u32),
}

impl fmt::Display for SamplingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Real(number) => number.fmt(f),
            Self::Count(number) => number.fmt(f),
        }
    }
}

impl From<f32> for SamplingValue {
    fn from(number: f32) -> Self {
        Self::Real(number)
    }
}

impl From<u32> for SamplingValue {
    fn from(number: u32) -> Self {
        Self::Count(number)
    }
}

impl From<SamplingValue> for f32 {
    #[expect(clippy::cast_precision_loss, reason = "only compared with small numbers")]
    fn from(number: SamplingValue) -> Self {
        match number {
            SamplingValue::Real(number) => number,
            SamplingValue::Count(number) => number as f32,
        }
    }
}

impl From<SamplingValue> for u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count is never stored as a real number"
    )]
    fn from(number: SamplingValue) -> Self {
        match number {
            SamplingValue::Real(number) => number as u32,
            SamplingValue::Count(number) => number,
        }
    }
}
