//! The engine of a single server: one redb file, one writer thread, many readers.

pub(super) mod check;
pub(super) mod copy;
pub(super) mod database;
pub(super) mod folder;
mod free_pages;
pub(super) mod migrations;
mod open;
pub(super) mod restore;
mod spare_space;
mod state;
pub(super) mod transaction;
pub(super) mod unfinished;
mod writer;

pub(super) use open::open;
#[cfg(test)]
pub(super) use transaction::in_memory;
