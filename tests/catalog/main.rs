//! The catalog, pulling through a made-up pip, and moving models by file. No network.

mod bench;
mod index;
mod pulls;
mod tars;
mod transfers;
