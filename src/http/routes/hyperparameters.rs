//! Hyperparameters of fine-tuning on the wire: values or `"auto"`, in the two fields that OpenAI
//! defines for them.

use serde::{Deserialize, Deserializer, Serialize};

use crate::display::shorten;
use crate::error::{Error, Result};
use crate::service::fine_tuning::{self, RequestedHyperparameters};

const OLD_PATH: &str = "hyperparameters";

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
    /// Of the method `dpo`: how strongly the model is kept near its base. `"auto"` or a number above 0, up to 2.
    #[schema(value_type = Option<Shown>)]
    beta: Option<OrAuto<f64>>,
    /// Rank of the adapter's matrices: `"auto"` or 1–256.
    #[schema(value_type = Option<Shown>)]
    lora_rank: Option<OrAuto<i64>>,
    /// The adapter's outputs are multiplied by this over the rank: `"auto"` or a number above 0, up to 1024.
    #[schema(value_type = Option<Shown>)]
    lora_alpha: Option<OrAuto<f64>>,
    /// Share of the adapter's inputs that are zeroed at random in training: `"auto"` or from 0 to below 1.
    #[schema(value_type = Option<Shown>)]
    lora_dropout: Option<OrAuto<f64>>,
    /// The layers that get an adapter: `"auto"` for all linear layers, or names such as `["q_proj", "v_proj"]`.
    #[schema(value_type = Option<Shown>)]
    target_modules: Option<OrAuto<Vec<String>>>,
    /// Max tokens of an example; longer ones are an error. `"auto"`: the context window of the model, at most 4096.
    #[schema(value_type = Option<Shown>)]
    max_length: Option<OrAuto<i64>>,
    /// Whether a step computes as many examples as fit into `batch_size` times `max_length` tokens: `"auto"` (no), true or
    /// false. Examples never see each other.
    #[schema(value_type = Option<Shown>)]
    packing: Option<OrAuto<bool>>,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Method {
    /// `supervised` or `dpo`.
    r#type: String,
    supervised: Option<OfMethod>,
    dpo: Option<OfMethod>,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
struct OfMethod {
    hyperparameters: Option<Hyperparameters>,
}

/// A value, or the word `auto`.
enum OrAuto<T> {
    Auto,
    Value(T),
}

impl<T> OrAuto<T> {
    fn value(self) -> Option<T> {
        match self {
            OrAuto::Auto => None,
            OrAuto::Value(value) => Some(value),
        }
    }
}

/// The values of a hyperparameter.
trait Kind {
    /// What it must be.
    const RIGHT: &'static str;
}

impl Kind for i64 {
    const RIGHT: &'static str = "\"auto\" or a whole number";
}

impl Kind for f64 {
    const RIGHT: &'static str = "\"auto\" or a number";
}

impl Kind for bool {
    const RIGHT: &'static str = "\"auto\", true or false";
}

impl Kind for Vec<String> {
    const RIGHT: &'static str = "\"auto\" or an array of strings";
}

impl<'de, T: Deserialize<'de> + Kind> Deserialize<'de> for OrAuto<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Given<T> {
            Value(T),
            Word(String),
        }

        match Given::deserialize(deserializer) {
            Ok(Given::Value(value)) => Ok(OrAuto::Value(value)),
            Ok(Given::Word(word)) if word == "auto" => Ok(OrAuto::Auto),
            _ => Err(serde::de::Error::custom(format!("must be {}", T::RIGHT))),
        }
    }
}

/// The requested method and its hyperparameters, from whichever of the two fields has them.
pub(super) fn requested(
    old: Option<Hyperparameters>,
    method: Option<Method>,
) -> Result<(fine_tuning::Method, RequestedHyperparameters)> {
    let (method, new) = match method {
        None => (fine_tuning::Method::Supervised, None),
        Some(given) => of_method(given)?,
    };
    let new_path = match method {
        fine_tuning::Method::Supervised => "method.supervised.hyperparameters",
        fine_tuning::Method::Dpo => "method.dpo.hyperparameters",
    };
    let (path, given) = match (old, new) {
        (Some(_), Some(_)) => {
            let text =
                format!("Hyperparameters are given as '{OLD_PATH}' and as '{new_path}'. Give them in one place.");
            return Err(Error::invalid(OLD_PATH, text));
        }
        (Some(old), None) => (OLD_PATH, old),
        (None, Some(new)) => (new_path, new),
        (None, None) => return Ok((method, RequestedHyperparameters::default())),
    };
    let requested = RequestedHyperparameters {
        path,
        n_epochs: given.n_epochs.and_then(OrAuto::value),
        batch_size: given.batch_size.and_then(OrAuto::value),
        learning_rate_multiplier: given.learning_rate_multiplier.and_then(OrAuto::value),
        beta: given.beta.and_then(OrAuto::value),
        lora_rank: given.lora_rank.and_then(OrAuto::value),
        lora_alpha: given.lora_alpha.and_then(OrAuto::value),
        lora_dropout: given.lora_dropout.and_then(OrAuto::value),
        target_modules: given.target_modules.and_then(OrAuto::value),
        max_length: given.max_length.and_then(OrAuto::value),
        packing: given.packing.and_then(OrAuto::value),
    };
    Ok((method, requested))
}

/// The method of that name, and the hyperparameters in its object.
fn of_method(given: Method) -> Result<(fine_tuning::Method, Option<Hyperparameters>)> {
    let Method { r#type, supervised, dpo } = given;
    let Some(method) = fine_tuning::Method::ALL.into_iter().find(|method| method.as_str() == r#type) else {
        let text = format!("'method.type' is '{}'; methods are: supervised, dpo.", shorten(&r#type));
        return Err(Error::invalid("method.type", text));
    };
    let (own, other) = match method {
        fine_tuning::Method::Supervised => (supervised, dpo.map(|_| "method.dpo")),
        fine_tuning::Method::Dpo => (dpo, supervised.map(|_| "method.supervised")),
    };
    match other {
        Some(field) => Err(Error::invalid(field, format!("'{field}' is given, but 'method.type' is '{}'.", r#type))),
        None => Ok((method, own.and_then(|own| own.hyperparameters))),
    }
}

/// Each is a value or `"auto"`.
#[derive(Clone, Serialize, utoipa::ToSchema)]
pub struct ParametersBody {
    n_epochs: Shown,
    batch_size: Shown,
    learning_rate_multiplier: Shown,
    /// Of the method `dpo`.
    #[serde(skip_serializing_if = "Option::is_none")]
    beta: Option<Shown>,
    lora_rank: Shown,
    lora_alpha: Shown,
    lora_dropout: Shown,
    target_modules: Shown,
    max_length: Shown,
    packing: Shown,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct MethodBody {
    /// `supervised` or `dpo`.
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    supervised: Option<OfMethodBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dpo: Option<OfMethodBody>,
}

#[derive(Serialize, utoipa::ToSchema)]
struct OfMethodBody {
    hyperparameters: ParametersBody,
}

/// A value, or `"auto"`.
#[derive(Clone, Serialize, utoipa::ToSchema)]
#[serde(untagged)]
enum Shown {
    Count(u32),
    Factor(f64),
    Flag(bool),
    Names(Vec<String>),
    Auto(&'static str),
}

impl Shown {
    fn new<T>(value: Option<T>, shown: impl FnOnce(T) -> Self) -> Self {
        value.map_or(Shown::Auto("auto"), shown)
    }
}

/// The hyperparameters of a job, and its method with the same ones.
pub(super) fn bodies(method: fine_tuning::Method, given: fine_tuning::Hyperparameters) -> (ParametersBody, MethodBody) {
    let is_dpo = method == fine_tuning::Method::Dpo;
    let hyperparameters = ParametersBody {
        n_epochs: Shown::new(given.n_epochs, Shown::Count),
        batch_size: Shown::new(given.batch_size, Shown::Count),
        learning_rate_multiplier: Shown::new(given.learning_rate_multiplier, Shown::Factor),
        beta: is_dpo.then(|| Shown::new(given.beta, Shown::Factor)),
        lora_rank: Shown::new(given.lora_rank, Shown::Count),
        lora_alpha: Shown::new(given.lora_alpha, Shown::Factor),
        lora_dropout: Shown::new(given.lora_dropout, Shown::Factor),
        target_modules: Shown::new(given.target_modules, Shown::Names),
        max_length: Shown::new(given.max_length, Shown::Count),
        packing: Shown::new(given.packing, Shown::Flag),
    };
    let own = Some(OfMethodBody { hyperparameters: hyperparameters.clone() });
    let (supervised, dpo) = if is_dpo { (None, own) } else { (own, None) };
    (hyperparameters, MethodBody { r#type: method.as_str(), supervised, dpo })
}
