//! Sentences sound as in misaki, words as in espeak-ng, and no text does harm.
//!
//! `tests/fixtures/make_phonemes_reference.py` writes the reference.

use proptest::prelude::*;
use serde::Deserialize;

use super::chunks::MAX_PHONEMES;
use super::lexicon::Found;
use super::symbols::{is_punctuation, is_symbol};
use super::tagging::Tag;
use super::*;

#[derive(Deserialize)]
struct Reference {
    american: English,
    british: English,
    spanish: Vec<(String, String)>,
    italian: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct English {
    gold: serde_json::Value,
    silver: serde_json::Value,
    /// Texts, and the phonemes that misaki gives.
    sentences: Vec<(String, String)>,
    /// Words that `gold` leaves out, and their pronunciations.
    held_out: Vec<(String, String)>,
}

fn reference() -> Reference {
    serde_json::from_str(include_str!("../../../tests/fixtures/phonemes_reference.json")).unwrap()
}

fn phonemizer(english: &English, language: Language) -> Phonemizer {
    let [gold, silver] = [&english.gold, &english.silver].map(ToString::to_string);
    let mut lexicon = Lexicon::default();
    lexicon.add_gold(gold.as_bytes()).unwrap();
    lexicon.add_silver(silver.as_bytes()).unwrap();
    Phonemizer::new(Some(lexicon), language).unwrap()
}

fn spoken(phonemizer: &Phonemizer, text: &str) -> String {
    let sentences = phonemizer.phonemize(text);
    sentences.iter().map(|sentence| sentence.phonemes.as_str()).collect::<Vec<_>>().join(" ")
}

/// The words of a phoneme string, without punctuation.
fn words(phonemes: &str) -> Vec<String> {
    phonemes.replace(is_punctuation, " ").split_whitespace().map(str::to_owned).collect()
}

/// The edit distance: symbols to insert, delete or replace.
fn edits(expected: &str, actual: &str) -> usize {
    let actual: Vec<char> = actual.chars().collect();
    let mut row: Vec<usize> = (0..=actual.len()).collect();
    for (at, symbol) in expected.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, other) in actual.iter().enumerate() {
            let replaced = diagonal + usize::from(symbol != *other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[actual.len()]
}

/// The share of words with the same phonemes at the same place.
fn share_of_equal_words(phonemizer: &Phonemizer, sentences: &[(String, String)]) -> f64 {
    let (mut equal, mut total) = (0, 0);
    for (text, expected) in sentences {
        let (expected, actual) = (words(expected), words(&spoken(phonemizer, text)));
        total += expected.len();
        equal += expected.iter().zip(&actual).filter(|(one, other)| one == other).count();
    }
    equal as f64 / total as f64
}

/// The share of wrong phonemes, stress marks included.
fn error_rate(phonemizer: &Phonemizer, words: &[(String, String)]) -> f64 {
    let edits: usize = words.iter().map(|(word, expected)| edits(expected, &spoken(phonemizer, word))).sum();
    let symbols: usize = words.iter().map(|(_, expected)| expected.chars().count()).sum();
    edits as f64 / symbols as f64
}

#[test]
fn american_sentences_sound_as_in_misaki() {
    let Reference { american, .. } = reference();
    let phonemizer = phonemizer(&american, Language::AmericanEnglish);
    let share = share_of_equal_words(&phonemizer, &american.sentences);
    assert!(share > 0.985, "{share}");
    assert_eq!(spoken(&phonemizer, "The apple, the book."), "ði ˈæpᵊl, ðə bˈʊk.");
    assert_eq!(spoken(&phonemizer, "I used to read. He used a tool."), "ˌI jˈust tə ɹˈid. hˌi jˈuzd ɐ tˈul.");
}

#[test]
fn british_sentences_sound_as_in_misaki() {
    let Reference { british, .. } = reference();
    let share = share_of_equal_words(&phonemizer(&british, Language::BritishEnglish), &british.sentences);
    assert!(share > 0.98, "{share}");
}

/// The fixture has a fraction of the lexicon; with all of it the error rate is about 13 %.
#[test]
fn unknown_words_are_pronounced_by_rules_learned_from_the_lexicon() {
    let Reference { american, .. } = reference();
    let phonemizer = phonemizer(&american, Language::AmericanEnglish);
    let rate = error_rate(&phonemizer, &american.held_out);
    assert!(rate < 0.35, "{rate}");
}

#[test]
fn spanish_and_italian_words_sound_as_in_espeak() {
    let Reference { spanish, italian, .. } = reference();
    for (language, words, limit) in [(Language::Spanish, spanish, 0.01), (Language::Italian, italian, 0.05)] {
        let rate = error_rate(&Phonemizer::new(None, language).unwrap(), &words);
        assert!(rate < limit, "{language:?}: {rate}");
    }
    let spanish = Phonemizer::new(None, Language::Spanish).unwrap();
    assert_eq!(spoken(&spanish, "El niño tiene 21 años."), "el nˈiɲo tjˈene βAntjˈuno ˈaɲos.");
}

#[test]
fn text_is_cut_at_sentences_then_at_clauses_then_at_words() {
    let Reference { american, .. } = reference();
    let phonemizer = phonemizer(&american, Language::AmericanEnglish);
    let texts = |text: &str| phonemizer.phonemize(text).into_iter().map(|sentence| sentence.text).collect::<Vec<_>>();
    let first = "The old man with the red hat lived in a house near the river for many years.";
    let second = "Dr. Smith paid 3.50 dollars, e.g. for the bread, and went to the market again!";
    assert_eq!(texts(&format!("{first} {second}")), [first, second]);
    let long = "the red apple and the green one, ".repeat(60);
    let sentences = phonemizer.phonemize(&long);
    assert!(sentences[0].phonemes.chars().count() <= 120, "{}", sentences[0].phonemes);
    assert!(sentences[1..].iter().all(|sentence| sentence.phonemes.chars().count() <= MAX_PHONEMES));
    assert!(sentences.iter().all(|sentence| sentence.text.ends_with(',')), "{sentences:?}");
    for unbroken in ["apple ".repeat(500), "apple".repeat(500), "bcdfg".repeat(1000), "[x](/ˈæ".repeat(500)] {
        let sentences = phonemizer.phonemize(&unbroken);
        assert!(!sentences.is_empty());
        assert!(sentences.iter().all(|sentence| sentence.phonemes.chars().count() <= MAX_PHONEMES));
    }
}

#[test]
fn the_first_part_is_short_even_after_a_short_sentence() {
    let phonemizer = Phonemizer::new(None, Language::Spanish).unwrap();
    let parts = |text: &str| phonemizer.phonemize(text);
    let lengths = |text: &str| parts(text).iter().map(|part| part.phonemes.chars().count()).collect::<Vec<_>>();
    let clause = "la casa roja del pueblo antigua, ";
    let sentence = clause.repeat(6);
    for beginning in ["", "¡Claro! "] {
        let text = format!("{beginning}{}.", sentence.trim_end_matches(", "));
        let lengths = lengths(&text);
        assert!(lengths.len() == 2 && (40..=120).contains(&lengths[0]), "{text}: {lengths:?}");
        assert!(lengths[1] >= 40, "{text}: {lengths:?}");
    }
    // A first part of 30 to 40 symbols would be joined with the rest again.
    let text = format!("{clause}{}.", "la casa roja del pueblo antigua ".repeat(4).trim_end());
    assert_eq!(parts(&text).len(), 1, "{:?}", lengths(&text));
    // Short sentences do not make the first part long.
    let text = format!("{}. {}", "la casa roja del pueblo antigua ".repeat(3).trim_end(), "Bien, claro. ".repeat(8));
    assert!(lengths(&text)[0] <= 120, "{:?}", lengths(&text));
}

#[test]
fn inline_phonemes_are_taken_as_they_are() {
    let Reference { american, .. } = reference();
    let phonemizer = phonemizer(&american, Language::AmericanEnglish);
    assert_eq!(spoken(&phonemizer, "[Kokoro](/kˈOkəɹO/) is good."), "kˈOkəɹO ɪz ɡˈʊd.");
}

#[test]
fn text_without_anything_to_speak_gives_nothing() {
    let spanish = Phonemizer::new(None, Language::Spanish).unwrap();
    for text in ["", " \n\n ", "...", "😀", "!?", "\u{200b}", "日本"] {
        assert_eq!(spanish.phonemize(text), [], "{text:?}");
    }
}

#[test]
fn voices_choose_the_language() {
    assert_eq!(Language::of_voice("bf_emma").unwrap(), Language::BritishEnglish);
    let error = Language::of_voice("jf_alpha").unwrap_err().to_string();
    assert_eq!(
        error,
        "speech in the language 'Japanese' is not supported; choose a voice for English, Spanish or Italian"
    );
}

#[test]
fn damaged_lexicons_are_refused() {
    let error = |json: &str| Lexicon::default().add_gold(json.as_bytes()).unwrap_err().to_string();
    assert!(error("[]").contains("not a JSON object"));
    assert!(error(r#"{"a": 1}"#).contains("a pronunciation, or an object"));
    assert!(error(r#"{"a": {"NOUN": "ˈA"}}"#).contains("no pronunciation under DEFAULT"));
    assert!(error(r#"{"a": "A%"}"#).contains("no phoneme"));
    assert!(error(&format!(r#"{{"a": "{}"}}"#, "A".repeat(101))).contains("longer than 100 characters"));
    let words: Vec<String> = (0..250_001).map(|number| format!(r#""w{number}":"A""#)).collect();
    assert_eq!(error(&format!("{{{}}}", words.join(","))), "the lexicon has 250001 words; the limit is 250000");
    let large = format!("{{{}}}", " ".repeat(8 << 20));
    assert_eq!(error(&large), "the lexicon has 8388610 bytes; the limit is 8388608");
    assert!(Phonemizer::new(None, Language::AmericanEnglish).err().unwrap().to_string().contains("needs a lexicon"));
}

#[test]
fn the_last_of_two_entries_of_a_word_counts() {
    let mut lexicon = Lexicon::default();
    let json =
        r#"{"b": "b", "a": {"DEFAULT": "A", "VERB": "b"}, "a": {"NOUN": "b", "NOUN": "d", "DEFAULT": null}, "b": "d"}"#;
    lexicon.add_gold(json.as_bytes()).unwrap();
    let get = |word: &str, tag: Tag| lexicon.get(word, tag, false);
    assert_eq!(get("b", Tag::Noun), Some(Found::Phonemes("d")));
    assert_eq!(get("a", Tag::Noun), Some(Found::Phonemes("d")));
    assert_eq!((get("a", Tag::Verb), get("A", Tag::Verb)), (Some(Found::Spelled), None));
    assert!(lexicon.is_heteronym("a") && !lexicon.is_heteronym("b"));
    assert_eq!(lexicon.words().collect::<Vec<_>>(), [("b", "d")]);
}

fn check_output(sentences: &[Sentence]) -> Result<(), TestCaseError> {
    for Sentence { phonemes, .. } in sentences {
        prop_assert!((1..=MAX_PHONEMES).contains(&phonemes.chars().count()));
        let known = |symbol: char| is_symbol(symbol) || is_punctuation(symbol) || symbol == ' ';
        prop_assert!(phonemes.chars().all(known), "{phonemes}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_text_gives_only_symbols_that_the_model_knows(
        text in "(\\PC{0,30}|[a-zA-Z0-9.,:;/'\"()\\[\\]€$%°@#*_<>\n -]{0,60}|[0-9.,:/–-]{0,20}|[áéíñüàèò]{0,9}){0,4}",
    ) {
        thread_local! {
            static ALL: Vec<Phonemizer> = {
                let reference = reference();
                vec![
                    phonemizer(&reference.american, Language::AmericanEnglish),
                    phonemizer(&reference.british, Language::BritishEnglish),
                    Phonemizer::new(None, Language::Spanish).unwrap(),
                    Phonemizer::new(None, Language::Italian).unwrap(),
                ]
            };
        }
        ALL.with(|all| all.iter().try_for_each(|phonemizer| check_output(&phonemizer.phonemize(&text))))?;
    }
}

/// Long repetitions take time in proportion to their length, and little stack. The limit is far above that time, and far
/// below what a quadratic algorithm takes.
#[test]
fn hostile_patterns_take_linear_time() {
    const PATTERNS: [&str; 44] = [
        "[",
        "[a](",
        "((((",
        "<",
        "<a ",
        "<a b=",
        "a.",
        "1-",
        "1.",
        "1,2/",
        "http://a.",
        "-",
        "'",
        "a'",
        "$",
        "*",
        "\n",
        "\u{301}",
        "a\u{301}",
        "𝕳",
        "A",
        "\"",
        "…",
        "@",
        "Dr. ",
        "1~",
        "1–",
        "1—",
        "1.5-",
        "$1-",
        "1:",
        "1/",
        "1,",
        "a-",
        "1st ",
        "€",
        "10^",
        "⁶",
        "2⅜",
        "-1",
        "1 1/2 ",
        "1e-",
        "XX ",
        "α",
    ];
    let (done, results) = std::sync::mpsc::channel();
    let work = move || {
        let Reference { american, .. } = reference();
        let phonemizers = [
            phonemizer(&american, Language::AmericanEnglish),
            Phonemizer::new(None, Language::Spanish).unwrap(),
            Phonemizer::new(None, Language::Italian).unwrap(),
        ];
        for pattern in PATTERNS {
            let text = pattern.repeat(25_000);
            for (language, phonemizer) in phonemizers.iter().enumerate() {
                let sentences = phonemizer.phonemize(&text);
                let fits = sentences.iter().all(|sentence| sentence.phonemes.chars().count() <= MAX_PHONEMES);
                done.send((pattern, language, fits)).unwrap();
            }
        }
    };
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(work).unwrap();
    let mut last = ("", 0);
    for _ in 0..PATTERNS.len() * 3 {
        let result = results.recv_timeout(std::time::Duration::from_secs(20));
        let (pattern, language, fits) = result.unwrap_or_else(|error| panic!("after {last:?}: {error}"));
        assert!(fits, "{pattern}");
        last = (pattern, language);
    }
    thread.join().unwrap();
}
