//! Text to speech: the front end that turns text into phonemes.

pub mod phonemes;
