//! Base62 encoding of big-endian numbers with fixed width.

const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// `number` in exactly `width` digits; it must fit.
pub(super) fn encode(number: &[u8], width: usize) -> String {
    let mut rest = number.to_vec();
    let mut text: Vec<u8> = (0..width).map(|_| DIGITS[usize::from(divide(&mut rest))]).collect();
    text.reverse();
    text.into_iter().map(char::from).collect()
}

/// Divides in place by 62 and returns the remainder.
fn divide(number: &mut [u8]) -> u8 {
    let remainder = number.iter_mut().fold(0_u32, |carry, byte| {
        let value = carry << 8 | u32::from(*byte);
        *byte = (value / 62) as u8;
        value % 62
    });
    remainder as u8
}

/// The value of a digit.
pub(super) fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'A'..=b'Z' => Some(byte - b'A' + 10),
        b'a'..=b'z' => Some(byte - b'a' + 36),
        _ => None,
    }
}

/// Decodes a number; `None` for invalid characters or overflow.
pub(super) fn decode(text: &[u8]) -> Option<u128> {
    text.iter().try_fold(0_u128, |number, byte| number.checked_mul(62)?.checked_add(u128::from(digit(*byte)?)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_round_trip_through_text(number: u128) {
            let text = super::encode(&number.to_be_bytes(), 22);
            prop_assert_eq!(text.len(), 22);
            prop_assert_eq!(super::decode(text.as_bytes()), Some(number));
        }
    }
}
