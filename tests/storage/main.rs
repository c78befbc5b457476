//! What the storage and the rules above it promise, through their public API.

mod backup;
mod escalation;
mod faults;
mod group;
mod kill;
mod paging;
mod rotation;
mod world;
