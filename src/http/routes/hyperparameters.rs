//! Hyperparameters of fine-tuning on the wire: numbers or `"auto"`, in the two fields that OpenAI
//! defines for them.

use serde::{Deserialize, Deserializer, Serialize};

use crate::display::shorten;
use crate::error::{Error, Result};
use crate::service::fine_tuning::{self, RequestedHyperparameters};

const OLD_PATH: &str = "hyperparameters";
const NEW_PATH: &str = "method.supervised.hyperparameters";

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Hyperparameters {
    /// Passes over the examples: `"auto"` or 1–50.
    #[schema(value_type = Option<Shown>)]
    n_epochs: Option<OrAuto<i64>>,
    /// Examples in a step: `"auto"` or 1–256.
    #[schema(value_type = Option<Shown>)]
    batch_size: Option<OrAuto<i64>>,
    /// Factor of the learning rate: `"auto"` or a number above 0.
    #[schema(value_type = Option<Shown>)]
    learning_rate_multiplier: Option<OrAuto<f64>>,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Method {
    /// `supervised`.
    r#type: String,
    supervised: Option<Supervised>,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
struct Supervised {
    hyperparameters: Option<Hyperparameters>,
}

/// A number, or the word `auto`.
enum OrAuto<T> {
    Auto,
    Number(T),
}

impl<T> OrAuto<T> {
    fn number(self) -> Option<T> {
        match self {
            OrAuto::Auto => None,
            OrAuto::Number(number) => Some(number),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OrAuto<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Given<T> {
            Number(T),
            Word(String),
        }

        match Given::deserialize(deserializer) {
            Ok(Given::Number(number)) => Ok(OrAuto::Number(number)),
            Ok(Given::Word(word)) if word == "auto" => Ok(OrAuto::Auto),
            _ => Err(serde::de::Error::custom(format!("must be \"auto\" or {}", kind::<T>()))),
        }
    }
}

fn kind<T>() -> &'static str {
    if std::any::type_name::<T>() == "i64" { "a whole number" } else { "a number" }
}

/// The requested hyperparameters, from whichever of the two fields has them.
pub(super) fn requested(old: Option<Hyperparameters>, method: Option<Method>) -> Result<RequestedHyperparameters> {
    if let Some(method) = method.as_ref().filter(|method| method.r#type != "supervised") {
        let text = format!("'method.type' is '{}'; methods are: supervised.", shorten(&method.r#type));
        return Err(Error::invalid("method.type", text));
    }
    let new = method.and_then(|method| method.supervised?.hyperparameters);
    let (path, given) = match (old, new) {
        (Some(_), Some(_)) => {
            let text =
                format!("Hyperparameters are given as '{OLD_PATH}' and as '{NEW_PATH}'. Give them in one place.");
            return Err(Error::invalid(OLD_PATH, text));
        }
        (Some(old), None) => (OLD_PATH, old),
        (None, Some(new)) => (NEW_PATH, new),
        (None, None) => return Ok(RequestedHyperparameters::default()),
    };
    let Hyperparameters { n_epochs, batch_size, learning_rate_multiplier } = given;
    Ok(RequestedHyperparameters {
        path,
        n_epochs: n_epochs.and_then(OrAuto::number),
        batch_size: batch_size.and_then(OrAuto::number),
        learning_rate_multiplier: learning_rate_multiplier.and_then(OrAuto::number),
    })
}

/// Each is a number or `"auto"`.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ParametersBody {
    n_epochs: Shown,
    batch_size: Shown,
    learning_rate_multiplier: Shown,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct MethodBody {
    r#type: &'static str,
    supervised: SupervisedBody,
}

#[derive(Serialize, utoipa::ToSchema)]
struct SupervisedBody {
    hyperparameters: ParametersBody,
}

/// A number, or `"auto"`.
#[derive(Serialize, utoipa::ToSchema)]
#[serde(untagged)]
enum Shown {
    Count(u32),
    Factor(f64),
    Auto(&'static str),
}

impl From<fine_tuning::Hyperparameters> for ParametersBody {
    fn from(given: fine_tuning::Hyperparameters) -> Self {
        let auto = || Shown::Auto("auto");
        Self {
            n_epochs: given.n_epochs.map_or_else(auto, Shown::Count),
            batch_size: given.batch_size.map_or_else(auto, Shown::Count),
            learning_rate_multiplier: given.learning_rate_multiplier.map_or_else(auto, Shown::Factor),
        }
    }
}

impl From<fine_tuning::Hyperparameters> for MethodBody {
    fn from(given: fine_tuning::Hyperparameters) -> Self {
        Self { r#type: "supervised", supervised: SupervisedBody { hyperparameters: given.into() } }
    }
}
