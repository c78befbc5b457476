//! How vocabularies write bytes: GPT-2's byte-level alphabet, and SentencePiece's pieces.

/// SentencePiece's character for a space.
pub const META_SPACE: &str = "▁";

/// GPT-2's character for a byte: printable Latin-1 maps to itself, the rest to U+0100 and up.
pub fn byte_to_char(byte: u8) -> char {
    let plain = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if plain(byte) {
        return char::from(byte);
    }
    let moved = (0..byte).filter(|&before| !plain(before)).count() as u32;
    char::from_u32(0x100 + moved).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The bytes of a token in GPT-2's alphabet; other characters are kept.
pub fn decode_byte_level(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for one in text.chars() {
        match char_to_byte(one) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(one.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

fn char_to_byte(one: char) -> Option<u8> {
    match u32::from(one) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// The bytes of a SentencePiece piece: `▁` is a space, and `<0x0A>` is a byte.
pub fn decode_piece(text: &str) -> Vec<u8> {
    match byte_fallback(text) {
        Some(byte) => vec![byte],
        None => restore_spaces(text).into_bytes(),
    }
}

/// A piece's text with `▁` replaced by spaces.
pub fn restore_spaces(text: &str) -> String {
    text.replace(META_SPACE, " ")
}

/// The byte of a byte-fallback piece such as `<0x0A>`.
pub fn byte_fallback(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::{byte_to_char, char_to_byte, decode_piece};

    #[test]
    fn the_byte_alphabet_round_trips() {
        for one in 0..=u8::MAX {
            assert_eq!(char_to_byte(byte_to_char(one)), Some(one));
        }
        assert_eq!(byte_to_char(b' '), 'Ġ');
        assert_eq!(byte_to_char(b'\n'), 'Ċ');
    }

    #[test]
    fn pieces_decode_spaces_and_bytes() {
        assert_eq!(decode_piece("▁the"), b" the");
        assert_eq!(decode_piece("<0x0A>"), b"\n");
        assert_eq!(decode_piece("<0x0>"), b"<0x0>");
    }
}
