//! Spanish: Castilian pronunciation, with b, d and g softened between vowels.

use super::syllables::{Sound, accented, nuclei, with_stress};

/// Words without stress of their own.
const UNSTRESSED: [&str; 24] = [
    "el", "la", "los", "las", "lo", "le", "les", "me", "te", "se", "mi", "tu", "su", "nos", "de", "en", "con", "por",
    "sin", "a", "y", "o", "que", "al",
];
const UNSTRESSED_TOO: [&str; 7] = ["si", "del", "os", "mis", "tus", "sus", "e"];
/// Longer words with a weak stress.
const WEAK: [&str; 7] = ["para", "pero", "como", "cuando", "donde", "porque", "sobre"];

/// The phonemes of a word in lower case, after a sound (`None` after a pause) and before a letter.
pub fn word(letters: &[char], previous: Option<char>, next: Option<char>) -> String {
    let spelling: String = letters.iter().collect();
    if let Some(adverb) = adverb(&spelling, letters, previous) {
        return adverb;
    }
    let sounds = sounds(letters, previous, next);
    let is_unstressed = UNSTRESSED.contains(&spelling.as_str()) || UNSTRESSED_TOO.contains(&spelling.as_str());
    let primary = if is_unstressed { None } else { stressed(letters, &sounds) };
    let mut phonemes = with_stress(&sounds, primary, true);
    if WEAK.contains(&spelling.as_str()) {
        phonemes = phonemes.replace('ˈ', "ˌ");
    }
    // Stressed *ent* has an open e.
    phonemes.replace("ˈent", "ˈɛnt")
}

/// An adverb in *-mente* has two stresses: that of its adjective, and that of the ending.
fn adverb(spelling: &str, letters: &[char], previous: Option<char>) -> Option<String> {
    let stem = letters.get(..letters.len().checked_sub(5)?).filter(|_| spelling.ends_with("mente"))?;
    let sounds = sounds(stem, previous, Some('m'));
    let primary = stressed(stem, &sounds).filter(|_| nuclei(&sounds).len() > 1)?;
    Some(with_stress(&sounds, Some(primary), true) + "mˈente")
}

/// The syllable with the stress: the accent, or the last but one after a vowel, n or s, else the last.
fn stressed(letters: &[char], sounds: &[Sound]) -> Option<usize> {
    let last = nuclei(sounds).len().checked_sub(1)?;
    let penultimate = matches!(letters.last(), Some('a' | 'e' | 'i' | 'o' | 'u' | 'n' | 's'));
    Some(accented(sounds).unwrap_or(if penultimate { last.saturating_sub(1) } else { last }))
}

fn sounds(letters: &[char], previous: Option<char>, next_word: Option<char>) -> Vec<Sound> {
    let mut sounds: Vec<Sound> = Vec::new();
    let mut at = 0;
    while let Some(letter) = letters.get(at) {
        // After two consonants of which the second is r or l, i and u before a vowel are no glides.
        let mut ends = sounds.iter().rev().map(|sound| (sound.is_nucleus, sound.phonemes.as_str()));
        let after_cluster = matches!(ends.next(), Some((false, "ɾ" | "l"))) && matches!(ends.next(), Some((false, _)));
        let after_cluster = after_cluster || sounds.last().is_some_and(|sound| sound.phonemes == "r");
        let (sound, taken) = match vowel(letters, at, after_cluster) {
            Some(found) => found,
            None => {
                let last = sounds.last().and_then(|sound| sound.phonemes.chars().next_back()).or(previous);
                let (phonemes, taken) = consonant(letters, at, last, next_word, *letter);
                (Sound::consonant(phonemes), taken)
            }
        };
        if !sound.phonemes.is_empty() {
            sounds.push(sound);
        }
        at += taken;
    }
    sounds
}

fn letter(letters: &[char], at: usize) -> char {
    letters.get(at).copied().unwrap_or(' ')
}

fn is_vowel(letter: char) -> bool {
    "aeiouáéíóúü".contains(letter)
}

fn plain(vowel: char) -> char {
    match vowel {
        'á' => 'a',
        'é' => 'e',
        'í' => 'i',
        'ó' => 'o',
        'ú' | 'ü' => 'u',
        other => other,
    }
}

/// A vowel, a diphthong or a glide, and the letters that it takes.
fn vowel(letters: &[char], at: usize, after_cluster: bool) -> Option<(Sound, usize)> {
    let first = letter(letters, at);
    let second = letter(letters, at + 1);
    let third = letter(letters, at + 2);
    if first == 'y' && (second == ' ' && letters.len() == 1) {
        return Some((Sound::nucleus("i", false), 1));
    }
    if !is_vowel(first) {
        return None;
    }
    let is_weak = matches!(first, 'i' | 'u' | 'ü');
    if first == 'u' && second == 'y' && third == ' ' {
        return Some((Sound::nucleus("uj", false), 2));
    }
    if is_weak && is_vowel(second) && plain(second) != plain(first) && !matches!(second, 'í' | 'ú') {
        if after_cluster {
            let sound = if first == 'i' { Sound::consonant("i") } else { Sound::nucleus("u", false) };
            return Some((sound, 1));
        }
        return Some((Sound::consonant(if first == 'i' { "j" } else { "w" }), 1));
    }
    // A weak vowel after a strong one closes the syllable, unless it begins the next one.
    let closes = match second {
        'i' | 'u' => !is_vowel(third),
        'y' => third == ' ' || !is_vowel(third),
        _ => false,
    };
    if !is_weak && closes && !matches!(first, 'í' | 'ú') {
        let diphthong = match (plain(first), second) {
            ('a', 'u') => "W",
            ('a', _) => "I",
            ('e', 'u') => "eʊ",
            ('e', _) => "A",
            ('o', 'u') => "O",
            _ => "oɪ",
        };
        return Some((Sound::nucleus(diphthong, plain(first) != first), 2));
    }
    Some((Sound::nucleus(plain(first), plain(first) != first && first != 'ü'), 1))
}

/// The phonemes of a consonant, and the letters that it takes.
fn consonant(
    letters: &[char],
    at: usize,
    last: Option<char>,
    next_word: Option<char>,
    first: char,
) -> (&'static str, usize) {
    let second = letter(letters, at + 1);
    let is_soft = matches!(second, 'e' | 'i' | 'é' | 'í');
    let before_soft = || matches!(letter(letters, at + 2), 'e' | 'i' | 'é' | 'í');
    let after_nasal = matches!(last, Some('m' | 'n' | 'ŋ' | 'ɲ'));
    let is_hard = last.is_none() || after_nasal;
    match (first, second) {
        ('c', 'h') => ("ʧ", 2),
        ('c', _) if is_soft => ("θ", 1),
        ('c', 'c') => ("k", 1),
        ('l', 'l') => ("ʎ", 2),
        ('r', 'r') => ("r", 2),
        ('r', _) if at == 0 || matches!(last, Some('n' | 'l' | 's')) => ("r", 1),
        ('r', _) => ("ɾ", 1),
        ('q', 'u') if before_soft() => ("k", 2),
        ('q' | 'k' | 'c', _) => ("k", 1),
        ('g', 'u') if before_soft() => (if is_hard { "ɡ" } else { "ɣ" }, 2),
        ('g', _) if is_soft => ("x", 1),
        ('g', 'n' | 'd' | 'm') => ("ɡ", 1),
        ('g', _) => (if is_hard { "ɡ" } else { "ɣ" }, 1),
        ('b', 't') => ("b", 1),
        ('b' | 'v', _) => (if is_hard { "b" } else { "β" }, 1),
        ('d', ' ') => ("d", 1),
        ('d', _) => (if is_hard || !is_vowel(second) && second != 'r' { "d" } else { "ð" }, 1),
        ('h', 'i') if letter(letters, at + 2) == 'e' && at == 0 => ("ʝ", 2),
        ('h', _) => ("", 1),
        ('j', _) => ("x", 1),
        ('ñ', _) => ("ɲ", 1),
        ('n' | 'm', _) => (nasal(first, if second == ' ' { next_word.unwrap_or(' ') } else { second }), 1),
        ('x', _) => (if at == 0 { "s" } else { "ks" }, 1),
        ('y', _) => (if is_vowel(second) { "ʝ" } else { "i" }, 1),
        ('z', _) => ("θ", 1),
        ('w', _) => ("w", 1),
        ('s', _) => ("s", 1),
        ('p', 's') if at == 0 => ("", 1),
        ('p', 'h') => ("f", 2),
        ('p', _) => ("p", 1),
        ('t', _) => ("t", 1),
        ('f', _) => ("f", 1),
        ('l', _) => ("l", 1),
        ('ç', _) => ("s", 1),
        _ => ("", 1),
    }
}

/// A nasal takes the place of articulation of the consonant that follows.
fn nasal(letter: char, next: char) -> &'static str {
    match next {
        _ if letter == 'm' => "m",
        'b' | 'v' | 'p' | 'f' => "m",
        'g' | 'j' => "ŋ",
        _ => "n",
    }
}
