//! Errors of the data folder as a whole, for the operator. (Errors of requests are [`crate::error::Error`].)

use std::io;
use std::path::{Path, PathBuf};

use crate::engine::Failed;
use crate::error::Error;
use crate::postgres::{PostgresError, PostgresOpenError};

/// Why a data folder cannot be used. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "Another outpost process is using the data folder {}. Stop it first, or choose another data folder.",
        dir.display()
    )]
    Locked { dir: PathBuf },
    #[error("Cannot use {}: {source}. Check that the disk has free space and that this user may write there.", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "The database {} is damaged ({reason}). Move it away and run `outpost restore` with your latest backup.",
        path.display()
    )]
    Corrupt { path: PathBuf, reason: String },
    #[error(
        "The database has layout {found}, but this outpost knows layouts up to {known}. A newer outpost wrote it: \
         start that version, or restore a backup made by this one."
    )]
    NewerLayout { found: u32, known: u32 },
    #[error(
        "The database {} has no layout version: an unreleased build of outpost wrote it, or another program. It cannot \
         be upgraded. To start anew, move the data folder {} away; the next start creates a new store and a new admin \
         key.",
        path.display(), path.parent().unwrap_or(path).display()
    )]
    NoLayout { path: PathBuf },
    #[error(
        "The pepper file {} is missing, and without it no key in the database can be checked. Copy it back from \
         where it was, or move the database away and run `outpost restore`: a backup contains the pepper.",
        path.display()
    )]
    MissingPepper { path: PathBuf },
    #[error(
        "The pepper file {} does not belong to the database beside it. Put the right one back, or move both away \
         and run `outpost restore`: a backup contains its pepper.",
        path.display()
    )]
    WrongPepper { path: PathBuf },
    #[error(
        "A {what} into the data folder {} was interrupted, so there is no store yet. Run the {what} again, which starts \
         over, or remove {} to begin without the records.",
        dir.display(), path.display()
    )]
    Unfinished { what: &'static str, dir: PathBuf, path: PathBuf },
    #[error(
        "A PostgreSQL store was given, but {} is a store of its own. Copy it with `outpost store copy` if you need \
         what it contains, then move it away.",
        path.display()
    )]
    TwoStores { path: PathBuf },
    #[error(transparent)]
    Postgres(#[from] PostgresOpenError),
}

impl OpenError {
    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    /// Converts redb's error about `path`. A disk error is not reported as damage.
    pub(super) fn database(path: &Path, error: impl Into<redb::Error>) -> Self {
        match error.into() {
            redb::Error::Io(source) if source.kind() != io::ErrorKind::InvalidData => Self::io(path, source),
            error @ redb::Error::PreviousIo => Self::io(path, io::Error::other(error)),
            other => Self::corrupt(path, other),
        }
    }

    /// The same for an error from a transaction, which knows whether the disk failed.
    pub(super) fn record(path: &Path, error: &Error, disk_failed: bool) -> Self {
        let reason = error.cause().map_or_else(|| error.to_string(), ToString::to_string);
        if disk_failed { Self::io(path, io::Error::other(reason)) } else { Self::corrupt(path, reason) }
    }

    pub(super) fn corrupt(path: &Path, reason: impl ToString) -> Self {
        Self::Corrupt { path: path.to_owned(), reason: reason.to_string() }
    }
}

/// Why a backup failed; nothing is left at the target.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("{} exists already. A backup never overwrites: choose another name.", path.display())]
    TargetExists { path: PathBuf },
    #[error("Cannot write the backup {}: {source}. Check that the disk has free space.", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "The backup {} may take {needed} bytes, and its disk has {free} free beside what the server keeps back. Free \
         space, or choose another disk.",
        path.display()
    )]
    NoSpace { path: PathBuf, needed: u64, free: u64 },
    #[error("Cannot copy the database: {reason}. Run `outpost check` once the server has stopped.")]
    Database { reason: String },
}

/// Why a restore failed; the data folder is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error(
        "The data folder {} already holds a database. Restore never overwrites: move {} away or choose an empty folder.",
        dir.display(), crate::private_files::DATABASE
    )]
    NotEmpty { dir: PathBuf },
    #[error("{} is not a usable backup: {reason}. Nothing was changed; try an older backup.", path.display())]
    BadBackup { path: PathBuf, reason: String },
    #[error(
        "The data folder {} holds another pepper than the backup. Move the file `pepper` away if no database \
         needs it any more, then restore again.",
        dir.display()
    )]
    OtherPepper { dir: PathBuf },
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Why a store could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum StoreCopyError {
    #[error("There is no store in the data folder {}. Check the path.", dir.display())]
    NoStore { dir: PathBuf },
    #[error(
        "The data folder {} already holds a store. A copy never overwrites: choose an empty folder, or move {} away.",
        dir.display(), crate::private_files::DATABASE
    )]
    NotEmpty { dir: PathBuf },
    #[error(
        "The store has layout {found}, but this outpost copies layout {known}. Start the server with it once, which \
         migrates it."
    )]
    OldLayout { found: u32, known: u32 },
    #[error(
        "The data folder {} holds another pepper than the store that is copied. Choose another folder with --data, or \
         move the file `pepper` away if no store needs it any more.",
        dir.display()
    )]
    OtherPepper { dir: PathBuf },
    #[error("The store that is copied cannot be read: {}.", .0.reason)]
    Source(Failed),
    #[error("The copy cannot be written: {0}.")]
    Target(PostgresError),
    #[error("The copy cannot be read back: {}.", .0.reason)]
    Unverified(Failed),
    #[error(
        "The copy differs in the table `{table}`, so it is not used as a store. Run the copy again, which starts over."
    )]
    Differs { table: String },
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Why a check failed. (Problems found are in its report.)
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("The check could not finish: {reason}.")]
    Unfinished { reason: String },
}
