//! Reads the lexicons that come with a model: JSON objects of words and pronunciations, in the format of misaki.
//!
//! The gold lexicon is checked by hand, the silver one is generated. A pronunciation is a string, or an object of strings by
//! part of speech (`NOUN`, `VERB`, …). The part `None` holds before a pause. `null` means that the word is spelled.

use std::collections::HashMap;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::error::LexiconError;
use super::symbols::is_symbol;
use super::tagging::Tag;

/// The largest file that is read, in bytes.
const MAX_BYTES: usize = 32 << 20;
const MAX_WORDS: usize = 1_000_000;
/// The longest word and the longest pronunciation, in characters.
const MAX_CHARACTERS: usize = 100;

/// The words of one language.
#[derive(Default)]
pub struct Lexicon {
    gold: HashMap<Box<str>, Entry>,
    silver: HashMap<Box<str>, Box<str>>,
}

enum Entry {
    One(Box<str>),
    ByTag(Box<[(Tag, Option<Box<str>>)]>),
}

/// An entry as the JSON has it.
enum JsonEntry {
    One(String),
    ByTag(HashMap<String, Option<String>>),
}

impl<'de> Deserialize<'de> for JsonEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntryVisitor;
        impl<'de> Visitor<'de> for EntryVisitor {
            type Value = JsonEntry;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("a pronunciation, or an object of pronunciations by part of speech")
            }

            fn visit_str<E: serde::de::Error>(self, phonemes: &str) -> Result<JsonEntry, E> {
                Ok(JsonEntry::One(phonemes.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<JsonEntry, A::Error> {
                HashMap::deserialize(MapAccessDeserializer::new(map)).map(JsonEntry::ByTag)
            }
        }
        deserializer.deserialize_any(EntryVisitor)
    }
}

/// What the lexicon says about a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found<'a> {
    Phonemes(&'a str),
    /// The word is read letter by letter.
    Spelled,
}

impl Lexicon {
    /// Reads a gold lexicon and, if the model has one, a silver lexicon.
    pub fn from_json(gold: &[u8], silver: Option<&[u8]>) -> Result<Self, LexiconError> {
        let mut lexicon = Self::default();
        for (word, entry) in parse(gold)? {
            let entry = Entry::new(&word, entry)?;
            lexicon.gold.insert(word.into(), entry);
        }
        for (word, entry) in silver.map(parse).transpose()?.unwrap_or_default() {
            if let Entry::One(phonemes) = Entry::new(&word, entry)? {
                lexicon.silver.insert(word.into(), phonemes);
            }
        }
        Ok(lexicon)
    }

    /// The words of the gold lexicon that are written in lower case or with one capital, with their usual pronunciation.
    pub fn words(&self) -> impl Iterator<Item = (&str, &str)> {
        let ordinary = |word: &str| !word.chars().skip(1).any(char::is_uppercase);
        self.gold
            .iter()
            .filter(move |(word, _)| ordinary(word))
            .filter_map(|(word, entry)| Some((&**word, entry.usual()?)))
    }

    /// Whether the gold lexicon has the word in this spelling, or with the other case of its first letter.
    pub fn has_gold(&self, word: &str) -> bool {
        self.gold_entry(word).is_some()
    }

    /// Whether the word is in one of the lexicons.
    pub fn has(&self, word: &str) -> bool {
        self.has_gold(word) || self.silver_entry(word).is_some()
    }

    /// The pronunciation of a word by its part of speech, or before a pause.
    pub fn get(&self, word: &str, tag: Tag, before_pause: bool) -> Option<Found<'_>> {
        match self.gold_entry(word) {
            Some(entry) => Some(entry.get(tag, before_pause)),
            None => self.silver_entry(word).map(Found::Phonemes),
        }
    }

    /// Whether the pronunciation of the word depends on its part of speech.
    pub fn is_heteronym(&self, word: &str) -> bool {
        matches!(self.gold_entry(word), Some(Entry::ByTag(_)))
    }

    fn gold_entry(&self, word: &str) -> Option<&Entry> {
        self.gold.get(word).or_else(|| self.gold.get(other_case(word)?.as_str()))
    }

    fn silver_entry(&self, word: &str) -> Option<&str> {
        self.silver.get(word).or_else(|| self.silver.get(other_case(word)?.as_str())).map(|phonemes| &**phonemes)
    }
}

impl Entry {
    fn new(word: &str, entry: JsonEntry) -> Result<Self, LexiconError> {
        let invalid =
            || LexiconError::Pronunciation { word: word.chars().take(MAX_CHARACTERS).collect(), limit: MAX_CHARACTERS };
        let checked = |phonemes: String| {
            let fits = phonemes.chars().take(MAX_CHARACTERS + 1).count() <= MAX_CHARACTERS;
            (fits && phonemes.chars().all(is_symbol)).then(|| phonemes.into_boxed_str()).ok_or_else(invalid)
        };
        if word.chars().take(MAX_CHARACTERS + 1).count() > MAX_CHARACTERS {
            return Err(invalid());
        }
        match entry {
            JsonEntry::One(phonemes) => Ok(Self::One(checked(phonemes)?)),
            JsonEntry::ByTag(variants) => {
                if !variants.contains_key("DEFAULT") {
                    return Err(LexiconError::NoDefault { word: word.to_owned() });
                }
                let known =
                    variants.into_iter().filter_map(|(name, phonemes)| Some((Tag::from_name(&name)?, phonemes)));
                let checked = known.map(|(tag, phonemes)| Ok((tag, phonemes.map(checked).transpose()?)));
                Ok(Self::ByTag(checked.collect::<Result<_, LexiconError>>()?))
            }
        }
    }

    fn usual(&self) -> Option<&str> {
        match self {
            Self::One(phonemes) => Some(phonemes),
            Self::ByTag(_) => self.variant(Tag::Other).and_then(Option::as_deref),
        }
    }

    fn variant(&self, tag: Tag) -> Option<&Option<Box<str>>> {
        let Self::ByTag(variants) = self else { return None };
        variants.iter().find(|(other, _)| *other == tag).map(|(_, phonemes)| phonemes)
    }

    fn get(&self, tag: Tag, before_pause: bool) -> Found<'_> {
        let pause = before_pause.then_some(Tag::BeforePause);
        let tags = pause.iter().chain(tag.with_fallbacks()).copied().chain([Tag::Other]);
        let variant = match self {
            Self::One(phonemes) => return Found::Phonemes(phonemes),
            Self::ByTag(_) => tags.into_iter().find_map(|tag| self.variant(tag)),
        };
        variant.and_then(Option::as_deref).map_or(Found::Spelled, Found::Phonemes)
    }
}

fn parse(json: &[u8]) -> Result<HashMap<String, JsonEntry>, LexiconError> {
    if json.len() > MAX_BYTES {
        return Err(LexiconError::TooLarge { bytes: json.len(), limit: MAX_BYTES });
    }
    let words: HashMap<String, JsonEntry> = serde_json::from_slice(json)?;
    if words.len() > MAX_WORDS {
        return Err(LexiconError::TooManyWords { limit: MAX_WORDS });
    }
    Ok(words)
}

/// A lower-case word with a capital, or a capitalised word in lower case.
fn other_case(word: &str) -> Option<String> {
    let mut letters = word.chars();
    let first = letters.next()?;
    let rest = letters.as_str();
    if rest.is_empty() || rest.chars().any(char::is_uppercase) {
        return None;
    }
    let other: String =
        if first.is_uppercase() { first.to_lowercase().collect() } else { first.to_uppercase().collect() };
    Some(other + rest)
}
