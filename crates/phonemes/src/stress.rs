//! Stress marks in phoneme strings: where they stand, and how a phrase weakens or strengthens them.

/// Marks the syllable with the main stress.
pub const PRIMARY: char = 'ˈ';
/// Marks a syllable with a weaker stress.
pub const SECONDARY: char = 'ˌ';

/// Whether the symbol marks stress.
pub fn is_stress(symbol: char) -> bool {
    symbol == PRIMARY || symbol == SECONDARY
}

/// Whether the symbol lengthens the vowel before it, or nasalises it.
pub fn is_length_mark(symbol: char) -> bool {
    matches!(symbol, 'ː' | '\u{303}')
}

/// Whether the symbol is a vowel or a diphthong, which Kokoro writes as one capital letter.
pub fn is_vowel(symbol: char) -> bool {
    matches!(
        symbol,
        'A' | 'I'
            | 'O'
            | 'Q'
            | 'W'
            | 'Y'
            | 'a'
            | 'e'
            | 'i'
            | 'o'
            | 'u'
            | 'y'
            | 'æ'
            | 'ɑ'
            | 'ɒ'
            | 'ɔ'
            | 'ə'
            | 'ɛ'
            | 'ɜ'
            | 'ɪ'
            | 'ʊ'
            | 'ʌ'
            | 'ᵻ'
            | 'ø'
            | 'œ'
            | 'ɐ'
            | 'ᵊ'
    )
}

/// Whether the symbol is a vowel that can carry stress in the English lexicons.
fn carries_stress(symbol: char) -> bool {
    symbol != 'ᵊ' && is_vowel(symbol)
}

/// How a word's context changes its stress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StressChange {
    /// No marks at all.
    Remove,
    /// The primary stress becomes secondary, if there is one.
    Weaken,
    /// A word without marks gets secondary stress.
    AddSecondary,
    /// The word has primary stress on its secondary or first vowel.
    RaisePrimary,
}

/// Applies a change to the phonemes of a word.
pub fn change_stress(phonemes: &str, change: StressChange) -> String {
    let has = |mark: char| phonemes.contains(mark);
    let unmarked = !has(PRIMARY) && !has(SECONDARY);
    match change {
        StressChange::Remove => phonemes.replace(is_stress, ""),
        StressChange::Weaken if has(PRIMARY) => {
            phonemes.replace(SECONDARY, "").replace(PRIMARY, SECONDARY.encode_utf8(&mut [0; 4]))
        }
        StressChange::AddSecondary if unmarked => with_mark(phonemes, SECONDARY),
        StressChange::RaisePrimary if unmarked => with_mark(phonemes, PRIMARY),
        StressChange::RaisePrimary if !has(PRIMARY) => phonemes.replace(SECONDARY, PRIMARY.encode_utf8(&mut [0; 4])),
        _ => phonemes.to_owned(),
    }
}

/// Puts the mark before the first vowel, if there is one.
fn with_mark(phonemes: &str, mark: char) -> String {
    match phonemes.find(carries_stress) {
        Some(at) => format!("{}{mark}{}", &phonemes[..at], &phonemes[at..]),
        None => phonemes.to_owned(),
    }
}
