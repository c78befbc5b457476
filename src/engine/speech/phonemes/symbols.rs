//! The symbols that Kokoro reads: phonemes, stress marks and punctuation (the vocabulary of `config.json` of Kokoro-82M).

/// Phonemes, stress marks, length marks and arrows for intonation.
const PHONEMES: &str = "AIOQSTWYᵊabcdefhijklmnopqrstuvwxyzɑɐɒæβɔɕçɖðʤəɚɛɜɟɡɥɨɪʝɯɰŋɳɲɴøɸθœɹɾɻʁɽʂʃʈʧʊʋʌɣɤχʎʒʔˈˌːʰʲ↓→↗↘ᵻʣʥʦʨᵝꭧ\u{303}";
const PUNCTUATION: &str = ";:,.!?—…\"()“”";

/// Whether the symbol is a phoneme or a mark that belongs to one.
pub fn is_symbol(symbol: char) -> bool {
    PHONEMES.contains(symbol)
}

/// Whether the symbol is punctuation that the model reads.
pub fn is_punctuation(symbol: char) -> bool {
    PUNCTUATION.contains(symbol)
}

/// Whether the punctuation makes a pause. Quotes and parentheses do not.
pub fn is_pause(symbol: char) -> bool {
    is_punctuation(symbol) && !"\"()“”".contains(symbol)
}
