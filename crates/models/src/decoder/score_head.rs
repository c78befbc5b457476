//! Heads of decoders that rank or classify: logits of a text, from the hidden state of its last token.

use crate::backend::{Backend, Recurrent};
use crate::decoder_config::DecoderConfig;
use crate::error::{ModelError, Result, reject_config};
use crate::nn::Linear;
use crate::weights::{Candidate, Loader};

/// Where a checkpoint has the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreHeadConfig {
    /// A matrix with a row for each logit (`score` of transformers' `…ForSequenceClassification`).
    Matrix { logits: usize },
    /// A matrix with one row, or with those of a positive and a negative answer (`cls.output` of GGUF files).
    Answers { rows: usize },
    /// The output projection: the logit of one token, minus that of another one if there is one.
    Tokens { positive: u32, negative: Option<u32> },
}

/// A head on its device.
#[derive(Debug)]
pub struct ScoreHead<B: Backend> {
    output: Linear<B>,
    /// The result is the first logit minus the second.
    is_difference: bool,
}

impl<B: Recurrent> ScoreHead<B> {
    pub(super) fn load(loader: &Loader<'_, B>, config: &DecoderConfig, head: ScoreHeadConfig) -> Result<Self> {
        let DecoderConfig { width, vocabulary, .. } = *config;
        let matrix = |rows| loader.linear(&[Candidate::whole("cls.output".to_owned(), rows)], rows, width, false);
        let (output, is_difference) = match head {
            ScoreHeadConfig::Matrix { logits } => (matrix(logits)?, false),
            ScoreHeadConfig::Answers { rows: rows @ 1..=2 } => (matrix(rows)?, rows == 2),
            ScoreHeadConfig::Answers { rows } => {
                return reject_config(format!("a head with {rows} answers is not supported"));
            }
            ScoreHeadConfig::Tokens { positive, negative } => {
                let tokens = [Some(positive), negative].into_iter().flatten();
                let rows: Vec<_> = tokens.map(|token| token as usize..token as usize + 1).collect();
                if let Some(row) = rows.iter().find(|row| row.end > vocabulary) {
                    return Err(ModelError::Checkpoint(format!(
                        "the token {} of its score is not in the vocabulary of {vocabulary}",
                        row.start
                    )));
                }
                let stem = if loader.has("output") { "output" } else { "token_embd" };
                (loader.gathered(stem, &rows, [vocabulary, width])?, negative.is_some())
            }
        };
        Ok(Self { output, is_difference })
    }

    /// The logits of each text: one, or those of all labels. `hidden` are the hidden states of the last tokens after the output
    /// norm, `[width]` each.
    pub fn logits(&self, backend: &B, hidden: &[Vec<f32>]) -> Result<Vec<Vec<f32>>> {
        let of_text = |logits: Vec<f32>| match logits[..] {
            [positive, negative] if self.is_difference => vec![positive - negative],
            _ => logits,
        };
        Ok(self.output.forward_vectors(backend, hidden)?.into_iter().map(of_text).collect())
    }
}
