//! Turns the lines of a training file into tokens.

use crate::calls::training_examples::parse_line;
use crate::engine::{TextModel, TokenizeLimits, TrainingText, TrainingTexts};
use crate::service::training_data::trim_line;

/// Tokens of all examples of a file together.
const MAX_TOKENS: usize = 16 << 20;
/// Lines that an error names.
const MAX_NAMED: usize = 5;

/// Why the lines of a file cannot be trained on; for users.
pub type Problem = String;

/// Tokenises the examples of a file for a model. `max_length`: the tokens that a text may have. Blocks.
///
/// # Errors
/// If a line is wrong or too long, with the numbers of the lines.
pub fn tokenize(content: &[u8], model: &TextModel, max_length: u32) -> Result<Vec<TrainingText>, Problem> {
    let (mut texts, mut problems, mut tokens) = (Vec::new(), Vec::new(), 0);
    for (number, line) in lines(content) {
        if problems.len() > MAX_NAMED {
            break;
        }
        match tokenize_line((number, line), model, max_length) {
            Ok(found) => {
                tokens += found.iter().map(|text| text.tokens.len()).sum::<usize>();
                texts.extend(found);
            }
            Err(problem) => problems.push(problem),
        }
        if tokens > MAX_TOKENS {
            return Err(format!("it has more than {MAX_TOKENS} tokens; split it into several files"));
        }
    }
    if problems.len() > MAX_NAMED {
        problems[MAX_NAMED] = "and more".to_owned();
    }
    if problems.is_empty() { Ok(texts) } else { Err(problems.join("; ")) }
}

fn tokenize_line(
    (number, line): (u64, &[u8]),
    model: &TextModel,
    max_length: u32,
) -> Result<Vec<TrainingText>, Problem> {
    let example = parse_line(line, number).map_err(|error| error.message().trim_end_matches('.').to_owned())?;
    let texts = model.training_texts(&example, max_length as usize, &TokenizeLimits::default());
    let texts = match texts.map_err(|error| format!("line {number}: {error}"))? {
        TrainingTexts::Complete(texts) => texts,
        TrainingTexts::TooLong { tokens } => {
            return Err(format!(
                "line {number} has {tokens} tokens, but at most {max_length} are allowed (max_length)"
            ));
        }
    };
    match texts.iter().all(|text| text.targets.is_empty()) {
        true => Err(format!("line {number} has no tokens to learn")),
        false => Ok(texts),
    }
}

/// The lines that are not blank, with their numbers, counted from one.
fn lines(content: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    (1..).zip(content.split(|byte| *byte == b'\n')).filter(|(_, line)| !trim_line(line).is_empty())
}
