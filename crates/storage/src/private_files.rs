//! Files that only their owner may read, written atomically.
//!
//! A secret file that other users can read gets mode 0600, with a warning. ssh refuses such a key. If the server
//! refused to start after a backup was restored with wrong modes, the outage would protect nothing, because the file
//! may already have been read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

pub const DATABASE: &str = "outpost.redb";
pub const PEPPER: &str = "pepper";

/// Creates the data folder with mode 0700.
pub(super) fn private_dir(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)?;
    close_to_others(dir, 0o700);
    Ok(())
}

/// Removes access for other users. Best effort: a mounted volume may have another owner, and every file inside is 0600
/// anyway. Returns whether the mode was changed.
fn close_to_others(path: &Path, mode: u32) -> bool {
    #[cfg(unix)]
    if let Ok(found) = fs::metadata(path) {
        use std::os::unix::fs::PermissionsExt as _;
        if found.permissions().mode() & 0o077 != 0 {
            return match fs::set_permissions(path, fs::Permissions::from_mode(mode)) {
                Ok(()) => true,
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "cannot close this path to other users");
                    false
                }
            };
        }
    }
    #[cfg(not(unix))]
    let _ = (path, mode);
    false
}

/// Removes other users' access to a secret file, and warns if they had access. `remedy`: what to do if one of them has
/// read it. A missing file is ignored.
pub fn protect_secret(path: &Path, remedy: &str) {
    if close_to_others(path, 0o600) {
        tracing::warn!(path = %path.display(), remedy, "other users could read this file; its mode is set to 0600");
    }
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Opens an existing file.
pub(super) fn open_existing(path: &Path) -> io::Result<File> {
    close_to_others(path, 0o600);
    private().open(path)
}

/// Opens a file, or creates it empty.
pub(super) fn open_or_create(path: &Path) -> io::Result<File> {
    private().create(true).truncate(false).open(path)
}

/// Creates an empty file to be filled and then renamed; removes what a crash left of an earlier one.
pub(super) fn create_partial(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => private().create_new(true).open(path),
    }
}

/// The path `name.partial` beside the final file.
pub(super) fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    PathBuf::from(name)
}

/// Replaces a file atomically.
pub(super) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let partial = partial(path);
    let mut file = create_partial(&partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&partial, path)?;
    sync_parent(path)
}

/// A file that appears under its name when published, and is removed otherwise.
pub struct NewFile {
    file: File,
    partial: PathBuf,
    path: PathBuf,
}

impl NewFile {
    /// Creates a file that only its owner may read; fails if it exists.
    pub fn create(path: &Path) -> io::Result<Self> {
        if path.symlink_metadata().is_ok() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file exists already"));
        }
        let partial = partial(path);
        Ok(Self { file: create_partial(&partial)?, partial, path: path.to_owned() })
    }

    pub fn publish(self) -> io::Result<()> {
        publish(&self.partial, &self.path)
    }
}

impl io::Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // Already gone if it was published.
        let _ = fs::remove_file(&self.partial);
    }
}

/// Renames a finished file; never overwrites.
pub(super) fn publish(partial: &Path, path: &Path) -> io::Result<()> {
    File::open(partial)?.sync_all()?;
    match fs::hard_link(partial, path) {
        Ok(()) => fs::remove_file(partial)?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(error),
        // Some file systems have no hard links; then the earlier check is the only protection.
        Err(_) if !path.exists() => fs::rename(partial, path)?,
        Err(error) => return Err(error),
    }
    sync_parent(path)
}

/// A new name is durable once its folder is synced.
pub(super) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if cfg!(unix) { File::open(parent)?.sync_all() } else { Ok(()) }
}
