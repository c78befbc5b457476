//! Reads the lexicons that come with a model: JSON objects of words and pronunciations, in the format of misaki.
//!
//! The gold lexicon is checked by hand, the silver one is generated. A pronunciation is a string, or an object of strings by
//! part of speech (`NOUN`, `VERB`, …). The part `None` holds before a pause. `null` means that the word is spelled.
//!
//! Lexicons are read in the server and not in a child process: they must be in its memory anyway, reading them is
//! linear code without regular expressions or templates, and their bytes and entries are limited before.

use std::fmt;

use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::error::LexiconError;
use super::symbols::is_symbol;
use super::tagging::Tag;

/// The largest file that is read, in bytes. Those of Kokoro have up to 3.7 million.
pub const MAX_BYTES: usize = 8 << 20;
/// Those of Kokoro have up to 110,000.
const MAX_WORDS: usize = 250_000;
/// The longest word and the longest pronunciation, in characters.
const MAX_CHARACTERS: usize = 100;

/// The words of one language.
#[derive(Default)]
pub struct Lexicon {
    gold: Table,
    silver: Table,
}

/// Words and their pronunciations, in two pieces of memory whatever their number is.
#[derive(Default)]
struct Table {
    text: String,
    /// Sorted by word. A word has one row, or one for each part of speech.
    rows: Vec<Row>,
}

/// A pronunciation of a word. The positions are those of the word and its phonemes in the text of the table.
#[derive(Clone, Copy)]
struct Row {
    word: u32,
    phonemes: u32,
    word_bytes: u16,
    phonemes_bytes: u16,
    variant: Variant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    /// The word has one pronunciation.
    Only,
    For(Tag),
    /// The word is spelled if it is this part of speech.
    Spelled(Tag),
}

/// An entry as the JSON has it.
enum JsonEntry {
    One(String),
    /// Only tags that rules use.
    ByTag(Vec<(Tag, Option<String>)>),
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

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonEntry, A::Error> {
                let mut variants: Vec<(Tag, Option<String>)> = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    let phonemes: Option<String> = map.next_value()?;
                    let Some(tag) = Tag::from_name(&name) else { continue };
                    variants.retain(|(other, _)| *other != tag);
                    variants.push((tag, phonemes));
                }
                Ok(JsonEntry::ByTag(variants))
            }
        }
        deserializer.deserialize_any(EntryVisitor)
    }
}

/// The lexicon's entry of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found<'a> {
    Phonemes(&'a str),
    /// The word is read letter by letter.
    Spelled,
}

impl Lexicon {
    /// Reads the gold lexicon, in place of a former one.
    ///
    /// # Errors
    /// If it is damaged or too large.
    pub fn add_gold(&mut self, json: &[u8]) -> Result<(), LexiconError> {
        self.gold = Table::from_json(json)?;
        Ok(())
    }

    /// Reads the silver lexicon, in place of a former one.
    ///
    /// # Errors
    /// If it is damaged or too large.
    pub fn add_silver(&mut self, json: &[u8]) -> Result<(), LexiconError> {
        self.silver = Table::from_json(json)?;
        self.silver.rows.retain(|row| row.variant == Variant::Only);
        Ok(())
    }

    /// The words of the gold lexicon that are written in lower case or with one capital, with their usual pronunciation.
    pub fn words(&self) -> impl Iterator<Item = (&str, &str)> {
        let ordinary = |word: &str| !word.chars().skip(1).any(char::is_uppercase);
        let is_usual = |row: &&Row| matches!(row.variant, Variant::Only | Variant::For(Tag::Other));
        let usual = self.gold.rows.iter().filter(is_usual);
        usual.map(|row| (self.gold.word(row), self.gold.phonemes(row))).filter(move |(word, _)| ordinary(word))
    }

    /// Whether the gold lexicon has the word in this spelling, or with the other case of its first letter.
    pub fn has_gold(&self, word: &str) -> bool {
        !self.gold.entry(word).is_empty()
    }

    /// Whether the word is in one of the lexicons.
    pub fn has(&self, word: &str) -> bool {
        self.has_gold(word) || !self.silver.entry(word).is_empty()
    }

    /// The pronunciation of a word by its part of speech, or before a pause.
    pub fn get(&self, word: &str, tag: Tag, before_pause: bool) -> Option<Found<'_>> {
        self.gold.get(word, tag, before_pause).or_else(|| self.silver.get(word, tag, before_pause))
    }

    /// Whether the pronunciation of the word depends on its part of speech.
    pub fn is_heteronym(&self, word: &str) -> bool {
        self.gold.entry(word).first().is_some_and(|row| row.variant != Variant::Only)
    }
}

impl Table {
    fn from_json(json: &[u8]) -> Result<Self, LexiconError> {
        if json.len() > MAX_BYTES {
            return Err(LexiconError::TooLarge { bytes: json.len(), limit: MAX_BYTES });
        }
        let mut reader = TableReader::default();
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let read = (&mut reader).deserialize(&mut deserializer).and_then(|()| deserializer.end());
        match reader.invalid {
            Some(invalid) => Err(invalid),
            None if reader.words > MAX_WORDS => {
                read?;
                Err(LexiconError::TooManyWords { words: reader.words, limit: MAX_WORDS })
            }
            None => read.map_err(LexiconError::from).map(|()| reader.table.sorted()),
        }
    }

    /// Adds the entry of a word.
    fn add(&mut self, word: &str, entry: &JsonEntry) -> Result<(), LexiconError> {
        let invalid =
            || LexiconError::Pronunciation { word: word.chars().take(MAX_CHARACTERS).collect(), limit: MAX_CHARACTERS };
        let fits = |text: &str| text.chars().take(MAX_CHARACTERS + 1).count() <= MAX_CHARACTERS;
        let is_valid = |phonemes: &str| fits(phonemes) && phonemes.chars().all(is_symbol);
        let place = self.push(word);
        match entry {
            _ if !fits(word) => return Err(invalid()),
            JsonEntry::One(phonemes) if is_valid(phonemes) => self.add_row(place, phonemes, Variant::Only),
            JsonEntry::One(_) => return Err(invalid()),
            JsonEntry::ByTag(variants) if variants.iter().all(|(tag, _)| *tag != Tag::Other) => {
                return Err(LexiconError::NoDefault { word: word.to_owned() });
            }
            JsonEntry::ByTag(variants) => {
                for (tag, phonemes) in variants {
                    match phonemes {
                        Some(phonemes) if is_valid(phonemes) => self.add_row(place, phonemes, Variant::For(*tag)),
                        Some(_) => return Err(invalid()),
                        None => self.add_row(place, "", Variant::Spelled(*tag)),
                    }
                }
            }
        }
        Ok(())
    }

    fn add_row(&mut self, (word, word_bytes): (u32, u16), phonemes: &str, variant: Variant) {
        let (phonemes, phonemes_bytes) = self.push(phonemes);
        self.rows.push(Row { word, phonemes, word_bytes, phonemes_bytes, variant });
    }

    /// Appends to the text; returns the position and length. Both fit, because files, words and pronunciations have limits.
    fn push(&mut self, text: &str) -> (u32, u16) {
        let start = u32::try_from(self.text.len()).unwrap_or(u32::MAX);
        self.text.push_str(text);
        (start, u16::try_from(text.len()).unwrap_or(u16::MAX))
    }

    /// Sorts the rows. Of a word that the file has twice, the last entry stays.
    fn sorted(mut self) -> Self {
        let Self { text, rows } = &mut self;
        let word = |row: &Row| slice(text, row.word, row.word_bytes);
        rows.sort_by(|one, other| word(one).cmp(word(other)).then(other.word.cmp(&one.word)));
        rows.dedup_by(|later, kept| word(later) == word(kept) && later.word != kept.word);
        text.shrink_to_fit();
        rows.shrink_to_fit();
        self
    }

    fn word(&self, row: &Row) -> &str {
        slice(&self.text, row.word, row.word_bytes)
    }

    fn phonemes(&self, row: &Row) -> &str {
        slice(&self.text, row.phonemes, row.phonemes_bytes)
    }

    /// The rows of a word, or of its spelling with the other case of the first letter.
    fn entry(&self, word: &str) -> &[Row] {
        match self.rows_of(word) {
            [] => other_case(word).map_or(&[], |other| self.rows_of(&other)),
            rows => rows,
        }
    }

    fn rows_of(&self, word: &str) -> &[Row] {
        let start = self.rows.partition_point(|row| self.word(row) < word);
        let rows = self.rows.get(start..).unwrap_or_default();
        let count = rows.iter().take_while(|row| self.word(row) == word).count();
        rows.get(..count).unwrap_or_default()
    }

    fn get(&self, word: &str, tag: Tag, before_pause: bool) -> Option<Found<'_>> {
        let rows = self.entry(word);
        let pause = before_pause.then_some(Tag::BeforePause);
        let mut tags = pause.iter().chain(tag.with_fallbacks()).copied().chain([Tag::Other]);
        let of_tag = |tag: Tag| {
            rows.iter().find(|row| matches!(row.variant, Variant::For(other) | Variant::Spelled(other) if other == tag))
        };
        let only = rows.first().filter(|row| row.variant == Variant::Only);
        let row = only.or_else(|| tags.find_map(of_tag)).or(rows.first())?;
        match row.variant {
            Variant::Only | Variant::For(_) => Some(Found::Phonemes(self.phonemes(row))),
            Variant::Spelled(_) => Some(Found::Spelled),
        }
    }
}

fn slice(text: &str, start: u32, bytes: u16) -> &str {
    let start = start as usize;
    text.get(start..start + usize::from(bytes)).unwrap_or_default()
}

/// Reads the entries of a file one after the other, so that memory is bounded by what a table may hold.
#[derive(Default)]
struct TableReader {
    table: Table,
    /// Including those that are too many.
    words: usize,
    /// Why the last entry that was read is not valid.
    invalid: Option<LexiconError>,
}

impl<'de> DeserializeSeed<'de> for &mut TableReader {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut TableReader {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("an object of words and pronunciations")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(word) = map.next_key::<String>()? {
            self.words += 1;
            if self.words > MAX_WORDS {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let entry: JsonEntry = map.next_value()?;
            if let Err(invalid) = self.table.add(&word, &entry) {
                self.invalid = Some(invalid);
                return Err(serde::de::Error::custom("an entry is not valid"));
            }
        }
        Ok(())
    }
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
