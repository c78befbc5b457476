//! Reads a folder that other processes may modify.
//!
//! Every step is relative to an opened folder and follows no symbolic links, so the file that was checked is the file
//! that is read, even if a path is swapped in between.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, open, openat, statat};

use super::error::{FolderError, TransferError};
use super::name_validation::check_file_path;
use outpost_models::model_files::is_hidden;

/// Receives a file's path below the folder, and the file, opened.
pub type Visit<'v> = dyn FnMut(&str, File) -> Result<(), TransferError> + 'v;

/// Visits the regular files below `root` in the order of their names.
///
/// Hidden names (version control, caches of download tools, files of operating systems) are skipped. Anything
/// that is neither a file nor a folder is an error that names its path.
pub fn visit_files(root: &Path, visit: &mut Visit<'_>) -> Result<(), TransferError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = open(root, flags, Mode::empty()).map_err(|e| FolderError::at(root)(e.into()))?;
    walk(&dir, "", visit)
}

fn walk(dir: &OwnedFd, prefix: &str, visit: &mut Visit<'_>) -> Result<(), TransferError> {
    for name in names(dir, prefix)? {
        let path = format!("{prefix}{name}");
        check_file_path(&path).map_err(|why| TransferError::entry(&path, why))?;
        let (fd, kind) = open_entry(dir, &name, &path)?;
        match kind {
            FileType::Directory => walk(&fd, &format!("{path}/"), visit)?,
            _ => visit(&path, File::from(fd))?,
        }
    }
    Ok(())
}

/// The visible names in a folder, sorted.
fn names(dir: &OwnedFd, prefix: &str) -> Result<Vec<String>, TransferError> {
    let io = |e: rustix::io::Errno| FolderError::at(Path::new(prefix))(e.into());
    let mut names = Vec::new();
    for entry in Dir::read_from(dir.as_fd()).map_err(io)? {
        let entry = entry.map_err(io)?;
        if is_hidden(&entry.file_name().to_string_lossy()) {
            continue;
        }
        let name = entry.file_name().to_str().map_err(|_| {
            let lossy = entry.file_name().to_string_lossy();
            TransferError::entry(format!("{prefix}{lossy}"), "has a name that is not UTF-8")
        })?;
        names.push(name.to_owned());
    }
    names.sort();
    Ok(names)
}

fn open_entry(dir: &OwnedFd, name: &str, path: &str) -> Result<(OwnedFd, FileType), TransferError> {
    let io = |e: rustix::io::Errno| TransferError::entry(path, format!("cannot be read: {e}"));
    // Checked first, because opening a device can have side effects.
    let before = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(io)?;
    plain(FileType::from_raw_mode(before.st_mode), path)?;
    // Checked again after opening; only this result counts. NONBLOCK prevents blocking on a FIFO that was swapped in.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = openat(dir, name, flags, Mode::empty()).map_err(io)?;
    let kind = FileType::from_raw_mode(fstat(&fd).map_err(io)?.st_mode);
    plain(kind, path)?;
    Ok((fd, kind))
}

fn plain(kind: FileType, path: &str) -> Result<(), TransferError> {
    let what = match kind {
        FileType::RegularFile | FileType::Directory => return Ok(()),
        FileType::Symlink => "is a symbolic link; copy the folder with its links resolved first (cp -rL)",
        FileType::Fifo => "is a FIFO, not a file",
        FileType::Socket => "is a socket, not a file",
        _ => "is a device, not a file",
    };
    Err(TransferError::entry(path, what))
}
