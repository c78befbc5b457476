//! Tool calling: how tools are described to a model, and how its calls are parsed from the generated text.

pub mod bare_call;
mod format;
mod harmony_messages;
pub mod literals;
pub mod parameters;
mod parser;
mod prompt;
mod types;

pub use format::{ArgumentStyle, CallFormat, CallSyntax, PYTHON};
pub use parser::{CallParser, JsonDepth};
pub use prompt::{ToolPromptStyle, protected};
pub use types::{CallMode, InputFormat, OutputSpec, TextFormat, Tool, ToolCallDelta};
