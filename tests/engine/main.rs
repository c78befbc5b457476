//! The engine and the models below it, through their public API.
#![cfg(test)]

#[path = "../common/children.rs"]
mod children;
#[path = "../common/rng.rs"]
mod rng;
#[path = "../common/tiny_model.rs"]
mod tiny_model;
#[path = "../common/wait.rs"]
mod wait;

mod adapters;
mod answers;
mod bench;
mod crowd;
mod decoder;
mod departures;
mod drafts;
mod encoders;
mod families;
mod files;
mod flows;
mod forms;
mod guesses;
mod hostile;
mod hub;
mod image_models;
mod images;
mod prefixes;
mod prompts;
mod queue;
mod registry;
mod support;
mod unusable;
