//! Vectors in fewer bits.
//!
//! Cohere's models are calibrated for their own quantization. This one needs no calibration: a bit is the sign of a component,
//! and a byte is relative to the largest component of its vector, so that cosine similarities are kept.
//!
//! Dot products are not kept. A calibration for any model is impossible.

/// Each component as 127 times its ratio to the largest of the vector, rounded.
pub fn int8(vector: &[f32]) -> Vec<i8> {
    let largest = vector.iter().fold(0f32, |largest, component| largest.max(component.abs()));
    if largest == 0. {
        return vec![0; vector.len()];
    }
    #[expect(clippy::cast_possible_truncation, reason = "the quotient is from -127 to 127")]
    let quantize = |component: &f32| (component / largest * 127.).round() as i8;
    vector.iter().map(quantize).collect()
}

/// [`int8`] plus 128.
pub fn uint8(vector: &[f32]) -> Vec<u8> {
    int8(vector).into_iter().map(|value| value.cast_unsigned() ^ 0x80).collect()
}

/// One bit for each component, 1 if it is positive; eight in a byte, the first in its highest bit.
pub fn ubinary(vector: &[f32]) -> Vec<u8> {
    let byte = |components: &[f32]| {
        components.iter().zip((0..8).rev()).map(|(component, bit)| u8::from(*component > 0.) << bit).sum()
    };
    vector.chunks(8).map(byte).collect()
}

/// [`ubinary`] minus 128.
pub fn binary(vector: &[f32]) -> Vec<i8> {
    ubinary(vector).into_iter().map(|byte| (byte ^ 0x80).cast_signed()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_keep_directions_and_bits_keep_signs() {
        let vector = [0.5, -0.25, 0., 0.1, -1., 0.7, 0.2, -0.3, 0.1];
        assert_eq!(int8(&vector), [64, -32, 0, 13, -127, 89, 25, -38, 13]);
        assert_eq!(uint8(&vector), [192, 96, 128, 141, 1, 217, 153, 90, 141]);
        assert_eq!(ubinary(&vector), [0b1001_0110, 0b1000_0000]);
        assert_eq!(binary(&vector), [22, 0]);
        assert_eq!(int8(&[0., 0.]), [0, 0]);
    }
}
