//! The symbols that Kokoro reads: phonemes, stress marks and punctuation (the vocabulary of `config.json` of Kokoro-82M).

const PUNCTUATION: &str = ";:,.!?—…\"()“”";

/// Whether the symbol is a phoneme or a mark that belongs to one: stress, length, nasality or intonation.
pub fn is_symbol(symbol: char) -> bool {
    matches!(
        symbol,
        'A' | 'I' | 'O' | 'Q' | 'S' | 'T' | 'W' | 'Y' | 'ᵊ' | 'a' | 'b' | 'c' | 'd' | 'e' | 'f' | 'h' | 'i'
            | 'j' | 'k' | 'l' | 'm' | 'n' | 'o' | 'p' | 'q' | 'r' | 's' | 't' | 'u' | 'v' | 'w' | 'x' | 'y'
            | 'z' | 'ɑ' | 'ɐ' | 'ɒ' | 'æ' | 'β' | 'ɔ' | 'ɕ' | 'ç' | 'ɖ' | 'ð' | 'ʤ' | 'ə' | 'ɚ' | 'ɛ' | 'ɜ'
            | 'ɟ' | 'ɡ' | 'ɥ' | 'ɨ' | 'ɪ' | 'ʝ' | 'ɯ' | 'ɰ' | 'ŋ' | 'ɳ' | 'ɲ' | 'ɴ' | 'ø' | 'ɸ' | 'θ' | 'œ'
            | 'ɹ' | 'ɾ' | 'ɻ' | 'ʁ' | 'ɽ' | 'ʂ' | 'ʃ' | 'ʈ' | 'ʧ' | 'ʊ' | 'ʋ' | 'ʌ' | 'ɣ' | 'ɤ' | 'χ' | 'ʎ'
            | 'ʒ' | 'ʔ' | 'ˈ' | 'ˌ' | 'ː' | 'ʰ' | 'ʲ' | '↓' | '→' | '↗' | '↘' | 'ᵻ' | 'ʣ' | 'ʥ' | 'ʦ' | 'ʨ'
            | 'ᵝ' | 'ꭧ' | '\u{303}'
    )
}

/// Whether the symbol is punctuation that the model reads.
pub fn is_punctuation(symbol: char) -> bool {
    PUNCTUATION.contains(symbol)
}

/// Whether the punctuation makes a pause. Quotes and parentheses do not.
pub fn is_pause(symbol: char) -> bool {
    is_punctuation(symbol) && !"\"()“”".contains(symbol)
}
