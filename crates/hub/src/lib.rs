//! The catalog of models, and how they are downloaded, converted and installed.

pub mod catalog;
pub mod download;
pub mod hub;
