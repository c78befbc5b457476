//! What the child writes to its standard output: a row of messages.
//!
//! A message is its kind (one byte), the length of its content (four bytes, little-endian) and the content. Both ends
//! are the same program, so the format may change with every version.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use crate::error::AudioError;
use crate::info::AudioInfo;

/// Samples of the longest message.
pub const MAX_SAMPLES: usize = 16_000;
/// The longest text of a message; bytes.
const MAX_TEXT: usize = 64 << 10;

const INFO: u8 = 1;
const SAMPLES: u8 = 2;
const END: u8 = 3;
const ERROR: u8 = 4;

/// The task of the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Says what the file is and how long, without decoding it.
    Measure,
    /// Writes the samples.
    Decode,
}

#[derive(Debug, PartialEq)]
pub enum Message {
    Info(AudioInfo),
    /// At most [`MAX_SAMPLES`].
    Samples(Vec<f32>),
    End,
    Error(AudioError),
}

#[derive(Serialize, Deserialize)]
struct Failure {
    error: AudioError,
}

pub fn write(output: &mut impl Write, message: &Message) -> io::Result<()> {
    match message {
        Message::Info(info) => write_content(output, INFO, &serde_json::to_vec(info)?),
        Message::Samples(samples) => write_samples(output, samples),
        Message::End => write_content(output, END, &[]),
        Message::Error(error) => write_content(output, ERROR, &serde_json::to_vec(&Failure { error: error.clone() })?),
    }
}

/// Writes at most [`MAX_SAMPLES`] samples.
pub fn write_samples(output: &mut impl Write, samples: &[f32]) -> io::Result<()> {
    let content: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    write_content(output, SAMPLES, &content)
}

fn write_content(output: &mut impl Write, kind: u8, content: &[u8]) -> io::Result<()> {
    let length = u32::try_from(content.len()).map_err(io::Error::other)?;
    let mut message = Vec::with_capacity(5 + content.len());
    message.push(kind);
    message.extend(length.to_le_bytes());
    message.extend_from_slice(content);
    output.write_all(&message)?;
    output.flush()
}

/// The next message; an error if the input ends. The child may be under a file's control, so nothing is trusted.
pub fn read(input: &mut impl Read) -> io::Result<Message> {
    let mut head = [0; 5];
    input.read_exact(&mut head)?;
    let [kind, length @ ..] = head;
    let length = usize::try_from(u32::from_le_bytes(length)).map_err(io::Error::other)?;
    let max = if kind == SAMPLES { MAX_SAMPLES * size_of::<f32>() } else { MAX_TEXT };
    if length > max {
        return Err(io::Error::other("the message is too long"));
    }
    let mut content = vec![0; length];
    input.read_exact(&mut content)?;
    match kind {
        INFO => Ok(Message::Info(serde_json::from_slice(&content)?)),
        SAMPLES => Ok(Message::Samples(samples(&content))),
        END => Ok(Message::End),
        ERROR => Ok(Message::Error(serde_json::from_slice::<Failure>(&content)?.error)),
        _ => Err(io::Error::other("the message is of an unknown kind")),
    }
}

fn samples(content: &[u8]) -> Vec<f32> {
    let (samples, _) = content.as_chunks::<4>();
    let finite = |sample: f32| if sample.is_finite() { sample } else { 0.0 };
    samples.iter().map(|bytes| finite(f32::from_le_bytes(*bytes))).collect()
}

#[cfg(test)]
mod tests {
    use super::{Message, read, write};
    use crate::error::AudioError;
    use crate::info::AudioInfo;

    #[test]
    fn messages_round_trip() {
        let info =
            AudioInfo { container: "ogg".into(), codec: "opus".into(), sample_rate: 48_000, channels: 2, seconds: 0.1 };
        let messages = [
            Message::Info(info),
            Message::Samples(vec![0.5; 16_000]),
            Message::Samples(Vec::new()),
            Message::Error(AudioError::TooLong { max_seconds: 7 }),
            Message::Error(AudioError::NotAudio),
            Message::End,
        ];
        let mut pipe = Vec::new();
        for message in &messages {
            write(&mut pipe, message).unwrap();
        }
        let mut input = pipe.as_slice();
        for message in messages {
            assert_eq!(read(&mut input).unwrap(), message);
        }
        assert!(read(&mut input).is_err(), "the end");
    }

    #[test]
    fn nothing_of_the_child_is_trusted() {
        for bad in
            [[2, 1, 0xFA, 0, 0].as_slice(), &[4, 0xFF, 0xFF, 0xFF, 0xFF], &[9, 0, 0, 0, 0], &[1, 1, 0, 0, 0, b'x']]
        {
            assert!(read(&mut &*bad).is_err(), "{bad:?}");
        }
        let mut pipe = Vec::new();
        write(&mut pipe, &Message::Samples(vec![f32::NAN, f32::INFINITY, 1.0])).unwrap();
        assert_eq!(read(&mut pipe.as_slice()).unwrap(), Message::Samples(vec![0.0, 0.0, 1.0]));
    }
}
