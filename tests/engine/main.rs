//! The engine and the models below it, through their public API.

#[cfg(test)]
#[path = "../common/tiny_model.rs"]
mod tiny_model;

#[cfg(test)]
mod answers;
#[cfg(test)]
mod bench;
#[cfg(test)]
mod decoder;
#[cfg(test)]
mod departures;
#[cfg(test)]
mod files;
#[cfg(test)]
mod prompts;
#[cfg(test)]
mod queue;
#[cfg(test)]
mod registry;
#[cfg(test)]
mod support;
