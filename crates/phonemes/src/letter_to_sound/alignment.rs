//! Aligns the letters of each word with its phonemes: every letter gets none, one or two sounds.
//!
//! The alignment is learned from the lexicon by hard expectation maximisation (Viterbi training), as in Pagel, Lenzo and
//! Black, "Letter to sound rules for accented lexicon compression" (1998). The first estimate counts which sounds occur at a
//! similar relative position as a letter.

use std::collections::HashMap;

use super::super::stress::{is_length_mark, is_stress};

/// The number of letter codes: none, a to z, and the apostrophe.
pub const LETTERS: usize = 28;
/// Words with more letters or sounds teach nothing that shorter ones do not.
const MAX_LENGTH: usize = 24;
const ROUNDS: usize = 4;

/// The code of a letter, from 1 up; `None` for characters that have no sound of their own here.
pub fn letter_code(letter: char) -> Option<u8> {
    match letter.to_ascii_lowercase() {
        letter @ 'a'..='z' => u8::try_from(u32::from(letter) - u32::from('a') + 1).ok(),
        '\'' => Some(27),
        _ => None,
    }
}

/// The codes of a word's letters, or `None` if it has other characters.
pub fn letter_codes(word: &str) -> Option<Vec<u8>> {
    word.chars().map(letter_code).collect()
}

/// Splits phonemes into sounds. A vowel keeps its stress mark and its length mark.
pub fn sounds(phonemes: &str) -> Vec<String> {
    let mut sounds: Vec<String> = Vec::new();
    let mut stress = None;
    for symbol in phonemes.chars() {
        match sounds.last_mut() {
            Some(last) if is_length_mark(symbol) => last.push(symbol),
            _ if is_stress(symbol) => stress = Some(symbol),
            _ => sounds.push(stress.take().into_iter().chain([symbol]).collect()),
        }
    }
    sounds
}

/// Letters from which the rules are learned; those of further words are not. Kokoro's lexicons have fewer.
const MAX_LETTERS: usize = 1_000_000;

/// The sounds of one letter, by number; 0 stands for no sound.
pub type Chunk = [u8; 2];

/// A word whose letters are aligned with sounds.
pub struct Aligned {
    /// Letter codes.
    pub letters: Vec<u8>,
    /// The sounds of each letter.
    pub chunks: Vec<Chunk>,
}

/// The names of sounds, by number.
pub struct SoundNames(Vec<String>);

impl SoundNames {
    /// The sounds of a letter, joined; may be empty.
    pub fn join(&self, chunk: Chunk) -> String {
        chunk.iter().filter_map(|sound| self.0.get(usize::from(*sound))).map(String::as_str).collect()
    }
}

struct Word {
    letters: Vec<u8>,
    sounds: Vec<u8>,
}

/// Aligns the words that can be aligned; leaves out the others.
pub fn align<'a>(words: impl Iterator<Item = (&'a str, &'a str)>) -> (Vec<Aligned>, SoundNames) {
    let mut names = vec![String::new()];
    let words = number_sounds(words, &mut names);
    let mut model = Model::from_positions(&words, names.len());
    for _ in 1..ROUNDS {
        let mut next = Model::new(names.len());
        for word in &words {
            for (letter, chunk) in word.letters.iter().zip(model.best(word).unwrap_or_default()) {
                next.count(*letter, chunk, 1.0);
            }
        }
        next.normalize();
        model = next;
    }
    let aligned = words.into_iter().filter_map(|word| {
        let chunks = model.best(&word)?;
        Some(Aligned { letters: word.letters, chunks })
    });
    (aligned.collect(), SoundNames(names))
}

fn number_sounds<'a>(words: impl Iterator<Item = (&'a str, &'a str)>, names: &mut Vec<String>) -> Vec<Word> {
    let mut numbers: HashMap<String, u8> = HashMap::new();
    let mut number = |sound: String| {
        if let Some(number) = numbers.get(&sound) {
            return Some(*number);
        }
        let number = u8::try_from(names.len()).ok()?;
        names.push(sound.clone());
        numbers.insert(sound, number);
        Some(number)
    };
    let words = words.filter_map(|(word, phonemes)| {
        let letters = letter_codes(word)?;
        let sounds = sounds(phonemes).into_iter().map(&mut number).collect::<Option<Vec<u8>>>()?;
        let fits = (2..=MAX_LENGTH).contains(&letters.len()) && (1..=MAX_LENGTH).contains(&sounds.len());
        (fits && sounds.len() <= 2 * letters.len()).then_some(Word { letters, sounds })
    });
    let mut letters = 0;
    let within = words.take_while(|word| {
        letters += word.letters.len();
        letters <= MAX_LETTERS
    });
    within.collect()
}

/// Log-probabilities of the sounds of each letter.
struct Model {
    sounds: usize,
    /// `[letter, first sound, second sound]`
    weights: Vec<f32>,
}

impl Model {
    fn new(sounds: usize) -> Self {
        Self { sounds, weights: vec![0.0; LETTERS * sounds * sounds] }
    }

    fn index(&self, letter: u8, [first, second]: Chunk) -> usize {
        (usize::from(letter) * self.sounds + usize::from(first)) * self.sounds + usize::from(second)
    }

    fn count(&mut self, letter: u8, chunk: Chunk, weight: f32) {
        let index = self.index(letter, chunk);
        if let Some(count) = self.weights.get_mut(index) {
            *count += weight;
        }
    }

    fn weight(&self, letter: u8, chunk: Chunk) -> f32 {
        self.weights.get(self.index(letter, chunk)).copied().unwrap_or(f32::NEG_INFINITY)
    }

    /// Counts letters and sounds at similar relative positions.
    fn from_positions(words: &[Word], sounds: usize) -> Self {
        let mut model = Self::new(sounds);
        for word in words {
            let letters_per_sound = word.letters.len() as f32 / word.sounds.len() as f32;
            for (at, letter) in word.letters.iter().enumerate() {
                model.count(*letter, [0, 0], 0.2);
                for (sound_at, sound) in word.sounds.iter().enumerate() {
                    let distance = at as f32 - (sound_at as f32 + 0.5) * letters_per_sound + 0.5;
                    let near = (-distance * distance).exp();
                    model.count(*letter, [*sound, 0], near);
                    if let Some(second) = word.sounds.get(sound_at + 1) {
                        model.count(*letter, [*sound, *second], near * 0.02);
                    }
                }
            }
        }
        model.normalize();
        model
    }

    /// Turns counts into log-probabilities.
    fn normalize(&mut self) {
        for letter in self.weights.chunks_mut(self.sounds * self.sounds) {
            let total: f32 = letter.iter().sum::<f32>() + 1.0;
            for weight in letter {
                *weight = ((*weight + 1e-4) / total).ln();
            }
        }
    }

    /// The most probable alignment. `None` if the word has too many sounds for its letters.
    fn best(&self, word: &Word) -> Option<Vec<Chunk>> {
        let width = word.sounds.len() + 1;
        let mut scores = vec![f32::NEG_INFINITY; (word.letters.len() + 1) * width];
        let mut taken = vec![0_usize; scores.len()];
        scores[0] = 0.0;
        for (at, letter) in word.letters.iter().enumerate() {
            for used in 0..width {
                let score = scores[at * width + used];
                if score == f32::NEG_INFINITY {
                    continue;
                }
                for count in 0..=2.min(width - 1 - used) {
                    let reached = (at + 1) * width + used + count;
                    let total = score + self.weight(*letter, chunk(word, used, count));
                    if total > scores[reached] {
                        (scores[reached], taken[reached]) = (total, count);
                    }
                }
            }
        }
        let mut used = word.sounds.len();
        let mut chunks = vec![[0, 0]; word.letters.len()];
        for at in (0..word.letters.len()).rev() {
            let count = taken[(at + 1) * width + used];
            used = used.checked_sub(count)?;
            chunks[at] = chunk(word, used, count);
        }
        (used == 0).then_some(chunks)
    }
}

fn chunk(word: &Word, start: usize, count: usize) -> Chunk {
    let sound = |at: usize| if at < count { word.sounds.get(start + at).copied().unwrap_or(0) } else { 0 };
    [sound(0), sound(1)]
}
