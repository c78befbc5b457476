//! Reads the values of a header one by one, and checks each length before it is used.

use super::GgufError;

/// A position in the header. `bytes` is a prefix of a file of `length` bytes.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
    length: u64,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8], length: u64) -> Self {
        Self { bytes, position: 0, length }
    }

    pub fn position(&self) -> u64 {
        self.position as u64
    }

    /// Bytes of the file after this position: an upper bound of every count.
    pub fn remaining(&self) -> u64 {
        self.length.saturating_sub(self.position())
    }

    /// The next `count` bytes. `what` describes them in errors.
    pub fn take(&mut self, count: u64, what: &dyn Fn() -> String) -> Result<&'a [u8], GgufError> {
        if count > self.remaining() {
            let end = self.position().saturating_add(count);
            return Err(GgufError::Truncated { what: what(), end, length: self.length });
        }
        let rest = self.bytes.get(self.position..).unwrap_or_default();
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let taken = rest.get(..count).ok_or(GgufError::Short(self.bytes.len() as u64))?;
        self.position += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &dyn Fn() -> String) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    pub fn u32(&mut self, what: &dyn Fn() -> String) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub fn u64(&mut self, what: &dyn Fn() -> String) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    pub fn magic(&mut self) -> Result<[u8; 4], GgufError> {
        self.array(&|| "the magic number".to_owned())
    }

    pub fn text(&mut self, what: &dyn Fn() -> String) -> Result<String, GgufError> {
        let count = self.u64(what)?;
        let bytes = self.take(count, what)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(GgufError::damaged(format!("{} is not UTF-8", what()))),
        }
    }

    /// A count of items of at least `min_bytes` bytes each. It is an error if the file cannot hold them.
    pub fn count(&mut self, min_bytes: u64, what: &dyn Fn() -> String) -> Result<usize, GgufError> {
        let count = self.u64(what)?;
        let max = self.remaining() / min_bytes.max(1);
        if count > max {
            let text = format!(
                "{}: {count} items do not fit in the rest of the file, which has space for at most {max}",
                what()
            );
            return Err(GgufError::damaged(text));
        }
        usize::try_from(count).map_err(|_| GgufError::damaged(format!("{}: {count} items are too many", what())))
    }
}
