//! Where the parts of a spoken text come from: the engine, or an upstream model.

use crate::calls::errors;
use crate::calls::upstream::byte_stream::ByteStream;
use crate::calls::upstream::errors::from_failure;
use crate::engine::{Failure, SpeechParts, SpokenPart};
use crate::error::{Code, Error, Result};

/// Bytes of a sample of an upstream model: 16 bits.
const SAMPLE_BYTES: usize = 2;

/// The parts of a spoken text.
pub enum PartSource {
    Engine(SpeechParts),
    Upstream(PcmParts),
}

/// Samples from an upstream model, in the order in which they arrive.
pub struct PcmParts {
    id: String,
    bytes: ByteStream,
    /// The first half of a sample.
    half: Option<u8>,
}

impl PcmParts {
    /// `id`: the model's ID. `bytes`: 16-bit little-endian mono samples at the rate of the encoders.
    pub fn new(id: String, bytes: ByteStream) -> Self {
        Self { id, bytes, half: None }
    }

    async fn next(&mut self) -> Option<Result<SpokenPart>> {
        let bytes = match self.bytes.next().await? {
            Ok(bytes) => bytes,
            Err(failure) => return Some(Err(from_failure(&self.id, failure))),
        };
        let all: Vec<u8> = self.half.take().into_iter().chain(bytes).collect();
        let (pairs, rest) = all.as_chunks::<SAMPLE_BYTES>();
        self.half = rest.first().copied();
        let sample = |pair: &[u8; SAMPLE_BYTES]| f32::from(i16::from_le_bytes(*pair)) / 32768.0;
        Some(Ok(SpokenPart { samples: pairs.iter().map(sample).collect() }))
    }
}

impl PartSource {
    /// The next part; `None` when the whole text is spoken. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<SpokenPart>> {
        match self {
            Self::Engine(parts) => Some(parts.next().await?.map_err(speech_failure)),
            Self::Upstream(parts) => parts.next().await,
        }
    }

    /// Cancels what is not spoken yet. Returns the samples that were not received.
    pub fn close(&mut self) -> u64 {
        match self {
            Self::Engine(parts) => parts.close(),
            Self::Upstream(parts) => (parts.bytes.close() / SAMPLE_BYTES) as u64,
        }
    }
}

fn speech_failure(failure: Failure) -> Error {
    match failure {
        Failure::OutOfMemory => Error::new(
            Code::Overloaded,
            "The memory for speech is in use by other models. Try again when their requests have ended; the operator can unload a model or give the server more with --memory.",
        )
        .retry_after(errors::MEMORY_FREED),
        other => errors::from_failure(other),
    }
}
