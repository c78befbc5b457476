//! Pronounces words that are in no lexicon, with decision trees that are learned from the lexicon when it loads.
//!
//! There is one tree for each letter. The word is read from right to left, because suffixes determine the stress of English
//! words. A tree sees the letters around, the sounds of the letters to the right and where the stress is. A beam search keeps
//! the most probable pronunciations. The method is that of Black, Lenzo and Pagel, "Issues in building general letter to
//! sound rules" (1998), with the features for earlier outputs and the beam added.
//!
//! Other servers use espeak-ng for unknown words; it is under the GPL. The lexicon is part of the model's folder.

mod alignment;
mod tree;

use std::collections::HashMap;

use super::stress::{PRIMARY, SECONDARY, is_vowel};
use alignment::{Aligned, Chunk, LETTERS, SoundNames, align, letter_codes};
use tree::{FEATURES, Features, Sample, Tree};

/// Letters that a tree sees on each side.
const SIDE: usize = 5;
/// Pronunciations that the search keeps.
const BEAM: usize = 8;
/// Classes that are rarer in the lexicon are exceptions or mistakes.
const MIN_COUNT: usize = 4;
/// The most classes. Kokoro's lexicons have a few hundred.
const MAX_CLASSES: usize = 2048;
/// The longest word that is pronounced as a whole. Longer ones are cut.
const MAX_WORD: usize = 40;

/// Letter-to-sound rules of one language.
pub struct LetterToSound {
    classes: Vec<Class>,
    /// By letter code.
    trees: Vec<Option<Tree>>,
}

/// The sounds of a letter.
struct Class {
    sounds: String,
    stress: Stress,
    has_vowel: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Stress {
    #[default]
    None,
    Secondary,
    Primary,
}

/// A pronunciation of the end of the word.
#[derive(Clone, Default)]
struct Hypothesis {
    /// Classes of the letters, the last letter first.
    classes: Vec<u16>,
    stress: Stress,
    /// Vowel sounds since the leftmost stress.
    unstressed: u16,
    score: f32,
}

impl LetterToSound {
    /// Learns from words and their pronunciations. Words with other characters than letters and apostrophes are left out.
    pub fn train<'a>(words: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let (aligned, names) = align(words);
        let (classes, numbers) = number_classes(&aligned, &names);
        let mut rules = Self { classes, trees: Vec::new() };
        let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); LETTERS];
        for word in &aligned {
            rules.collect(word, &numbers, &mut samples);
        }
        let values = rules.classes.len().max(LETTERS) + 1;
        let train = |mut samples: Vec<Sample>| (!samples.is_empty()).then(|| Tree::train(&mut samples, values));
        rules.trees = samples.into_iter().map(train).collect();
        rules
    }

    /// The phonemes of a word, or `None` if it has other characters than English letters and apostrophes. Words of more
    /// than 40 letters are pronounced in pieces.
    pub fn pronounce(&self, word: &str) -> Option<String> {
        let letters = letter_codes(word)?;
        Some(letters.chunks(MAX_WORD).map(|piece| self.search(piece)).collect())
    }

    fn search(&self, letters: &[u8]) -> String {
        let mut beam = vec![Hypothesis::default()];
        for at in (0..letters.len()).rev() {
            let Some(Some(tree)) = self.trees.get(usize::from(letters[at])) else { continue };
            let mut next = Vec::with_capacity(beam.len() * 4);
            for hypothesis in &beam {
                let guesses = tree.guess(&features(letters, at, hypothesis));
                next.extend(guesses.iter().filter(|(_, probability)| *probability > 1e-3).map(
                    |(class, probability)| {
                        let mut longer = self.extended(hypothesis, *class);
                        longer.score += probability.ln();
                        longer
                    },
                ));
            }
            if next.is_empty() {
                continue;
            }
            next.sort_by(|one, other| other.score.total_cmp(&one.score));
            next.truncate(BEAM);
            beam = next;
        }
        let stressed = beam.iter().find(|hypothesis| hypothesis.stress == Stress::Primary);
        let Some(best) = stressed.or(beam.first()) else { return String::new() };
        let sounds = best.classes.iter().rev().filter_map(|class| self.classes.get(usize::from(*class)));
        with_one_stress(without_doubles(sounds.flat_map(|class| class.sounds.chars())))
    }

    fn extended(&self, hypothesis: &Hypothesis, class: u16) -> Hypothesis {
        let mut longer = hypothesis.clone();
        longer.classes.push(class);
        if let Some(class) = self.classes.get(usize::from(class)) {
            longer.stress = longer.stress.max(class.stress);
            match class.stress {
                Stress::None if class.has_vowel => longer.unstressed += 1,
                Stress::None => {}
                _ => longer.unstressed = 0,
            }
        }
        longer
    }

    fn collect(&self, word: &Aligned, numbers: &HashMap<Chunk, u16>, samples: &mut [Vec<Sample>]) {
        let classes: Option<Vec<u16>> = word.chunks.iter().map(|chunk| numbers.get(chunk).copied()).collect();
        let Some(classes) = classes else { return };
        let mut hypothesis = Hypothesis::default();
        for at in (0..word.letters.len()).rev() {
            let features = features(&word.letters, at, &hypothesis);
            samples[usize::from(word.letters[at])].push(Sample { features, class: classes[at] });
            hypothesis = self.extended(&hypothesis, classes[at]);
        }
    }
}

/// Classes that are frequent enough, and the number of the class of each chunk.
fn number_classes(aligned: &[Aligned], names: &SoundNames) -> (Vec<Class>, HashMap<Chunk, u16>) {
    let mut chunks: HashMap<Chunk, usize> = HashMap::new();
    for chunk in aligned.iter().flat_map(|word| &word.chunks) {
        *chunks.entry(*chunk).or_default() += 1;
    }
    let mut counts: HashMap<String, usize> = HashMap::new();
    for (chunk, count) in &chunks {
        *counts.entry(names.join(*chunk)).or_default() += count;
    }
    let mut frequent: Vec<(String, usize)> = counts.into_iter().filter(|(_, count)| *count >= MIN_COUNT).collect();
    frequent.sort_unstable_by(|(name, count), (other, other_count)| other_count.cmp(count).then(name.cmp(other)));
    frequent.truncate(MAX_CLASSES);
    let mut sounds: Vec<String> = frequent.into_iter().map(|(name, _)| name).collect();
    sounds.sort_unstable();
    let number = |chunk: &Chunk| u16::try_from(sounds.binary_search(&names.join(*chunk)).ok()?).ok();
    let numbers = chunks.keys().filter_map(|chunk| Some((*chunk, number(chunk)?))).collect();
    (sounds.into_iter().map(Class::new).collect(), numbers)
}

impl Class {
    fn new(sounds: String) -> Self {
        Self { stress: stress_of(&sounds), has_vowel: sounds.chars().any(is_vowel), sounds }
    }
}

fn stress_of(sounds: &str) -> Stress {
    if sounds.contains(PRIMARY) {
        Stress::Primary
    } else if sounds.contains(SECONDARY) {
        Stress::Secondary
    } else {
        Stress::None
    }
}

/// The features of the letter at `at` for its tree.
fn features(letters: &[u8], at: usize, right: &Hypothesis) -> Features {
    let letter = |offset: usize, before: bool| {
        let index = if before { at.checked_sub(offset) } else { at.checked_add(offset) };
        index.and_then(|index| letters.get(index)).map_or(0, |letter| u16::from(*letter))
    };
    let sound = |back: usize| {
        let index = right.classes.len().checked_sub(back);
        index.and_then(|index| right.classes.get(index)).map_or(0, |class| class + 1)
    };
    let mut features = [0; FEATURES];
    for offset in 1..=SIDE {
        features[2 * offset - 2] = letter(offset, false);
        features[2 * offset - 1] = letter(offset, true);
    }
    features[2 * SIDE] = sound(1);
    features[2 * SIDE + 1] = sound(2);
    features[2 * SIDE + 2] = right.stress as u16;
    features[2 * SIDE + 3] = right.unstressed.min(3);
    features[2 * SIDE + 4] = vowel_groups(&letters[..at]).min(3);
    features[2 * SIDE + 5] = vowel_groups(&letters[at + 1..]).min(3);
    features[2 * SIDE + 6] = sound(3);
    features
}

fn vowel_groups(letters: &[u8]) -> u16 {
    let is_vowel = |letter: &u8| matches!(letter, 1 | 5 | 9 | 15 | 21 | 25);
    let starts = letters.iter().enumerate().filter(|(at, letter)| {
        is_vowel(letter) && !at.checked_sub(1).and_then(|before| letters.get(before)).is_some_and(is_vowel)
    });
    u16::try_from(starts.count()).unwrap_or(u16::MAX)
}

/// Without the second of two equal consonants. English has them only where two words meet.
fn without_doubles(symbols: impl Iterator<Item = char>) -> String {
    let mut phonemes = String::new();
    for symbol in symbols {
        if is_vowel(symbol) || !phonemes.ends_with(symbol) {
            phonemes.push(symbol);
        }
    }
    phonemes
}

/// Keeps the last primary stress and makes earlier ones secondary. Without one, the first stressed or full vowel gets it.
fn with_one_stress(phonemes: String) -> String {
    if let Some(last) = phonemes.rfind(PRIMARY) {
        let (before, after) = phonemes.split_at(last);
        return before.replace(PRIMARY, &SECONDARY.to_string()) + after;
    }
    if phonemes.contains(SECONDARY) {
        return phonemes.replacen(SECONDARY, &PRIMARY.to_string(), 1);
    }
    let full = phonemes.find(|symbol| is_vowel(symbol) && !matches!(symbol, 'ə' | 'ᵊ' | 'ᵻ' | 'ɪ' | 'i'));
    match full.or_else(|| phonemes.find(is_vowel)) {
        Some(at) => format!("{}{PRIMARY}{}", &phonemes[..at], &phonemes[at..]),
        None => phonemes,
    }
}
