//! A part of a media file that is read as a file of its own.

use std::io::{self, Read, Seek, SeekFrom};

use symphonia::core::io::MediaSource;

/// Samples that are converted at once.
const MAX_SAMPLES: usize = 2048;

/// A header from memory, followed by a part of a file. Its samples can be converted while they are read. Nothing but
/// the header is kept in memory.
#[derive(Clone)]
pub struct SourceWindow<S> {
    header: Vec<u8>,
    source: S,
    /// Where the part begins in the file.
    start: u64,
    /// The length of the part in the file; bytes.
    length: u64,
    samples: SampleBytes,
    position: u64,
}

/// How the bytes of a sample change. What is read is little-endian.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleBytes {
    /// Bytes in the file.
    pub stored: usize,
    /// The most significant bytes, which are kept.
    pub kept: usize,
    pub is_big_endian: bool,
    /// Set if 8-bit samples of the file are signed. They are converted, because the reader expects unsigned ones.
    pub is_signed_byte: bool,
}

impl SampleBytes {
    /// Any bytes, as they are.
    pub const UNCHANGED: Self = Self { stored: 1, kept: 1, is_big_endian: false, is_signed_byte: false };

    fn is_unchanged(self) -> bool {
        self.stored == self.kept && !self.is_big_endian && !self.is_signed_byte
    }
}

impl<S: Read + Seek> SourceWindow<S> {
    /// The bytes from `start` to `end`, unchanged.
    pub fn new(source: S, start: u64, end: u64) -> Self {
        Self::with_header(Vec::new(), source, start, end, SampleBytes::UNCHANGED)
    }

    /// A header, and the samples from `start` to `end`.
    pub fn with_header(header: Vec<u8>, source: S, start: u64, end: u64, samples: SampleBytes) -> Self {
        Self { header, source, start, length: end.saturating_sub(start), samples, position: 0 }
    }

    /// A part of this one, which has no header.
    pub fn part(self, start: u64, end: u64) -> Self {
        Self::new(self.source, self.start + start, self.start + end.min(self.length))
    }

    /// The length of what is read; bytes.
    pub fn length(&self) -> u64 {
        self.header.len() as u64 + self.converted_length()
    }

    fn converted_length(&self) -> u64 {
        if self.samples.is_unchanged() {
            return self.length;
        }
        self.length / self.samples.stored as u64 * self.samples.kept as u64
    }

    /// Reads converted samples from `at` on.
    fn read_converted(&mut self, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let SampleBytes { stored, kept, is_big_endian, is_signed_byte } = self.samples;
        let (first, skipped) = (at / kept as u64, usize::try_from(at % kept as u64).unwrap_or_default());
        let rest = usize::try_from(self.length / stored as u64 - first).unwrap_or(usize::MAX);
        let count = (buffer.len() + skipped).div_ceil(kept).min(MAX_SAMPLES).min(rest);
        let mut samples = vec![0; count * stored];
        let filled = read_at(&mut self.source, self.start + first * stored as u64, &mut samples)?;
        let mut converted = Vec::with_capacity(count * kept);
        for sample in samples[..filled].chunks_exact_mut(stored) {
            if is_big_endian {
                sample.reverse();
            }
            if is_signed_byte {
                sample.iter_mut().for_each(|byte| *byte ^= 0x80);
            }
            converted.extend_from_slice(&sample[stored - kept..]);
        }
        let read = converted.get(skipped..).unwrap_or_default();
        let count = read.len().min(buffer.len());
        buffer[..count].copy_from_slice(&read[..count]);
        Ok(count)
    }
}

impl<S: Read + Seek> Read for SourceWindow<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let header = usize::try_from(self.position).ok().and_then(|at| self.header.get(at..)).unwrap_or_default();
        let count = if header.is_empty() {
            let at = self.position.saturating_sub(self.header.len() as u64);
            let rest = usize::try_from(self.converted_length().saturating_sub(at)).unwrap_or(usize::MAX);
            let count = rest.min(buffer.len());
            let buffer = &mut buffer[..count];
            if count == 0 {
                0
            } else if self.samples.is_unchanged() {
                self.source.seek(SeekFrom::Start(self.start + at))?;
                self.source.read(buffer)?
            } else {
                self.read_converted(at, buffer)?
            }
        } else {
            let count = header.len().min(buffer.len());
            buffer[..count].copy_from_slice(&header[..count]);
            count
        };
        self.position += count as u64;
        Ok(count)
    }
}

impl<S: Read + Seek> Seek for SourceWindow<S> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(offset) => self.length().checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

impl<S: MediaSource> MediaSource for SourceWindow<S> {
    fn is_seekable(&self) -> bool {
        true
    }

    fn byte_len(&self) -> Option<u64> {
        Some(self.length())
    }
}

/// Fills the buffer from a position of the file. Returns the number of bytes, which are fewer at the end of the file.
pub fn read_at(file: &mut (impl Read + Seek), position: u64, buffer: &mut [u8]) -> io::Result<usize> {
    file.seek(SeekFrom::Start(position))?;
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}
