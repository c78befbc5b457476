//! Tools that a model may call: how they are told to it, and how its calls are told from text.

pub mod bare;
mod format;
mod parser;
mod prompt;
mod types;

pub use format::{Format, PYTHON, Syntax};
pub use parser::CallParser;
pub use prompt::Wording;
pub use types::{CallMode, OutputSpec, TextFormat, Tool, ToolCall, ToolCallDelta};
