//! The prompts of text models: their messages, their lengths, and the threads that prepare them.

pub mod length;
pub mod logprobs;
pub mod message_joining;
pub mod messages;
pub mod preparation;
pub mod prompt_choice;
pub mod text_input;
pub mod upstream_prompt;
