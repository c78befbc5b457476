//! Groups tokens into words with their times. Follows Whisper's reference implementation
//! (<https://github.com/openai/whisper>, `tokenizer.py` and `timing.py`).

use super::request::Word;
use super::vocabulary::WhisperVocabulary;

/// Languages that are written without spaces. Their characters are treated as words.
const WITHOUT_SPACES: [&str; 6] = ["zh", "ja", "th", "lo", "my", "yue"];
/// Punctuation that belongs to the next word, and to the word before.
const OPENING: &str = "\"'“¿([{-";
const CLOSING: &str = "\"'.。,，!！?？:：”)]}、";
/// Punctuation that ends a sentence. A long word beside it is mostly a pause.
const SENTENCE_ENDS: &str = ".。!！?？";
/// Upper limit of the typical duration of a word; seconds.
const MAX_TYPICAL_SECONDS: f64 = 0.7;

/// A word of some tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenWord {
    pub text: String,
    /// The number of its tokens.
    pub tokens: usize,
}

/// Groups text tokens into words. `language`: the code of the language.
pub fn split(vocabulary: &WhisperVocabulary, tokens: &[u32], language: &str) -> Vec<TokenWord> {
    let characters = characters(vocabulary, tokens);
    if WITHOUT_SPACES.contains(&language) {
        return characters;
    }
    let mut words: Vec<TokenWord> = Vec::new();
    for one in characters {
        let punctuation = one.text.trim();
        let is_punctuation = !punctuation.is_empty() && punctuation.chars().all(|one| one.is_ascii_punctuation());
        match words.last_mut().filter(|_| !one.text.starts_with(' ') && !is_punctuation) {
            Some(word) => {
                word.text.push_str(&one.text);
                word.tokens += one.tokens;
            }
            None => words.push(one),
        }
    }
    words
}

/// Groups tokens so that each group is valid UTF-8.
fn characters(vocabulary: &WhisperVocabulary, tokens: &[u32]) -> Vec<TokenWord> {
    let (mut groups, mut bytes, mut count) = (Vec::new(), Vec::new(), 0);
    for id in tokens {
        bytes.extend_from_slice(vocabulary.bytes(*id));
        count += 1;
        let incomplete = std::str::from_utf8(&bytes).is_err_and(|error| error.error_len().is_none());
        if !incomplete {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            groups.push(TokenWord { text, tokens: count });
            bytes.clear();
            count = 0;
        }
    }
    if count > 0 {
        groups.push(TokenWord { text: String::from_utf8_lossy(&bytes).into_owned(), tokens: count });
    }
    groups
}

/// Words with their times. `frames`: the time of each token and of the end, in seconds; `logprobs`: of each token.
pub fn timed(words: &[TokenWord], frames: &[f64], logprobs: &[f32]) -> Vec<Word> {
    let mut first = 0;
    let mut all = Vec::with_capacity(words.len());
    for TokenWord { text, tokens } in words {
        let end = first + tokens;
        let time = |at: usize| frames.get(at).or(frames.last()).copied().unwrap_or(0.);
        let known = logprobs.get(first..end.min(logprobs.len())).unwrap_or_default();
        let probability = known.iter().map(|logprob| logprob.exp()).sum::<f32>() / known.len().max(1) as f32;
        all.push(Word { text: text.clone(), start: time(first), end: time(end).max(time(first)), probability });
        first = end;
    }
    all
}

/// Shortens words that are much longer than is typical, at the beginnings and ends of sentences.
pub fn limit_durations(words: &mut [Word]) {
    let mut durations: Vec<f64> = words.iter().map(|word| word.end - word.start).filter(|time| *time > 0.).collect();
    durations.sort_unstable_by(f64::total_cmp);
    let typical = durations.get(durations.len() / 2).copied().unwrap_or(0.).min(MAX_TYPICAL_SECONDS);
    let max = 2. * typical;
    if durations.is_empty() {
        return;
    }
    let ends: Vec<bool> = words.iter().map(|word| is_sentence_end(&word.text)).collect();
    for at in 1..words.len() {
        let Some(word) = words.get_mut(at) else { continue };
        if word.end - word.start <= max {
            continue;
        }
        if ends.get(at) == Some(&true) {
            word.end = word.start + max;
        } else if ends.get(at - 1) == Some(&true) {
            word.start = word.end - max;
        }
    }
}

fn is_sentence_end(text: &str) -> bool {
    let text = text.trim();
    !text.is_empty() && text.chars().all(|one| SENTENCE_ENDS.contains(one))
}

/// Joins punctuation with the word that it belongs to.
pub fn join_punctuation(words: Vec<Word>) -> Vec<Word> {
    let is = |text: &str, of: &str| {
        let text = text.trim();
        !text.is_empty() && text.chars().all(|one| of.contains(one))
    };
    let mut joined: Vec<Word> = Vec::with_capacity(words.len());
    let mut opening: Option<Word> = None;
    for mut word in words {
        if let Some(before) = opening.take() {
            word.text.insert_str(0, &before.text);
            word.start = before.start;
        }
        if word.text.starts_with(' ') && is(&word.text, OPENING) {
            opening = Some(word);
        } else if let Some(before) =
            joined.last_mut().filter(|_| !word.text.starts_with(' ') && is(&word.text, CLOSING))
        {
            before.text.push_str(&word.text);
        } else {
            joined.push(word);
        }
    }
    joined.extend(opening);
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str, start: f64, end: f64) -> Word {
        Word { text: text.to_owned(), start, end, probability: 1. }
    }

    #[test]
    fn punctuation_joins_its_word() {
        let words = [" \"", "Well", ",", " he", " said", ".\"", " ("];
        let words = words.iter().enumerate().map(|(at, text)| word(text, at as f64, at as f64 + 1.)).collect();
        let joined = join_punctuation(words);
        let texts: Vec<_> = joined.iter().map(|word| word.text.as_str()).collect();
        assert_eq!(texts, [" \"Well,", " he", " said.\"", " ("]);
        assert_eq!((joined[0].start, joined[0].end), (0., 2.));
    }

    #[test]
    fn pauses_between_sentences_are_not_part_of_words() {
        let mut words = [
            word(" one", 0., 0.3),
            word(" two", 0.3, 0.6),
            word(".", 0.6, 5.),
            word(" Three", 5., 9.),
            word(" x", 9., 9.3),
        ];
        limit_durations(&mut words);
        assert!((words[2].end - 1.2).abs() < 1e-9 && (words[3].start - 8.4).abs() < 1e-9, "{words:?}");
    }

    #[test]
    fn words_take_the_times_of_their_tokens() {
        let words = [TokenWord { text: " a".to_owned(), tokens: 2 }, TokenWord { text: " b".to_owned(), tokens: 1 }];
        let timed = timed(&words, &[0., 0.5, 1., 2.], &[0., 0., -0.5]);
        assert_eq!((timed[0].start, timed[0].end), (0., 1.));
        assert_eq!((timed[1].start, timed[1].end), (1., 2.));
        assert!((timed[1].probability - (-0.5_f32).exp()).abs() < 1e-6);
    }
}
