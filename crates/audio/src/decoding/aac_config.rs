//! The configuration of AAC (ISO/IEC 14496-3, 1.6.2.1).
//!
//! The decoder knows the low-complexity profile. A stream of the high-efficiency profiles contains such a stream of half
//! the sample rate, with the upper half of the spectrum (and the second channel) described beside it. The half that is
//! there has all that matters of speech.

/// Audio object types.
const LOW_COMPLEXITY: u32 = 2;
const SPECTRAL_BAND_REPLICATION: u32 = 5;
const PARAMETRIC_STEREO: u32 = 29;
/// The index of a sample rate that is spelled out.
const OTHER_RATE: u32 = 15;

/// Turns the configuration of a high-efficiency stream into that of the low-complexity stream inside it. `None` if it is
/// of another profile.
pub fn low_complexity(config: &[u8]) -> Option<[u8; 2]> {
    let mut bits = config.iter().flat_map(|byte| (0..8).rev().map(move |shift| u32::from(byte >> shift & 1)));
    let mut read = |count: usize| {
        let bits: Vec<u32> = bits.by_ref().take(count).collect();
        (bits.len() == count).then(|| bits.iter().fold(0, |value, bit| value << 1 | bit))
    };
    let (object_type, rate, channels) = (read(5)?, read(4)?, read(4)?);
    if rate == OTHER_RATE {
        return None;
    }
    match object_type {
        LOW_COMPLEXITY => {}
        SPECTRAL_BAND_REPLICATION | PARAMETRIC_STEREO => {
            // The rate with both halves, and the profile of the lower one.
            if read(4)? == OTHER_RATE {
                read(24)?;
            }
            if read(5)? != LOW_COMPLEXITY {
                return None;
            }
        }
        _ => return None,
    }
    // Frames of 960 samples.
    if read(1)? != 0 {
        return None;
    }
    // The three bits after these say: frames of 1024 samples, no core coder, no extension.
    u16::try_from(LOW_COMPLEXITY << 11 | rate << 7 | channels << 3).ok().map(u16::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::low_complexity;

    #[test]
    fn the_inner_stream_of_each_profile_is_found() {
        // Low complexity, 44.1 kHz, stereo.
        assert_eq!(low_complexity(&[0x12, 0x10]), Some([0x12, 0x10]));
        // The same at 22.05 kHz, with the extension that is told after it.
        assert_eq!(low_complexity(&[0x13, 0x90, 0x56, 0xE5, 0xA0]), Some([0x13, 0x90]));
        // Spectral band replication told first: 24 kHz, mono, to 48 kHz.
        assert_eq!(low_complexity(&[0x2B, 0x09, 0x88]), Some([0x13, 0x08]));
        // Extended high-efficiency AAC (USAC, type 42).
        assert_eq!(low_complexity(&[0xF9, 0x46, 0x40]), None);
        assert_eq!(low_complexity(&[]), None);
    }
}
