//! The binary as an operator uses it: first start, second start, lock, signals, backup, check.

#[path = "../common/process.rs"]
mod process;
#[path = "../common/tiny_model.rs"]
mod tiny_model;

mod drain;
mod start;
mod store;
