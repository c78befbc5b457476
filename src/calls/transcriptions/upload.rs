//! An upload of an audio file: an unlinked temporary file in the data folder, which disappears with its last handle.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use super::temporary_space::SpaceShare;
use crate::calls::blocking::run_blocking;
use crate::error::{Code, Error, Result};
use crate::service::limits::concurrency_limit::Slot;

/// Bytes that are written at once.
const BLOCK_BYTES: usize = 512 << 10;

/// An audio file that is being received.
pub struct Upload {
    folder: PathBuf,
    max_bytes: u64,
    bytes: u64,
    pending: Vec<u8>,
    /// Created with the first block.
    file: Option<File>,
    held: Held,
}

/// Resources of a file while it exists: a slot, which limits the number of files, and its share of the disk.
pub(super) struct Held {
    pub _slot: Slot,
    pub space: SpaceShare,
}

/// A received audio file.
pub struct ReceivedAudio {
    pub(super) file: File,
    pub(super) held: Held,
}

impl Upload {
    pub(super) fn new(folder: PathBuf, max_bytes: u64, held: Held) -> Self {
        Self { folder, max_bytes, bytes: 0, pending: Vec::new(), file: None, held }
    }

    /// The most bytes of a file.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Takes the next bytes. Whole blocks are written before it returns.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        if self.bytes > self.max_bytes {
            return Err(too_large(self.max_bytes));
        }
        self.pending.extend_from_slice(bytes);
        if self.pending.len() >= BLOCK_BYTES { self.flush().await } else { Ok(()) }
    }

    /// Ends the file.
    pub async fn finish(mut self) -> Result<ReceivedAudio> {
        self.flush().await?;
        let file = self.file.ok_or_else(|| Error::internal("an upload has no file"))?;
        Ok(ReceivedAudio { file, held: self.held })
    }

    async fn flush(&mut self) -> Result<()> {
        self.held.space.take(self.pending.len() as u64)?;
        let (block, file, folder) = (std::mem::take(&mut self.pending), self.file.take(), self.folder.clone());
        let write = move || {
            let mut file = file.map_or_else(|| tempfile::tempfile_in(folder), Ok).map_err(unwritable)?;
            file.write_all(&block).map_err(unwritable)?;
            Ok(file)
        };
        self.file = Some(run_blocking(write).await?);
        Ok(())
    }
}

/// The error for a file of more than `max_bytes`.
pub fn too_large(max_bytes: u64) -> Error {
    let text = format!(
        "'file' is larger than {max_bytes} bytes. Compress it, for example as Opus or MP3, or split it; the \
         operator can raise the limit with --max-audio-size."
    );
    Error::new(Code::RequestTooLarge, text).param("file")
}

fn unwritable(cause: std::io::Error) -> Error {
    let text = "The server cannot store the uploaded file. Try again later; the operator should check the free space of the \
                data folder.";
    Error::new(Code::StorageUnavailable, text).with_cause(cause)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use super::{BLOCK_BYTES, Held, Upload};
    use crate::calls::transcriptions::temporary_space::TemporarySpace;
    use crate::disk_space::DiskReserve;
    use crate::error::Code;
    use crate::ids::ProjectId;
    use crate::service::limits::concurrency_limit::ConcurrencyLimit;

    #[tokio::test]
    async fn an_upload_leaves_no_file_and_has_a_size_limit() {
        let folder = tempfile::tempdir().unwrap();
        let limit = ConcurrencyLimit::new("files are transcribed", 2, 1);
        let project = ProjectId::from_bytes([1; 16]);
        let space = TemporarySpace::new(DiskReserve::new(folder.path(), Some(0)));
        let held = || Held { _slot: limit.acquire(project).unwrap(), space: space.share(project) };
        let upload = || Upload::new(folder.path().to_owned(), 2_000_000, held());
        let content: Vec<u8> = (0..BLOCK_BYTES * 2 + 77).map(|index| (index % 251) as u8).collect();
        let mut sent = upload();
        for piece in content.chunks(10_000) {
            sent.write(piece).await.unwrap();
        }
        let mut received = sent.finish().await.unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "it has no name");
        let mut read = Vec::new();
        received.file.rewind().unwrap();
        received.file.read_to_end(&mut read).unwrap();
        assert!(read == content);
        assert!(limit.acquire(project).is_err(), "a received file keeps its slot");
        drop(received);

        let mut sent = upload();
        sent.write(&vec![0; 2_000_000]).await.unwrap();
        let error = sent.write(&[0]).await.unwrap_err();
        assert_eq!((error.code(), error.param_name()), (Code::RequestTooLarge, Some("file")));
        drop(sent);
        upload().finish().await.unwrap();
    }
}
