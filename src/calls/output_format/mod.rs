//! What a request asks of the form of a text model's output: tools, schemas and grammars.

pub mod custom_tools;
pub mod grammars;
pub mod output_spec;
