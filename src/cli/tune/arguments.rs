//! The arguments of `outpost tune`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::RangedI64ValueParser;

use crate::config::ComputeArgs;
use crate::display::one_of;
use crate::service::fine_tuning::limits::{
    MAX_ALPHA, MAX_BATCH, MAX_BETA, MAX_EPOCHS, MAX_LENGTH, MAX_MODULES, MAX_MULTIPLIER, MAX_RANK, MAX_SEED, MIN_LENGTH,
};
use crate::service::fine_tuning::{Hyperparameters, Method};

const FORMATS: &str = "\
Every line of FILE is an example, a JSON object. All lines have the same one of these formats:

  {\"messages\": [{\"role\": \"user\", \"content\": \"…\"}, {\"role\": \"assistant\", \"content\": \"…\"}]}
  {\"prompt\": \"…\", \"completion\": \"…\"}
  {\"text\": \"…\"}
  {\"input\": {\"messages\": […]}, \"preferred_output\": [{\"role\": \"assistant\", …}], \"non_preferred_output\": […]}

The last one is for the method dpo, the others are for supervised.

Ctrl-C ends the training after the current step and keeps the adapter so far. A second Ctrl-C discards it.";

#[derive(Args)]
#[command(after_long_help = FORMATS)]
pub struct TuneArgs {
    /// Examples to learn from, one JSON object per line
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The chat model to adapt, by its name in the models folder or an alias
    #[arg(long, value_name = "NAME")]
    pub model: String,
    /// Examples whose loss is only measured, in the format of FILE
    #[arg(long, value_name = "FILE")]
    pub validation: Option<PathBuf>,
    /// The end of the new model's name [default: the name of FILE without its extension]
    #[arg(long, value_name = "TEXT")]
    pub suffix: Option<String>,
    /// The folder to write [default: MODEL-SUFFIX in the models folder]
    #[arg(long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
    /// Replace the folder if it has an adapter
    #[arg(long)]
    pub force: bool,
    /// What to learn from an example: supervised imitates texts, dpo prefers one output to another
    #[arg(long, default_value = "supervised", value_name = "supervised|dpo", value_parser = method)]
    pub method: Method,
    /// How often each example is learned [default: by the number of examples]
    #[arg(long, value_name = "N", value_parser = count(1, MAX_EPOCHS))]
    pub epochs: Option<u32>,
    /// Examples per step [default: by the number of examples]
    #[arg(long, value_name = "N", value_parser = count(1, MAX_BATCH))]
    pub batch_size: Option<u32>,
    /// Factor of the method's usual learning rate [default: 1]
    #[arg(long, value_name = "X", value_parser = |text: &str| factor(text, MAX_MULTIPLIER))]
    pub learning_rate_multiplier: Option<f64>,
    /// Rank of the adapter's matrices [default: 16]
    #[arg(long, value_name = "N", value_parser = count(1, MAX_RANK))]
    pub rank: Option<u32>,
    /// The adapter is scaled by this divided by its rank [default: twice the rank]
    #[arg(long, value_name = "X", value_parser = |text: &str| factor(text, MAX_ALPHA))]
    pub alpha: Option<f64>,
    /// The share of the adapter's inputs that are zeroed at random [default: 0]
    #[arg(long, value_name = "X", value_parser = dropout)]
    pub dropout: Option<f64>,
    /// Modules to adapt, such as q_proj,v_proj [default: all linear layers]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', num_args = 1..=MAX_MODULES)]
    pub target_modules: Vec<String>,
    /// Max tokens of an example [default: 4096, at most the model's context window]
    #[arg(long, value_name = "N", value_parser = count(MIN_LENGTH, MAX_LENGTH))]
    pub max_length: Option<u32>,
    /// Compute several short examples as one of the max length; faster, with fewer steps
    #[arg(long)]
    pub packing: bool,
    /// How strongly dpo keeps to the base model [default: 0.1]
    #[arg(long, value_name = "X", value_parser = |text: &str| factor(text, MAX_BETA))]
    pub beta: Option<f64>,
    /// The same seed gives the same adapter [default: random]
    #[arg(long, value_name = "N", value_parser = count(0, MAX_SEED))]
    pub seed: Option<u32>,
    #[command(flatten)]
    pub compute: ComputeArgs,
}

impl TuneArgs {
    /// The hyperparameters that were given.
    pub fn hyperparameters(&self) -> Hyperparameters {
        Hyperparameters {
            n_epochs: self.epochs,
            batch_size: self.batch_size,
            learning_rate_multiplier: self.learning_rate_multiplier,
            beta: self.beta,
            lora_rank: self.rank,
            lora_alpha: self.alpha,
            lora_dropout: self.dropout,
            target_modules: Some(self.target_modules.clone()).filter(|names| !names.is_empty()),
            max_length: self.max_length,
            packing: Some(self.packing),
        }
    }
}

fn method(text: &str) -> Result<Method, String> {
    let known = Method::ALL.map(Method::as_str);
    let found = Method::ALL.into_iter().find(|method| method.as_str() == text);
    found.ok_or_else(|| format!("the methods are {}", one_of(&known)))
}

fn count(min: i64, max: i64) -> RangedI64ValueParser<u32> {
    RangedI64ValueParser::new().range(min..=max)
}

fn factor(text: &str, max: f64) -> Result<f64, String> {
    number(text, |number| number > 0. && number <= max).ok_or_else(|| format!("it must be above 0, up to {max}"))
}

fn dropout(text: &str) -> Result<f64, String> {
    number(text, |number| (0. ..1.).contains(&number)).ok_or_else(|| "it must be from 0 to below 1".to_owned())
}

fn number(text: &str, is_valid: impl Fn(f64) -> bool) -> Option<f64> {
    text.parse().ok().filter(|number| is_valid(*number))
}

#[cfg(test)]
mod tests {
    use super::{dropout, factor, method};
    use crate::service::fine_tuning::Method;

    #[test]
    fn values_are_in_their_ranges() {
        assert_eq!((factor("0.5", 2.), factor("2", 2.)), (Ok(0.5), Ok(2.)));
        for bad in ["0", "-1", "2.1", "inf", "NaN", "x", ""] {
            assert!(factor(bad, 2.).is_err(), "{bad}");
        }
        assert_eq!((dropout("0"), dropout("0.9")), (Ok(0.), Ok(0.9)));
        assert!(dropout("1").is_err() && dropout("-0.1").is_err());
        assert_eq!(method("dpo"), Ok(Method::Dpo));
        assert_eq!(method("rl"), Err("the methods are supervised or dpo".to_owned()));
    }
}
