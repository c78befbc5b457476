//! Reads the values of a file one by one, and checks each length before it is used.

use std::fs::File;
use std::io::{BufReader, Read};

use crate::error::{ModelError, Result};

/// Bytes of a read.
const BUFFER: usize = 1 << 20;

/// A position in a file.
pub(super) struct Reader<'a> {
    file: BufReader<&'a File>,
    position: u64,
    length: u64,
}

impl<'a> Reader<'a> {
    /// From the start of a file of `length` bytes.
    pub fn new(file: &'a File, length: u64) -> Self {
        Self { file: BufReader::with_capacity(BUFFER, file), position: 0, length }
    }

    pub fn position(&self) -> u64 {
        self.position
    }

    pub fn is_at_end(&self) -> bool {
        self.position >= self.length
    }

    /// Moves past `count` bytes, which the file must have. `what` describes them in errors.
    fn advance(&mut self, count: u64, what: &dyn Fn() -> String) -> Result<()> {
        match self.position.checked_add(count) {
            Some(end) if end <= self.length => {
                self.position = end;
                Ok(())
            }
            end => {
                let (end, length) = (end.unwrap_or(u64::MAX), self.length);
                let what = what();
                Err(damaged(format!("the file is truncated: {what} ends at byte {end}, the file has {length} bytes")))
            }
        }
    }

    fn array<const N: usize>(&mut self, what: &dyn Fn() -> String) -> Result<[u8; N]> {
        self.advance(N as u64, what)?;
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes).map_err(unreadable)?;
        Ok(bytes)
    }

    pub fn u32(&mut self, what: &dyn Fn() -> String) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    /// A number of at most `max`.
    pub fn count(&mut self, max: usize, what: &dyn Fn() -> String) -> Result<usize> {
        let number = self.u32(what)?;
        match usize::try_from(number) {
            Ok(count) if count <= max => Ok(count),
            _ => Err(damaged(format!("{} is {number}, at most {max} is allowed", what()))),
        }
    }

    /// The next `count` bytes; callers limit `count`.
    pub fn bytes(&mut self, count: usize, what: &dyn Fn() -> String) -> Result<Vec<u8>> {
        self.advance(count as u64, what)?;
        let mut bytes = vec![0; count];
        self.file.read_exact(&mut bytes).map_err(unreadable)?;
        Ok(bytes)
    }

    pub fn skip(&mut self, count: u64, what: &dyn Fn() -> String) -> Result<()> {
        self.advance(count, what)?;
        let offset = i64::try_from(count).map_err(|_| damaged(format!("{} is too long", what())))?;
        self.file.seek_relative(offset).map_err(unreadable)
    }
}

pub(super) fn damaged(message: String) -> ModelError {
    ModelError::Checkpoint(message)
}

pub(super) fn unreadable(error: std::io::Error) -> ModelError {
    damaged(format!("the file cannot be read: {error}"))
}
