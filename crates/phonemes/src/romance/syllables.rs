//! The sounds of a word, and where its stress goes.

use super::super::stress::{PRIMARY, SECONDARY};

/// A sound of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sound {
    pub phonemes: String,
    /// Set for the centre of a syllable.
    pub is_nucleus: bool,
    /// Set if the spelling marks it as stressed.
    pub has_accent: bool,
}

impl Sound {
    pub fn consonant(phonemes: impl Into<String>) -> Self {
        Self { phonemes: phonemes.into(), is_nucleus: false, has_accent: false }
    }

    pub fn nucleus(phonemes: impl Into<String>, has_accent: bool) -> Self {
        Self { phonemes: phonemes.into(), is_nucleus: true, has_accent }
    }
}

/// The positions of the syllables' centres among the sounds.
pub fn nuclei(sounds: &[Sound]) -> Vec<usize> {
    sounds.iter().enumerate().filter(|(_, sound)| sound.is_nucleus).map(|(at, _)| at).collect()
}

/// The syllable that the spelling marks.
pub fn accented(sounds: &[Sound]) -> Option<usize> {
    sounds.iter().filter(|sound| sound.is_nucleus).position(|sound| sound.has_accent)
}

/// The phonemes with primary stress on a syllable and secondary stress on every second one before, if the language has it.
pub fn with_stress(sounds: &[Sound], primary: Option<usize>, has_secondary: bool) -> String {
    let nuclei = nuclei(sounds);
    let mark = |at: usize| {
        let (syllable, primary) = (nuclei.iter().position(|nucleus| *nucleus == at)?, primary?);
        if syllable == primary {
            return Some(PRIMARY);
        }
        (has_secondary && syllable % 2 == 0 && syllable + 2 <= primary).then_some(SECONDARY)
    };
    let marked = sounds.iter().enumerate().map(|(at, sound)| match mark(at) {
        Some(mark) => format!("{mark}{}", sound.phonemes),
        None => sound.phonemes.clone(),
    });
    marked.collect()
}
