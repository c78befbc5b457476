//! Tools that a model may call: how they are told to it, and how its calls are told from text.

pub mod bare_call;
mod format;
mod parser;
mod prompt;
mod types;

pub use format::{CallFormat, CallSyntax, PYTHON};
pub use parser::CallParser;
pub use prompt::ToolPromptStyle;
pub use types::{CallMode, OutputSpec, TextFormat, Tool, ToolCall, ToolCallDelta};
