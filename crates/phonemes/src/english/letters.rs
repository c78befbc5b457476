//! Letters that English does not have, and what is read for them.

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

const GREEK: [(char, &str); 25] = [
    ('α', "alpha"),
    ('β', "beta"),
    ('γ', "gamma"),
    ('δ', "delta"),
    ('ε', "epsilon"),
    ('ζ', "zeta"),
    ('η', "eta"),
    ('θ', "theta"),
    ('ι', "iota"),
    ('κ', "kappa"),
    ('λ', "lambda"),
    ('μ', "mu"),
    ('ν', "nu"),
    ('ξ', "xi"),
    ('ο', "omicron"),
    ('π', "pi"),
    ('ρ', "rho"),
    ('σ', "sigma"),
    ('ς', "sigma"),
    ('τ', "tau"),
    ('υ', "upsilon"),
    ('φ', "phi"),
    ('χ', "chi"),
    ('ψ', "psi"),
    ('ω', "omega"),
];

/// The word with letters that English has: without accents, and with the names of Greek letters, which hyphens separate.
pub fn to_ascii(word: &str) -> String {
    let letters: Vec<char> = word.nfd().filter(|letter| !is_combining_mark(*letter)).collect();
    let mut ascii = String::new();
    for (at, letter) in letters.iter().enumerate() {
        let next = letters.get(at + 1);
        let lower = letter.to_lowercase().next().unwrap_or(*letter);
        if letter.is_ascii() {
            ascii.push(*letter);
        } else if let Some((_, name)) = GREEK.iter().find(|(greek, _)| *greek == lower) {
            if ascii.ends_with(|before: char| before.is_ascii_alphabetic()) {
                ascii.push('-');
            }
            ascii.push_str(name);
            if next.is_some_and(|next| next.is_alphabetic()) {
                ascii.push('-');
            }
        } else if let Some(latin) = latin(lower) {
            let is_title = next.is_some_and(|next| next.is_lowercase());
            match letter.is_uppercase() {
                true if is_title => ascii.push_str(&capitalized(latin)),
                true => ascii.push_str(&latin.to_uppercase()),
                false => ascii.push_str(latin),
            }
        }
    }
    ascii
}

/// A letter of another Latin alphabet, in lower case, as English spells it.
fn latin(letter: char) -> Option<&'static str> {
    Some(match letter {
        'ß' => "ss",
        'æ' => "ae",
        'œ' => "oe",
        'ø' => "o",
        'ł' => "l",
        'đ' | 'ð' => "d",
        'þ' => "th",
        'ı' => "i",
        'ħ' => "h",
        'ŋ' => "ng",
        'ŧ' => "t",
        _ => return None,
    })
}

fn capitalized(letters: &str) -> String {
    let (first, rest) = letters.split_at(1);
    first.to_uppercase() + rest
}

#[cfg(test)]
mod tests {
    use super::to_ascii;

    #[test]
    fn foreign_letters_are_replaced() {
        let words = ["Æsir", "ÆON", "Œuvre", "Þór", "GROẞ", "Étude", "Łódź", "Ω", "α-helix", "Δt", "αβ", "TGF-β"];
        let ascii = ["Aesir", "AEON", "Oeuvre", "Thor", "GROSS", "Etude", "Lodz", "omega", "alpha-helix", "delta-t"];
        let ascii = ascii.into_iter().chain(["alpha-beta", "TGF-beta"]);
        assert!(words.into_iter().map(to_ascii).eq(ascii), "{:?}", words.map(to_ascii));
    }
}
