//! `options`: the parameters of generation. Those that cannot be honoured are named in a header.
//!
//! Ollama truncates every long chat silently. Here a client has to ask for it, with `num_ctx` or `truncate`. Memory for
//! the context is taken as needed, so `num_ctx` allocates nothing.

use serde_json::{Map, Value};

use crate::calls::text::sampling_request::SamplingRequest;
use crate::display::shorten;
use crate::engine::{SAMPLING_PARAMETERS, SamplingRule, sampling_parameters};
use crate::error::{Error, Result};
use crate::http::routes::sampling_fields::{CheckedSampling, SamplingFields, Stop};
use crate::service::validation::json_fields::invalid_field;

macro_rules! options_schema {
    ({} $(
        $(#[$doc:meta])* $name:ident $([$other:ident])? as $llama:ident: $type:ty, $sent:ty, $default:expr, $rule:expr,
        $servers:expr;
    )+) => {
        /// The known options, for `/openapi.json`.
        #[derive(utoipa::ToSchema)]
        #[schema(as = OllamaOptions)]
        #[expect(dead_code, reason = "a shape for the document; options are checked one by one")]
        pub struct OptionsSchema {
            $($(#[$doc])* $llama: Option<$sent>,)+
            /// A random one if absent or -1.
            seed: Option<i64>,
            /// Up to 16; empty ones are ignored.
            stop: Option<Vec<String>>,
            /// Max tokens to generate; up to the end of the context if it is not positive.
            num_predict: Option<i64>,
            /// Max tokens of a chat's prompt: the oldest turns are left out. Named in a header if it is larger than the model's context.
            num_ctx: Option<i64>,
        }
    };
}
sampling_parameters!({ options_schema } {});

/// Checked options.
#[derive(Debug)]
pub struct Options {
    pub sampling: SamplingRequest,
    /// `None`: a random one.
    pub seed: Option<u64>,
    pub stop: Option<Vec<String>>,
    /// With the name of its field. `None`: what the context leaves.
    pub max_tokens: Option<(u32, &'static str)>,
    /// The context that the client wants: tokens that a prompt may have.
    pub context: Option<u32>,
}

/// The option with the number of tokens to generate.
const NUM_PREDICT: &str = "options.num_predict";
/// The option with the size of the context.
pub const NUM_CTX: &str = "options.num_ctx";

/// Checks the options. The names of those without effect are added to `ignored`.
pub fn check(options: Option<&Value>, ignored: &mut Vec<String>) -> Result<Options> {
    let (mut fields, mut max_tokens, mut context) = (SamplingFields::default(), None, None);
    for (name, value) in given(options)? {
        let option = Given { name, value };
        if let Some(row) = SAMPLING_PARAMETERS.iter().find(|row| row.llama_name == name) {
            let value = match row.rule {
                // A negative number is off, as zero.
                SamplingRule::Count => option.count()?.into(),
                SamplingRule::Within { .. } => option.number()?,
            };
            row.set(&mut fields.parameters, value).or_else(|what| option.invalid(&what))?;
            continue;
        }
        match name.as_str() {
            "seed" => fields.seed = Some(option.integer()?).filter(|seed| *seed != -1),
            "stop" => fields.stop = Some(option.stop()?),
            // Up to the end of the context if it is not positive.
            "num_predict" => max_tokens = Some(option.count()?).filter(|count| *count > 0),
            "num_ctx" => context = option.context()?,
            _ => ignored.push(format!("options.{}", shorten(name))),
        }
    }
    let max_tokens = max_tokens.map(|count| (count, NUM_PREDICT));
    let CheckedSampling { sampling, seed, stop, .. } = fields.check(max_tokens, false).map_err(in_options)?;
    Ok(Options { sampling, seed, stop, max_tokens, context })
}

/// The error about an option, under the name that the client sent.
fn in_options(error: Error) -> Error {
    let Some(field) = error.param_name().map(str::to_owned) else { return error };
    if field.starts_with("options.") {
        return error;
    }
    let name = format!("options.{field}");
    let text = error.message().replace(&format!("'{field}'"), &format!("'{name}'"));
    Error::invalid(name, text)
}

/// The only option of embeddings: the tokens that a text may have. The names of the others are added to `ignored`.
pub fn of_embeddings(options: Option<&Value>, ignored: &mut Vec<String>) -> Result<Option<u32>> {
    let mut context = None;
    for (name, value) in given(options)? {
        match name.as_str() {
            "num_ctx" => context = Given { name, value }.context()?,
            _ => ignored.push(format!("options.{}", shorten(name))),
        }
    }
    Ok(context)
}

/// The options that are set.
fn given(options: Option<&Value>) -> Result<impl Iterator<Item = (&String, &Value)>> {
    let fields: Option<&Map<String, Value>> = match options {
        None | Some(Value::Null) => None,
        Some(Value::Object(fields)) => Some(fields),
        Some(_) => return invalid_field("options", "must be an object"),
    };
    Ok(fields.into_iter().flatten().filter(|(_, value)| !value.is_null()))
}

/// An option that is set.
struct Given<'a> {
    name: &'a str,
    value: &'a Value,
}

impl Given<'_> {
    fn invalid<T>(&self, what: &str) -> Result<T> {
        invalid_field(&format!("options.{}", self.name), what)
    }

    fn number(&self) -> Result<f64> {
        match self.value.as_f64() {
            Some(number) => Ok(number),
            None => self.invalid("must be a number"),
        }
    }

    /// Some clients write whole numbers as `8192.0`.
    fn integer(&self) -> Result<i64> {
        let from_float = |number: f64| {
            let text = format!("{number:.0}");
            text.parse().ok().filter(|_| number.fract() == 0.)
        };
        match self.value.as_i64().or_else(|| self.value.as_f64().and_then(from_float)) {
            Some(number) => Ok(number),
            None => self.invalid("must be a whole number"),
        }
    }

    /// A whole number; 0 if it is negative.
    fn count(&self) -> Result<u32> {
        self.integer().map(|number| u32::try_from(number.max(0)).unwrap_or(u32::MAX))
    }

    /// The size of a context; `None` if it is not positive.
    fn context(&self) -> Result<Option<u32>> {
        self.count().map(|count| Some(count).filter(|count| *count > 0))
    }

    fn stop(&self) -> Result<Stop> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let texts = match self.value {
            Value::String(one) => Some(vec![one.clone()]),
            Value::Array(many) => many.iter().map(text).collect(),
            _ => None,
        };
        texts.map_or_else(|| self.invalid("must be an array of strings"), |texts| Ok(Stop::Many(texts)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::engine::SamplingParameters;

    #[test]
    fn options_are_honoured_or_named() {
        let options = json!({
            "temperature": 0, "top_k": 20.0, "top_p": 0.5, "min_p": null, "seed": -1, "num_predict": 8, "stop": "x",
            "repeat_penalty": 1.1, "num_ctx": 4096.0, "mirostat": 1, "num_gpu": 99, "typical_p": 0.7,
        });
        let mut ignored = Vec::new();
        let checked = check(Some(&options), &mut ignored).unwrap();
        assert_eq!(ignored, ["options.mirostat", "options.num_gpu"]);
        assert_eq!((checked.max_tokens, checked.context, checked.seed), (Some((8, NUM_PREDICT)), Some(4096), None));
        assert_eq!(checked.stop.unwrap(), ["x"]);
        let SamplingParameters { temperature, top_k, top_p, min_p, typical_p, repetition_penalty, .. } =
            checked.sampling.parameters;
        assert_eq!((temperature, top_k, top_p, min_p), (Some(0.), Some(20), Some(0.5), None));
        assert_eq!((typical_p, repetition_penalty), (Some(0.7), Some(1.1)));
        for endless in [json!({ "num_predict": -1 }), json!({ "num_predict": -2.0 }), json!({}), Value::Null] {
            assert_eq!(check(Some(&endless), &mut ignored).unwrap().max_tokens, None);
        }
        assert_eq!(check(Some(&json!({ "seed": 7 })), &mut ignored).unwrap().seed, Some(7));
    }

    #[test]
    fn errors_name_the_option() {
        for (options, param) in [
            (json!([]), "options"),
            (json!({ "temperature": "hot" }), "options.temperature"),
            (json!({ "top_k": 1.5 }), "options.top_k"),
            (json!({ "num_predict": true }), "options.num_predict"),
            (json!({ "stop": [1] }), "options.stop"),
            (json!({ "temperature": 3 }), "options.temperature"),
            (json!({ "repeat_penalty": 11 }), "options.repeat_penalty"),
        ] {
            assert_eq!(check(Some(&options), &mut Vec::new()).unwrap_err().param_name(), Some(param), "{options}");
        }
    }
}
