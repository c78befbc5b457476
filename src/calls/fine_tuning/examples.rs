//! Turns the lines of a training file into the engine's examples, and those into tokens.

use serde_json::Value;

use crate::calls::output_format::output_spec::tool;
use crate::calls::prompt::messages::prompt_message;
use crate::content::Message;
use crate::engine::{TextModel, TokenizeLimits, Tool, TrainingExample, TrainingText, TrainingTexts};
use crate::error::{self, Error};
use crate::service::training_data::{Example, is_trained, trim_line};

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

/// Parses line `number`, counted from 1. It fails as an upload does: a version with other rules may have accepted the file.
fn parse_line(line: &[u8], number: u64) -> error::Result<TrainingExample> {
    let wrong = |problem: &str| Error::invalid("training_file", format!("line {number}: {problem}."));
    let example = Example::parse(trim_line(line)).map_err(|problem| wrong(&problem))?;
    Ok(convert_example(example))
}

fn convert_example(example: Example) -> TrainingExample {
    match example {
        Example::Messages { messages, tools } => {
            let trained = messages.iter().map(is_trained).collect();
            TrainingExample::Chat { messages: convert(&messages), trained, tools: tools_of(tools) }
        }
        Example::Completion { prompt, completion } => TrainingExample::Completion { prompt, completion },
        Example::Text(text) => TrainingExample::Text(text),
        Example::Preference { messages, tools, preferred, non_preferred } => TrainingExample::Preference {
            messages: convert(&messages),
            tools: tools_of(tools),
            chosen: convert(&preferred),
            rejected: convert(&non_preferred),
        },
    }
}

fn convert(messages: &[Value]) -> Vec<Message> {
    messages.iter().map(prompt_message).collect()
}

fn tools_of(definitions: Vec<Value>) -> Vec<Tool> {
    definitions.into_iter().map(|definition| tool(definition, false)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::parse_line;
    use crate::content::{Message, ToolCall};
    use crate::engine::TrainingExample;

    #[test]
    fn a_chat_has_messages_weights_and_tools() {
        let line = json!({
            "messages": [
                {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                ]},
                {"role": "tool", "tool_call_id": "c", "content": "r"},
                {"role": "assistant", "content": "x", "weight": 0},
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "y", "weight": 1},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "strict": true}}],
        });
        let line = format!("\u{feff}{line}\r");
        let TrainingExample::Chat { messages, trained, tools } = parse_line(line.as_bytes(), 1).unwrap() else {
            panic!("a chat")
        };
        assert_eq!(messages[0], Message::new("system", "ab"));
        let call = ToolCall { id: "c".to_owned(), name: "f".to_owned(), arguments: "{}".to_owned() };
        assert_eq!(messages[2], Message { tool_calls: vec![call], ..Message::new("assistant", "") });
        assert_eq!(messages[3].tool_call_id.as_deref(), Some("c"));
        assert_eq!(trained, [false, false, true, false, false, false, true]);
        assert_eq!((tools.len(), tools[0].name.as_str(), tools[0].strict), (1, "f", true));
        assert!(tools[0].parameters().is_some() && tools[0].definition.pointer("/function/strict").is_none());
    }

    #[test]
    fn other_forms_are_converted() {
        let (prompt, completion) = ("p".to_owned(), "c".to_owned());
        let found = parse_line(br#"{"prompt": "p", "completion": "c"}"#, 2).unwrap();
        assert_eq!(found, TrainingExample::Completion { prompt, completion });
        assert_eq!(parse_line(br#"{"text": "t"}"#, 2).unwrap(), TrainingExample::Text("t".to_owned()));
        let message = |role: &str, content: &str| vec![Message::new(role, content)];
        let line = json!({
            "input": {"messages": [{"role": "user", "content": "q"}]},
            "preferred_output": [{"role": "assistant", "content": "a"}],
            "non_preferred_output": [{"role": "assistant", "content": "b"}],
        });
        let expected = TrainingExample::Preference {
            messages: message("user", "q"),
            tools: Vec::new(),
            chosen: message("assistant", "a"),
            rejected: message("assistant", "b"),
        };
        assert_eq!(parse_line(line.to_string().as_bytes(), 3).unwrap(), expected);
    }

    #[test]
    fn an_error_names_the_line_and_the_field() {
        let error = parse_line(br#"{"text": ""}"#, 7).unwrap_err();
        assert_eq!(error.param_name(), Some("training_file"));
        assert_eq!(error.message(), "line 7: 'text' is empty; there is nothing to learn from it.");
    }
}
