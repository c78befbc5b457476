//! Text generation: a loaded chat model, its requests, and how they are scheduled, decoded and sampled.

pub mod active_request;
pub mod chat_template;
pub mod content_hash;
pub mod detokenizer;
pub mod grammar;
mod kind;
pub mod logprobs;
pub mod model;
pub mod prefix_disk;
mod prefix_restore;
mod prefix_writer;
pub mod prompt;
mod prompt_logprobs;
pub mod prompt_options;
pub mod queue;
pub mod reasoning;
pub mod request;
pub mod sampler;
pub mod scheduler;
pub mod sequence;
pub mod speculative;
pub mod step_cost_model;
pub mod stop;
pub mod tools;
pub mod training_example;
pub mod workload;
