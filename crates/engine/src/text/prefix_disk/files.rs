//! The files: `MODEL/IDENTITY/PROJECT/BLOCK-GROUP`, all in hexadecimal.

use std::ffi::OsStr;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT, utimensat};

use super::index::BlockFile;
use super::names::FolderPath;
use crate::ids::Tenant;
use outpost_common::clock_rng::Timestamp;

/// The ending of files that are being written.
const UNFINISHED: &str = "tmp";

/// The folder of a project's blocks of a model.
pub fn folder(root: &Path, FolderPath { model, identity, tenant }: &FolderPath) -> PathBuf {
    [model, identity, &tenant.to_be_bytes()].into_iter().map(hex).fold(root.to_owned(), |path, name| path.join(name))
}

/// The name of a block's file.
pub fn file_name(file: &BlockFile) -> String {
    format!("{}-{}", hex(&file.name), file.group)
}

/// The bytes that a file of this length takes on disk.
pub fn disk_bytes(length: usize) -> u64 {
    (length as u64).next_multiple_of(4096)
}

fn hex(bytes: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*bytes))
}

fn parse_hex(name: &OsStr) -> Option<[u8; 16]> {
    let name = name.to_str().filter(|name| name.len() == 32)?;
    u128::from_str_radix(name, 16).ok().map(u128::to_be_bytes)
}

/// A file that was found: its folder, what it is apart from that, and its bytes on disk.
type Found = (FolderPath, BlockFile, u64);

/// The files of earlier runs, least recently used first. Deletes those that were not finished. Creates the folder. Leaves out what
/// cannot be read.
///
/// # Errors
/// If the folder cannot be created.
pub fn scan(root: &Path) -> io::Result<Vec<Found>> {
    create_folder(root)?;
    let mut found = Vec::new();
    for (model, path) in folders(root) {
        for (identity, path) in folders(&path) {
            for (tenant, path) in folders(&path) {
                let folder = FolderPath { model, identity, tenant: Tenant::from_be_bytes(tenant) };
                scan_folder(folder, &path, &mut found);
            }
        }
    }
    found.sort_by_key(|(used, _)| *used);
    Ok(found.into_iter().map(|(_, found)| found).collect())
}

/// The folders in a folder whose names are 16 bytes.
fn folders(path: &Path) -> Vec<([u8; 16], PathBuf)> {
    let entries = path.read_dir().into_iter().flatten().flatten().filter(|entry| entry.path().is_dir());
    entries.filter_map(|entry| Some((parse_hex(&entry.file_name())?, entry.path()))).collect()
}

/// Appends the files of a folder with the times of their last use.
fn scan_folder(folder: FolderPath, path: &Path, found: &mut Vec<((i64, i64), Found)>) {
    for entry in path.read_dir().into_iter().flatten().flatten() {
        if entry.path().extension() == Some(OsStr::new(UNFINISHED)) {
            // If this fails, a later write replaces it.
            let _ = std::fs::remove_file(entry.path());
        }
        let (Some(file), Ok(metadata)) = (parse_file_name(&entry.file_name()), entry.metadata()) else { continue };
        let bytes = disk_bytes(usize::try_from(metadata.len()).unwrap_or(usize::MAX));
        found.push(((metadata.mtime(), metadata.mtime_nsec()), (folder, file, bytes)));
    }
}

/// The inverse of [`file_name`], apart from the folder.
fn parse_file_name(name: &OsStr) -> Option<BlockFile> {
    let (name, group) = name.to_str()?.split_once('-')?;
    Some(BlockFile { folder: 0, name: parse_hex(OsStr::new(name))?, group: group.parse().ok()? })
}

fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Writes a file so that it is either complete or not there, unless the machine fails.
///
/// # Errors
/// If it cannot be written; nothing is left of it then.
pub fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        create_folder(folder)?;
    }
    let unfinished = path.with_extension(UNFINISHED);
    let write = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        file.write_all(contents)?;
        std::fs::rename(&unfinished, path)
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&unfinished)))
}

/// Sets the time of a file's last use to `later` microseconds after `now`.
pub fn set_used(path: &Path, now: Timestamp, later: usize) -> io::Result<()> {
    let micros = now.as_millis().saturating_mul(1000).saturating_add(i64::try_from(later).unwrap_or(i64::MAX));
    let used = Timespec { tv_sec: micros.div_euclid(1_000_000), tv_nsec: (micros.rem_euclid(1_000_000) * 1000) as _ };
    let unchanged = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT as _ };
    let times = Timestamps { last_access: unchanged, last_modification: used };
    Ok(utimensat(CWD, path, &times, AtFlags::empty())?)
}
