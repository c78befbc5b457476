//! Italian, with double consonants as espeak-ng writes them.

use super::italian_stress::{has_stressed_i, is_unstressed, stressed};
use super::syllables::{Sound, nuclei, with_stress};

/// The phonemes of a word in lower case.
pub fn word(letters: &[char]) -> String {
    let spelling: String = letters.iter().collect();
    let sounds = sounds(letters);
    let primary = if is_unstressed(&spelling) { None } else { stressed(&spelling, &sounds) };
    let ending_is_closed = spelling.ends_with("mente") || spelling.ends_with("mento") || spelling.ends_with("menti");
    let phonemes = with_stress(&with_vowel_quality(sounds, primary), primary, false);
    if ending_is_closed { phonemes.replace("mˈɛnt", "mˈent") } else { tapped(final_diphthong(phonemes)) }
}

/// Stressed vowels before a final i.
fn final_diphthong(phonemes: String) -> String {
    let endings = [("ˈaɪ", "ˈaːɪ"), ("ˈeɪ", "ˈɛi"), ("ˈoɪ", "ˈɔi"), ("erˈemo", "erˈɛmo"), ("irˈemo", "irˈɛmo")];
    let found = endings.iter().find_map(|(ending, open)| Some(format!("{}{open}", phonemes.strip_suffix(ending)?)));
    found.unwrap_or(phonemes)
}

/// Between vowels before a final stressed vowel, r is a tap.
fn tapped(phonemes: String) -> String {
    let endings = [("rˈa", "ɾˈa"), ("rˈɔ", "ɾˈɔ")];
    let found = endings.iter().find_map(|(ending, tap)| {
        let before = phonemes.strip_suffix(ending)?;
        before.ends_with(['a', 'e', 'i', 'ɪ']).then(|| format!("{before}{tap}"))
    });
    found.unwrap_or(phonemes)
}

/// Unstressed i and u are lax at certain places; stressed e and o are open in closed syllables before two consonants.
fn with_vowel_quality(mut sounds: Vec<Sound>, primary: Option<usize>) -> Vec<Sound> {
    let nuclei = nuclei(&sounds);
    for (syllable, at) in nuclei.iter().enumerate() {
        let is_last = at + 1 == sounds.len();
        let closed = sounds.get(at + 1).is_some_and(|next| !next.is_nucleus)
            && sounds
                .get(at + 2)
                .is_some_and(|next| !next.is_nucleus && !matches!(next.phonemes.as_str(), "r" | "j" | "w"));
        let stressed = Some(syllable) == primary;
        let closed = closed || sounds.get(at + 1).is_some_and(|next| matches!(next.phonemes.as_str(), "S" | "bː"));
        let vowel = sounds[*at].phonemes.as_str();
        let quality = match vowel {
            "i" if is_last && !stressed && nuclei.len() > 1 => "ɪ",
            "i" if is_last && primary.is_none() => "ɪ",
            "u" if !stressed => "ʊ",
            "e" if stressed && closed => "ɛ",
            "o" if stressed && (closed || sounds[*at].has_accent) => "ɔ",
            other => other,
        };
        sounds[*at].phonemes = quality.to_owned();
    }
    sounds
}

fn letter(letters: &[char], at: usize) -> char {
    letters.get(at).copied().unwrap_or(' ')
}

fn plain(vowel: char) -> char {
    match vowel {
        'à' | 'á' => 'a',
        'è' | 'é' => 'e',
        'ì' | 'í' | 'î' => 'i',
        'ò' | 'ó' => 'o',
        'ù' | 'ú' => 'u',
        other => other,
    }
}

fn is_vowel(letter: char) -> bool {
    "aeiou".contains(plain(letter))
}

fn is_front(letter: char) -> bool {
    matches!(plain(letter), 'e' | 'i')
}

fn sounds(letters: &[char]) -> Vec<Sound> {
    let mut sounds = Vec::new();
    let mut at = 0;
    while at < letters.len() {
        let (sound, taken) = if is_vowel(letters[at]) { vowel(letters, at) } else { consonant(letters, at) };
        if !sound.phonemes.is_empty() {
            sounds.push(sound);
        }
        at += taken.max(1);
    }
    sounds
}

fn vowel(letters: &[char], at: usize) -> (Sound, usize) {
    let first = letters[at];
    let next = letter(letters, at + 1);
    let before = at.checked_sub(1).map_or(' ', |before| letter(letters, before));
    let is_last_pair = at + 2 == letters.len();
    // Before a vowel, i and u are glides: after most consonants, but not in a final *-io*, *-ia*.
    let i_glide = first == 'i'
        && is_vowel(next)
        && plain(next) != 'i'
        && !(is_last_pair && plain(next) == next && before != ' ' && at > 1);
    // The i of a final -io or -ia is spoken, but it is no syllable that counts for the stress.
    let spelling: String = letters.iter().collect();
    let stressed_i = has_stressed_i(&spelling);
    if first == 'i' && is_last_pair && matches!(next, 'a' | 'o' | 'e') && !stressed_i {
        return (Sound::consonant("i"), 1);
    }
    if i_glide
        && !"rvl".contains(before)
        && !(before == 'z' && next == 'o' && letter(letters, at + 2) == 'n' && at + 4 == letters.len())
    {
        return (Sound::consonant("j"), 1);
    }
    if first == 'u' && is_vowel(next) && plain(next) != 'u' && (before == ' ' || before == 'q' || before == 'g') {
        return (Sound::consonant("w"), 1);
    }
    let plain = plain(first);
    if first == 'é' {
        return (Sound::nucleus("e", true), 1);
    }
    if first == 'è' {
        return (Sound::nucleus("ɛ", true), 1);
    }
    (Sound::nucleus(plain, plain != first), 1)
}

/// A consonant or double consonant, and the letters that it takes.
fn consonant(letters: &[char], at: usize) -> (Sound, usize) {
    let (phonemes, taken) = group(letters, at).unwrap_or_else(|| single(letters, at));
    (Sound::consonant(phonemes), taken)
}

/// Sounds that are written with several letters.
fn group(letters: &[char], at: usize) -> Option<(&'static str, usize)> {
    let [first, second, third, fourth] = [0, 1, 2, 3].map(|offset| letter(letters, at + offset));
    // An i after a soft consonant is not spoken before another vowel.
    let silent_i =
        |offset: usize| usize::from(letter(letters, at + offset) == 'i' && is_vowel(letter(letters, at + offset + 1)));
    Some(match (first, second) {
        ('g', 'n') => ("ɲ", 2),
        ('g', 'l') if third == 'i' && is_vowel(fourth) => ("ʎ", 3),
        ('g', 'l') if third == 'i' => ("ʎ", 2),
        ('s', 'c') if is_front(third) => ("ʃ", 2 + silent_i(2)),
        ('c', 'c') if is_front(third) => ("ʧː", 2 + silent_i(2)),
        ('g', 'g') if is_front(third) => ("ʤː", 2 + silent_i(2)),
        ('c', 'c') if third == 'h' => ("kː", 3),
        ('g', 'g') if third == 'h' => ("ɡː", 3),
        ('c', 'c') => ("kː", 2),
        ('g', 'g') => ("ɡː", 2),
        ('c', 'q') => ("k", 2),
        ('c' | 'k', 'h') => ("k", 2),
        ('g', 'h') => ("ɡ", 2),
        ('c', _) if is_front(second) => ("ʧ", 1 + silent_i(1)),
        ('g', _) if is_front(second) => ("ʤ", 1 + silent_i(1)),
        ('z', 'z') if at.checked_sub(1).is_some_and(|before| letter(letters, before) == 'i') => ("ʣː", 2),
        ('z', 'z') => ("ʦː", 2),
        ('s', 's') => ("S", 2),
        ('r', 'r') => ("rɾ", 2),
        ('p', 'p') => ("pː", 2),
        ('t', 't') => ("tː", 2),
        ('b', 'b') => ("bː", 2),
        ('d', 'd') => ("dː", 2),
        _ => return None,
    })
}

fn single(letters: &[char], at: usize) -> (&'static str, usize) {
    let next = letter(letters, at + 1);
    let before = at.checked_sub(1).map_or(' ', |before| letter(letters, before));
    let phonemes = match letters[at] {
        's' if is_vowel(before) && is_vowel(next) => "z",
        's' if "bdglmnrv".contains(next) => "z",
        's' => "s",
        'z' if at == 0 => "ʣ",
        'z' => "ʦ",
        'c' | 'q' | 'k' => "k",
        'g' => "ɡ",
        'n' if next == 'g' && letter(letters, at + 2) != 'n' => "ŋ",
        'n' => "n",
        'r' => "r",
        'j' | 'y' => "j",
        'w' => "w",
        'x' => "ks",
        'b' => "b",
        'd' => "d",
        'f' => "f",
        'l' => "l",
        'm' => "m",
        'p' => "p",
        't' => "t",
        'v' => "v",
        _ => "",
    };
    (phonemes, 1)
}
