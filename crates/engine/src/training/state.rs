//! The state of a training between two steps, as bytes. A training that resumes from it ends with the same adapter.

use serde::{Deserialize, Serialize};

use outpost_models::training::{AdamW, LoraParameters};

/// Begins each state; the last byte is the version.
const MAGIC: &[u8; 8] = b"OUTLORA\x01";
const MAX_HEADER: usize = 1 << 20;

/// The part of the state besides the numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Steps that were taken.
    pub step: u32,
    /// Tokens that were trained on.
    pub tokens: u64,
    /// Max tokens that are computed at once. It must not change, because the order of sums would.
    pub micro_batch: usize,
    /// Identifies the base, the options and the examples.
    pub fingerprint: String,
}

/// Encodes a state. The optimizer's steps are those of `progress`.
pub fn encode(progress: &Progress, parameters: &LoraParameters, optimizer: &AdamW) -> Result<Vec<u8>, String> {
    let header = serde_json::to_vec(progress).map_err(|error| error.to_string())?;
    let length = u32::try_from(header.len()).map_err(|error| error.to_string())?;
    let floats = [&parameters.values, &optimizer.means, &optimizer.squares];
    let mut bytes = Vec::with_capacity(12 + header.len() + 12 * parameters.values.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&header);
    floats.into_iter().flatten().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
    Ok(bytes)
}

/// The max tokens that the training of a state computes at once.
pub fn micro_batch(bytes: &[u8]) -> Result<usize, String> {
    split(bytes).map(|(progress, _)| progress.micro_batch)
}

/// Decodes a state into `parameters`, which have the shape of the adapter.
pub fn decode(bytes: &[u8], parameters: &mut LoraParameters) -> Result<(Progress, AdamW), String> {
    let (progress, floats) = split(bytes)?;
    let count = parameters.values.len();
    if floats.len() != 12 * count {
        return Err("the saved state of the training is of another adapter".to_owned());
    }
    let mut values = floats.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    let mut optimizer = AdamW { steps: progress.step, ..AdamW::new(count) };
    for target in [&mut parameters.values, &mut optimizer.means, &mut optimizer.squares] {
        target.iter_mut().zip(&mut values).for_each(|(target, value)| *target = value);
    }
    Ok((progress, optimizer))
}

/// The header of a state, and its numbers.
fn split(bytes: &[u8]) -> Result<(Progress, &[u8]), String> {
    let damaged = || "the saved state of the training is damaged".to_owned();
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(damaged)?;
    let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(damaged)?;
    let length = u32::from_le_bytes(*length) as usize;
    let (header, floats) = rest.split_at_checked(length).filter(|_| length <= MAX_HEADER).ok_or_else(damaged)?;
    Ok((serde_json::from_slice(header).map_err(|_| damaged())?, floats))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters() -> LoraParameters {
        LoraParameters { rank: 1, alpha: 2., modules: Vec::new(), values: vec![0.; 3] }
    }

    #[test]
    fn a_state_is_decoded_as_it_was() {
        let progress = Progress { step: 5, tokens: 1234, micro_batch: 64, fingerprint: "base".to_owned() };
        let before = LoraParameters { values: vec![1., -2.5, 3e-9], ..parameters() };
        let optimizer = AdamW { steps: 5, means: vec![0.1, 0.2, 0.3], squares: vec![4., 5., 6.] };
        let bytes = encode(&progress, &before, &optimizer).unwrap();
        let mut after = parameters();
        assert_eq!(decode(&bytes, &mut after), Ok((progress, optimizer)));
        assert_eq!(after.values, before.values);
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut], &mut after).is_err());
        }
        assert!(decode(&bytes, &mut LoraParameters { values: vec![0.; 4], ..parameters() }).is_err());
    }
}
