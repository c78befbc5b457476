//! 16-bit samples.

/// The sample rate of the audio that is written; Hz. Speech models make it.
pub const ENCODER_RATE: u32 = 24_000;

/// Converts samples in ±1 to 16 bits. Greater ones are clipped, and what is no number becomes 0.
#[expect(clippy::cast_possible_truncation, reason = "the value was clamped to the range of i16")]
pub fn to_i16(samples: &[f32]) -> impl Iterator<Item = i16> + '_ {
    samples.iter().map(|sample| {
        let sample = if sample.is_nan() { 0.0 } else { *sample };
        (sample * 32_768.0).round().clamp(-32_768.0, 32_767.0) as i16
    })
}

/// Samples as bytes: signed, little-endian.
pub fn to_bytes(samples: &[f32]) -> Vec<u8> {
    to_i16(samples).flat_map(i16::to_le_bytes).collect()
}
