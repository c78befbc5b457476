//! The pronunciation of one English word in its context.

use super::super::letter_to_sound::LetterToSound;
use super::super::lexicon::{Found, Lexicon};
use super::super::stress::{PRIMARY, SECONDARY, StressChange, change_stress, is_stress, is_vowel};
use super::super::symbols::is_pause;
use super::super::tagging::{Context, Tag, tag};
use super::super::word_lists::is_function_word;
use super::compounds::{joined, pieces, split_compound};
use super::inflection::{Inflection, stems, with_ending};
use super::letters::to_ascii;
use super::respelling::respelling;

/// What follows a word.
#[derive(Debug, Clone, Copy, Default)]
pub struct Following {
    /// True if the next sound is a vowel; `None` at a pause.
    pub vowel: Option<bool>,
    /// Set if the next word is *to*.
    pub to: bool,
}

impl Following {
    /// The context of the previous word: the first sound of these phonemes, if they have one.
    pub fn before(self, phonemes: &str, text: &str) -> Self {
        let first = phonemes.chars().find(|symbol| is_pause(*symbol) || symbol.is_alphabetic() && !is_stress(*symbol));
        let vowel = match first {
            Some(symbol) if is_pause(symbol) => None,
            Some(symbol) => Some(is_vowel(symbol)),
            None => self.vowel,
        };
        Self { vowel, to: text.eq_ignore_ascii_case("to") }
    }
}

/// Where a word stands.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reader<'a> {
    pub following: Following,
    pub context: Context<'a>,
    /// Set if other words of the sentence are in lower case, so that capitals stand out.
    pub among_lower_case: bool,
}

/// The lexicon, and the rules for words that it does not have.
#[derive(Clone, Copy)]
pub struct Pronouncer<'a> {
    pub lexicon: &'a Lexicon,
    pub rules: &'a LetterToSound,
    pub british: bool,
}

/// Acronyms of more letters are read as words even if they are unknown.
const MAX_SPELLED: usize = 5;

impl Pronouncer<'_> {
    /// The phonemes of a word; empty if it has no letter that English has.
    pub fn pronounce(&self, word: &str, reader: &Reader) -> String {
        let ascii = to_ascii(word);
        let word = if self.lexicon.has(word) { word } else { ascii.as_str() };
        let stress = if is_upper_case(word) {
            Some(StressChange::RaisePrimary)
        } else {
            word.contains(char::is_uppercase).then_some(StressChange::AddSecondary)
        };
        if let Some(phonemes) = self.function_word(word, stress, reader) {
            return phonemes;
        }
        if let Some(phonemes) = self.known(word, stress, reader) {
            return phonemes;
        }
        let pieces = pieces(word);
        if pieces.len() > 1 {
            return joined(&pieces, self.spoken_pieces(&pieces, reader));
        }
        self.unknown(word)
    }

    /// Letter by letter; `None` if none of them has a name. The last letter has the main stress.
    pub fn spell(&self, letters: &str) -> Option<String> {
        let names = letters.chars().filter_map(|letter| {
            match self.lexicon.get(letter.to_uppercase().collect::<String>().as_str(), Tag::Other, false) {
                Some(Found::Phonemes(name)) => Some(name),
                _ => None,
            }
        });
        let names: String = names.collect();
        if names.is_empty() {
            return None;
        }
        let weak = change_stress(&change_stress(&names, StressChange::Weaken), StressChange::AddSecondary);
        Some(match weak.rfind(SECONDARY) {
            Some(last) => format!("{}{PRIMARY}{}", &weak[..last], &weak[last + SECONDARY.len_utf8()..]),
            None => weak,
        })
    }

    /// The phonemes of the parts of a word, from the last one to the first, as in a sentence.
    fn spoken_pieces(&self, pieces: &[&str], reader: &Reader) -> Vec<String> {
        let lower: Vec<String> = pieces.iter().map(|piece| piece.to_lowercase()).collect();
        let near = |at: Option<usize>| at.and_then(|at| lower.get(at)).map_or("", String::as_str);
        let mut part = *reader;
        let mut spoken = vec![String::new(); pieces.len()];
        for (at, piece) in pieces.iter().enumerate().rev() {
            let before = [near(at.checked_sub(1)), near(at.checked_sub(2)), ""];
            part.context = Context { word: near(Some(at)), before, after: [near(at.checked_add(1)), ""] };
            let stress = piece.contains(char::is_uppercase).then_some(StressChange::AddSecondary);
            let phonemes = self.function_word(piece, stress, &part).or_else(|| self.known(piece, stress, &part));
            spoken[at] = phonemes.unwrap_or_else(|| self.unknown(piece));
            part.following = part.following.before(&spoken[at], piece);
        }
        spoken
    }

    /// Words whose vowel depends on what follows.
    fn function_word(&self, word: &str, stress: Option<StressChange>, reader: &Reader) -> Option<String> {
        let Following { vowel, to } = reader.following;
        let phonemes = match word {
            "a" | "A" => "ɐ",
            "an" | "An" => "ɐn",
            "am" if vowel.is_some() && stress.is_none() => "ɐm",
            "I" => "ˌI",
            "to" | "To" => match vowel {
                None => return None,
                Some(false) => "tə",
                Some(true) => "tʊ",
            },
            "in" | "In" if vowel.is_none() || is_particle(&reader.context) => "ˈɪn",
            "in" | "In" => "ɪn",
            "the" | "The" | "THE" if vowel == Some(true) => "ði",
            "the" | "The" | "THE" => "ðə",
            "used" | "Used" if !to => return self.looked_up("used", Tag::Other, stress, reader),
            _ => return None,
        };
        Some(phonemes.to_owned())
    }

    /// The word in the lexicon, in lower case or without its ending.
    fn known(&self, word: &str, stress: Option<StressChange>, reader: &Reader) -> Option<String> {
        let tag = if self.lexicon.is_heteronym(word) { self.tag(word, reader) } else { Tag::Other };
        if self.lexicon.has(word) {
            return self.looked_up(word, tag, stress, reader);
        }
        if is_upper_case(word) && word.chars().count() > 1 {
            return self.upper_case(word, stress, reader);
        }
        let lower = word.to_lowercase();
        if word != lower && word.chars().skip(1).all(char::is_lowercase) {
            return self.known(&lower, stress, reader);
        }
        let possessive = word.strip_suffix("s'").map(|stem| format!("{stem}'s"));
        if let Some(phonemes) = possessive.and_then(|word| self.looked_up(&word, tag, stress, reader)) {
            return Some(phonemes);
        }
        stems(word).find_map(|(inflection, stem)| self.inflected(inflection, &stem, stress, reader))
    }

    fn inflected(
        &self,
        inflection: Inflection,
        stem: &str,
        stress: Option<StressChange>,
        reader: &Reader,
    ) -> Option<String> {
        let is_acronym = is_upper_case(stem) && stem.len() > 1;
        if !self.lexicon.has(stem) && !is_acronym {
            return None;
        }
        let stem_tag =
            if self.lexicon.is_heteronym(stem) { inflection.stem_tag(tag(&reader.context)) } else { Tag::Other };
        let stem = match self.looked_up(stem, stem_tag, stress, reader) {
            Some(stem) => stem,
            None => self.upper_case(stem, stress, reader)?,
        };
        with_ending(&stem, inflection, self.british)
    }

    fn upper_case(&self, word: &str, stress: Option<StressChange>, reader: &Reader) -> Option<String> {
        let lower = word.to_lowercase();
        let letters = word.chars().filter(|c| c.is_alphabetic()).count();
        let reads_as_word = match self.lexicon.get(&lower, Tag::Other, false) {
            Some(Found::Phonemes(phonemes)) if self.lexicon.has_gold(&lower) => {
                !reader.among_lower_case || phonemes.contains(PRIMARY) || is_function_word(&lower)
            }
            Some(_) => letters > MAX_SPELLED || !reader.among_lower_case,
            None => false,
        };
        if reads_as_word {
            return self.known(&lower, stress, reader);
        }
        let has_ending = || stems(&lower).any(|(_, stem)| self.lexicon.has_gold(&stem));
        if letters > 4 && has_ending() {
            return self.known(&lower, stress, reader);
        }
        (letters <= MAX_SPELLED || !is_pronounceable(&lower)).then(|| self.spell(word)).flatten()
    }

    fn looked_up(&self, word: &str, tag: Tag, stress: Option<StressChange>, reader: &Reader) -> Option<String> {
        match self.lexicon.get(word, tag, reader.following.vowel.is_none())? {
            Found::Spelled => self.spell(word),
            Found::Phonemes(phonemes) => {
                Some(stress.map_or_else(|| phonemes.to_owned(), |stress| change_stress(phonemes, stress)))
            }
        }
    }

    fn tag(&self, word: &str, reader: &Reader) -> Tag {
        let stands_out = is_upper_case(word) && word.len() > 1 && reader.among_lower_case;
        if stands_out { Tag::Noun } else { tag(&reader.context) }
    }

    /// A word that is read like other words and letters.
    fn respelled(&self, words: &str) -> Option<String> {
        let parts: Vec<&str> = words.split(' ').collect();
        let spoken = parts.iter().map(|part| match self.lexicon.get(part, Tag::Verb, false) {
            _ if is_upper_case(part) => self.spell(part),
            Some(Found::Phonemes(phonemes)) => Some(phonemes.to_owned()),
            _ => self.rules.pronounce(part),
        });
        Some(joined(&parts, spoken.collect::<Option<_>>()?))
    }

    fn unknown(&self, word: &str) -> String {
        let lower = word.to_lowercase();
        if let Some(compound) = split_compound(&lower, self.lexicon, self.british) {
            return compound;
        }
        if let Some(phonemes) = respelling(&lower).and_then(|words| self.respelled(words)) {
            return phonemes;
        }
        let is_acronym = word == lower && lower.len() < 4;
        let is_spellable =
            is_acronym || lower.len() < 2 || (lower.len() < 5 && !lower.contains(['a', 'e', 'i', 'o', 'u', 'y']));
        if is_spellable && let Some(letters) = self.spell(&lower) {
            return letters;
        }
        self.rules.pronounce(&lower).unwrap_or_default()
    }
}

/// *come in*, *log in*
fn is_particle(context: &Context) -> bool {
    const VERBS: [&str; 30] = [
        "come", "came", "coming", "log", "logged", "sign", "signed", "check", "checked", "dive", "plug", "tune",
        "move", "moved", "walk", "walked", "went", "go", "get", "got", "bring", "broke", "drop", "give", "jump",
        "join", "let", "step", "stepped", "fit",
    ];
    VERBS.contains(&context.before[0]) && matches!(context.after[0], "" | "and" | "with" | "to" | "on" | "from")
}

fn is_upper_case(word: &str) -> bool {
    word.contains(char::is_uppercase) && !word.contains(char::is_lowercase)
}

/// True if the word has at most three consonants in a row.
fn is_pronounceable(lower: &str) -> bool {
    lower.split(['a', 'e', 'i', 'o', 'u', 'y']).all(|consonants| consonants.len() < 4)
}
