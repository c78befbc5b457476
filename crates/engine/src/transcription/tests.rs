//! Tests of decoding with a vocabulary of ten words.

use std::sync::Arc;
use std::time::Duration;

use super::events::EventSender;
use super::prepared_request::{Language, PreparedRequest};
use super::request::{SAMPLE_RATE, SpeechWindow, TranscriptionEvent};
use super::scheduler::{TranscriptionScheduler, WindowJob};
use super::segments::{Cut, TokenSegment, cut};
use super::token_rules::TokenRules;
use super::vocabulary::{TIMESTAMPS, WhisperVocabulary};
use super::window_decoder::{DecodedWindow, DecodingOptions, NotFinite, Progress, WindowDecoder};
use super::words::{self, TokenWord};
use crate::error::Failure;
use crate::tokenizer::Vocabulary;

#[rustfmt::skip]
const TOKENS: [&str; 20] = [
    " one", " two", " three", "teen", ",", " ", " \"", ".", " four", " five",
    "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>", "<|startoflm|>",
    "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
];
const END: u32 = 10;
const NO_SPEECH: usize = 18;
/// The token of 0.00.
const ZERO: u32 = 20;
const ROWS: usize = (ZERO + TIMESTAMPS) as usize;

fn vocabulary(multilingual: bool) -> Arc<WhisperVocabulary> {
    let tokens = Vocabulary::of(&TOKENS);
    Arc::new(WhisperVocabulary::new(tokens, ROWS, multilingual, &["en", "de", "fr"]).unwrap())
}

fn options(temperature: f32, multilingual: bool) -> DecodingOptions {
    DecodingOptions {
        vocabulary: vocabulary(multilingual),
        rules: Arc::new(TokenRules {
            suppressed: vec![9],
            suppressed_first: vec![5, END],
            max_first_timestamp: Some(50),
        }),
        prompt: Vec::new(),
        translate: false,
        temperature,
        seed: 7,
        positions: 40,
    }
}

/// Logits that favour one token, and slightly the next ones.
fn favour(id: u32) -> Vec<f32> {
    let mut logits: Vec<f32> = (0..ROWS).map(|at| -(at as f32) * 1e-3).collect();
    logits[id as usize] = 20.;
    logits
}

/// Decodes with logits that favour `wanted`, one after another, from the prefill on.
fn decode(decoder: &mut WindowDecoder, wanted: &[u32]) -> Progress {
    for id in wanted {
        let rows = decoder.next_tokens().logits_of.len();
        let mut logits = vec![favour(*id); rows];
        let mut logits: Vec<&mut [f32]> = logits.iter_mut().map(Vec::as_mut_slice).collect();
        match decoder.advance(&mut logits).unwrap() {
            Progress::Continue => {}
            other => return other,
        }
    }
    Progress::Continue
}

fn done(progress: Progress) -> DecodedWindow {
    let Progress::Done(decoded) = progress else { panic!("{progress:?}") };
    decoded
}

#[test]
fn the_vocabulary_knows_its_special_tokens() {
    let multilingual = vocabulary(true);
    assert_eq!(multilingual.start_tokens(multilingual.language("de"), true), [11, 13, 14]);
    assert_eq!(multilingual.start_tokens(multilingual.language("en"), false), [11, 12, 15]);
    assert_eq!((multilingual.language("fr"), multilingual.language_code(13)), (None, Some("de")));
    assert_eq!((multilingual.timestamp(ZERO + 50), multilingual.timestamp(9)), (Some(50), None));
    assert_eq!(multilingual.text(&[ZERO, 0, 3, 11, 4, ZERO + 5]), " oneteen,");
    assert_eq!(vocabulary(false).start_tokens(None, false), [11]);
    let few = WhisperVocabulary::new(Vocabulary::of(&TOKENS), ROWS - 1, true, &["en"]);
    assert!(few.unwrap_err().contains("timestamp"));
    let damaged = WhisperVocabulary::new(Vocabulary::of(&TOKENS[..17]), ROWS, true, &["en"]);
    assert!(damaged.unwrap_err().contains("<|notimestamps|>"));
}

/// The tokens that the rules allow after `generated`.
fn allowed(generated: &[u32]) -> Vec<u32> {
    let options = options(0., true);
    // So low that timestamps are together less likely than any word.
    let mut logits = vec![0.; ROWS];
    logits[ZERO as usize..].fill(-10.);
    options.rules.apply(&options.vocabulary, generated, &mut logits);
    (0..ROWS as u32).filter(|id| logits[*id as usize] > f32::NEG_INFINITY).collect()
}

#[test]
fn timestamps_come_in_ordered_pairs() {
    let times = |from: u32, to: u32| (ZERO + from..ZERO + to).collect::<Vec<_>>();
    assert_eq!(allowed(&[]), times(0, 51), "the first token is an early timestamp");
    let text: Vec<u32> = (0..ZERO).filter(|id| ![9, 19].contains(id)).collect();
    assert_eq!(allowed(&[ZERO + 3]), text, "text after the first timestamp");
    assert_eq!(allowed(&[ZERO + 3, 0]), [text.clone(), times(4, TIMESTAMPS)].concat());
    let pair = allowed(&[ZERO + 3, 0, ZERO + 9]);
    let specials: Vec<u32> = (END..19).collect();
    assert_eq!(pair, [specials, times(9, TIMESTAMPS)].concat(), "the next segment, or the end");
    assert_eq!(allowed(&[ZERO + 3, 0, ZERO + 9, ZERO + 9]), text);
    let mut likely = vec![0.; ROWS];
    let options = options(0., true);
    options.rules.apply(&options.vocabulary, &[ZERO, 0], &mut likely);
    assert!(likely[..ZERO as usize].iter().all(|logit| *logit == f32::NEG_INFINITY), "timestamps are more likely");
}

#[test]
fn a_window_is_decoded_from_its_start_tokens() {
    let mut decoder = WindowDecoder::new(Arc::new(options(0., true)), Some(13), 0);
    let next = decoder.next_tokens();
    assert_eq!((next.position, next.tokens, next.logits_of), (0, &[11, 13, 15][..], vec![0, 2]));
    assert_eq!(decode(&mut decoder, &[ZERO, 0]), Progress::Continue);
    let next = decoder.next_tokens();
    assert_eq!((next.position, next.tokens, next.logits_of), (4, &[0][..], vec![0]));
    let decoded = done(decode(&mut decoder, &[1, ZERO + 100, END]));
    assert_eq!((decoded.start_tokens, decoded.tokens), (vec![11, 13, 15], vec![ZERO, 0, 1, ZERO + 100]));
    assert_eq!((decoded.temperature, decoded.is_silent, decoded.logprobs.len()), (0., false, 4));
    assert!(decoded.avg_logprob > -0.01 && decoded.no_speech_prob < 0.01);
}

#[test]
fn a_prompt_precedes_the_start_of_the_transcript() {
    let options = DecodingOptions { prompt: vec![0, 1], ..options(0., false) };
    let mut decoder = WindowDecoder::new(Arc::new(options), None, 0);
    let next = decoder.next_tokens();
    assert_eq!((next.tokens, next.logits_of), (&[17, 0, 1, 11][..], vec![3]));
    decode(&mut decoder, &[ZERO]);
    assert_eq!(decoder.next_tokens().position, 4);
}

#[test]
fn a_text_after_a_long_prompt_ends_with_the_positions() {
    let options = DecodingOptions { prompt: vec![0; 30], ..options(0.4, false) };
    let (prefix, positions) = (32, options.positions);
    let mut decoder = WindowDecoder::new(Arc::new(options), None, 0);
    let Progress::Done(window) = decode(&mut decoder, &[&[ZERO][..], &[1; 20]].concat()) else { panic!("goes on") };
    // The last token is not an input of the network.
    assert_eq!(window.tokens.len(), positions - prefix + 1);
}

#[test]
fn an_unknown_language_is_detected_first() {
    let mut decoder = WindowDecoder::new(Arc::new(options(0., true)), None, 0);
    assert_eq!(decoder.next_tokens().tokens, [11]);
    // A word is more likely than the languages, but only these count.
    let mut logits = favour(3);
    logits[13] = 1.;
    assert_eq!(decoder.advance(&mut [&mut logits]), Ok(Progress::Language(13)));
    assert_eq!(decoder.next_tokens().tokens, [11, 13, 15]);
    assert_eq!(decoder.advance(&mut [&mut [f32::NAN; ROWS]]), Err(NotFinite));
}

#[test]
fn repetitive_text_is_decoded_again_with_higher_temperatures() {
    let repetitive = [&[ZERO][..], &[0; 19]].concat();
    let mut decoder = WindowDecoder::new(Arc::new(options(0., false)), None, 0);
    for _ in 0..5 {
        assert_eq!(decode(&mut decoder, &repetitive), Progress::Continue, "it repeats itself");
        assert_eq!(decoder.next_tokens().position, 0);
    }
    let decoded = done(decode(&mut decoder, &repetitive));
    assert!((decoded.temperature - 1.).abs() < 1e-5 && decoded.compression_ratio > 2.4, "{decoded:?}");
    let mut decoder = WindowDecoder::new(Arc::new(options(0.4, false)), None, 0);
    let kept = done(decode(&mut decoder, &repetitive));
    assert_eq!((kept.temperature, kept.tokens.len()), (0.4, 20), "the client has set the temperature");
}

#[test]
fn an_improbable_text_without_speech_is_silence() {
    let mut decoder = WindowDecoder::new(Arc::new(options(0., false)), None, 0);
    let mut logits = vec![0.; ROWS];
    logits[NO_SPEECH] = 20.;
    // All timestamps are equally likely, and so are the words.
    assert_eq!(decoder.advance(&mut [&mut logits]), Ok(Progress::Continue));
    decoder.advance(&mut [&mut vec![0.; ROWS]]).unwrap();
    let mut even = vec![0.; ROWS];
    even[END as usize] = 0.01;
    even[ZERO as usize..].fill(-10.);
    let decoded = done(decoder.advance(&mut [&mut even]).unwrap());
    assert!(decoded.is_silent && decoded.no_speech_prob > 0.9 && decoded.avg_logprob < -1., "{decoded:?}");
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let text = |seed, window| {
        let options = DecodingOptions { seed, ..options(1., false) };
        let mut decoder = WindowDecoder::new(Arc::new(options), None, window);
        loop {
            let mut logits = vec![0.; ROWS];
            logits[ZERO as usize..].fill(-3.);
            logits[END as usize] = -2.;
            if let Progress::Done(decoded) = decoder.advance(&mut [&mut logits]).unwrap() {
                return decoded.tokens;
            }
        }
    };
    assert_eq!(text(1, 0), text(1, 0));
    assert_ne!(text(1, 0), text(2, 0));
    assert_ne!(text(1, 0), text(1, 1));
}

#[test]
fn segments_end_at_pairs_of_timestamps() {
    let vocabulary = vocabulary(false);
    let at = |time: u32| ZERO + time;
    let segment = |start, end, tokens| TokenSegment { start, end, tokens };
    let two = [at(0), 0, at(100), at(120), 1, at(200)];
    let segments = vec![segment(0, 100, 0..3), segment(120, 200, 3..6)];
    assert_eq!(cut(&vocabulary, &two, 500), Cut { segments, unfinished: None });
    let open = [at(0), 0, at(100), at(120), 1, at(200), at(200)];
    let found = cut(&vocabulary, &open, 500);
    assert_eq!((found.segments.len(), found.unfinished), (2, Some(segment(200, 500, 6..7))));
    let with_text = cut(&vocabulary, &[&open[..], &[0, 1]].concat(), 500);
    assert_eq!(with_text.unfinished, Some(segment(200, 500, 6..9)));
    let one = [at(20), 0, 1, at(90)];
    assert_eq!(cut(&vocabulary, &one, 500).segments, [segment(20, 90, 0..4)]);
    let no_end = [at(20), 0, 1];
    assert_eq!(cut(&vocabulary, &no_end, 500).segments, [segment(20, 500, 0..3)]);
    assert_eq!(cut(&vocabulary, &no_end, 15).segments, [segment(0, 15, 0..3)], "it begins after its end");
    assert_eq!(cut(&vocabulary, &[at(0), at(100)], 500).segments, [], "there is no text");
    assert_eq!(cut(&vocabulary, &[], 500), Cut::default());
}

#[test]
fn words_begin_with_spaces_or_are_punctuation() {
    let vocabulary = vocabulary(false);
    let word = |text: &str, tokens| TokenWord { text: text.to_owned(), tokens };
    let found = words::split(&vocabulary, &[0, 3, 4, 6, 1, 7], "en");
    assert_eq!(found, [word(" oneteen", 2), word(",", 1), word(" \"", 1), word(" two", 1), word(".", 1)]);
    let characters = words::split(&vocabulary, &[0, 3], "ja");
    assert_eq!(characters, [word(" one", 1), word("teen", 1)]);
}

/// The engine's part of a queue of requests.
struct Queue {
    scheduler: TranscriptionScheduler<()>,
    model: Arc<()>,
}

/// The client's part of a request.
struct Client {
    windows: std::sync::mpsc::SyncSender<SpeechWindow>,
    events: tokio::sync::mpsc::UnboundedReceiver<Result<TranscriptionEvent, Failure>>,
}

impl Queue {
    fn new() -> Self {
        Self { scheduler: TranscriptionScheduler::new(), model: Arc::default() }
    }

    fn push(&mut self, tenant: u128, language: Language, windows: usize) -> Client {
        let (sender, input) = std::sync::mpsc::sync_channel(16);
        let (events, receiver): (EventSender, _) = tokio::sync::mpsc::unbounded_channel();
        let request = PreparedRequest { tenant, options: Arc::new(options(0., true)), words: false, language };
        self.scheduler.push(Arc::clone(&self.model), request, (input, events), Duration::ZERO);
        for number in 0..windows {
            let samples = vec![0.; SAMPLE_RATE];
            let window = SpeechWindow { start: (number * SAMPLE_RATE) as u64, samples, speech: Vec::new() };
            sender.send(window).unwrap();
        }
        Client { windows: sender, events: receiver }
    }

    fn next(&mut self) -> Option<WindowJob<()>> {
        self.scheduler.next_window(Some(&self.model))
    }
}

const KNOWN: Language = Language::Known(Some(12));

#[test]
fn tenants_take_turns() {
    let mut queue = Queue::new();
    let _clients = [queue.push(1, KNOWN, 3), queue.push(2, KNOWN, 2)];
    let order: Vec<_> = std::iter::from_fn(|| queue.next()).map(|job| (job.request_id, job.number)).collect();
    assert_eq!(order, [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]);
}

#[test]
fn results_are_delivered_in_order() {
    let mut queue = Queue::new();
    let mut client = queue.push(1, KNOWN, 3);
    let jobs: Vec<_> = std::iter::from_fn(|| queue.next()).collect();
    for job in jobs.iter().rev() {
        assert!(client.events.try_recv().is_err());
        queue.scheduler.window_done(job.request_id, job.number, Vec::new(), job.number as f64);
    }
    for seconds in [0., 1., 2.] {
        let expected = TranscriptionEvent::Window { segments: Vec::new(), seconds };
        assert_eq!(client.events.try_recv().unwrap().unwrap(), expected);
    }
    drop(client.windows);
    queue.scheduler.drop_ended(Duration::from_secs(4));
    assert_eq!((queue.scheduler.requests(None), queue.scheduler.seconds()), (0, Some(0.)));
    drop(jobs);
    assert!(client.events.try_recv().is_err(), "it is complete");
}

#[test]
fn the_first_window_detects_the_language_alone() {
    let mut queue = Queue::new();
    let mut client = queue.push(1, Language::Unknown, 3);
    let first = queue.next().unwrap();
    assert!(queue.next().is_none());
    queue.scheduler.language_detected(first.request_id, 13, "de");
    let next = queue.next().unwrap();
    assert_eq!((next.number, next.language), (1, Language::Known(Some(13))));
    assert_eq!(client.events.try_recv().unwrap(), Ok(TranscriptionEvent::Language("de".to_owned())));
}

#[test]
fn a_batch_ends_when_another_model_is_next() {
    let mut queue = Queue::new();
    let _client = queue.push(1, KNOWN, 1);
    let other = Arc::new(());
    assert!(queue.scheduler.next_window(Some(&other)).is_none());
    assert!(queue.scheduler.next_window(None).is_some());
}

#[test]
fn cancelled_and_failed_requests_leave_the_queue() {
    let mut queue = Queue::new();
    let (cancelled, mut running, mut waiting) =
        (queue.push(1, KNOWN, 1), queue.push(2, KNOWN, 2), queue.push(3, KNOWN, 1));
    drop(cancelled);
    queue.scheduler.drop_ended(Duration::ZERO);
    assert_eq!(queue.scheduler.requests(None), 2);
    let job = queue.next().unwrap();
    queue.scheduler.fail_all(&Failure::ShuttingDown, false);
    assert_eq!(waiting.events.try_recv().unwrap(), Err(Failure::ShuttingDown), "it has not begun");
    assert!(running.events.try_recv().is_err() && !job.is_cancelled());
    queue.scheduler.fail(job.request_id, Failure::OutOfMemory);
    assert_eq!(running.events.try_recv().unwrap(), Err(Failure::OutOfMemory));
    queue.scheduler.window_done(job.request_id, job.number, Vec::new(), 1.);
    assert_eq!(queue.scheduler.requests(None), 0);
    assert!(running.windows.send(SpeechWindow::default()).is_err(), "nobody takes more audio");
}
