//! Guesses the part of speech of a word from the words around it, for words whose pronunciation depends on it.
//!
//! The tags are those that the lexicons use. The rules look at three words before and two after, so they cost the same for
//! every word. They are rules of thumb for words such as *record*, *live* and *read*, not a tagger for all words.

use super::word_lists::{
    ADVERBS, AUXILIARIES, BE, DETERMINERS, HAVE, MODALS, OBJECTS, PREPOSITIONS, SUBJECTS, THIRD_PERSON,
    is_function_word,
};

/// A part of speech as the lexicons name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tag {
    Noun,
    Verb,
    Past,
    Participle,
    Present,
    Adjective,
    /// Stands before a noun: an adjective, or a noun in a compound.
    Modifier,
    Adverb,
    Determiner,
    /// Not a part of speech: the word stands before a pause.
    BeforePause,
    Other,
}

impl Tag {
    /// The tag of a lexicon's key; `None` if no rule uses it.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "NOUN" => Self::Noun,
            "VERB" => Self::Verb,
            "VBD" => Self::Past,
            "VBN" => Self::Participle,
            "VBP" => Self::Present,
            "ADJ" => Self::Adjective,
            "ADV" => Self::Adverb,
            "DT" => Self::Determiner,
            "None" => Self::BeforePause,
            "DEFAULT" => Self::Other,
            _ => return None,
        })
    }

    /// The tag and those whose pronunciation serves if the lexicon does not have it.
    pub fn with_fallbacks(self) -> &'static [Self] {
        match self {
            Self::Noun => &[Self::Noun],
            Self::Modifier => &[Self::Adjective, Self::Noun],
            Self::Verb => &[Self::Verb],
            Self::Past => &[Self::Past, Self::Verb],
            Self::Participle => &[Self::Participle, Self::Verb],
            Self::Present => &[Self::Present, Self::Verb],
            Self::Adjective => &[Self::Adjective],
            Self::Adverb => &[Self::Adverb],
            Self::Determiner => &[Self::Determiner],
            Self::BeforePause | Self::Other => &[],
        }
    }
}

/// A word and its neighbours in lower case. Beyond a pause or the sentence the neighbours are empty.
#[derive(Debug, Default, Clone, Copy)]
pub struct Context<'a> {
    pub word: &'a str,
    /// The nearest word first.
    pub before: [&'a str; 3],
    pub after: [&'a str; 2],
}

/// The most probable part of speech.
pub fn tag(context: &Context) -> Tag {
    match context.word {
        "that" => tag_that(context),
        "read" | "reread" => tag_read(context),
        "used" => tag_used(context),
        "close" | "closer" => tag_close(context),
        "wound" => tag_wound(context),
        "live" | "lives" => tag_live(context),
        "minute" => tag_minute(context),
        "underground" | "uphill" | "overall" => tag_adverb(context),
        "invalid" if tag_word(context) == Tag::Modifier => Tag::Adjective,
        _ => tag_word(context),
    }
}

fn tag_word(context: &Context) -> Tag {
    let Context { word, before: [previous, second, _], after: [next, _] } = *context;
    let ends_in_s = word.ends_with('s') && !word.ends_with("ss");
    let is_past = word.ends_with("ed");
    if is_infinitive(context) {
        return if ends_in_s { Tag::Noun } else { Tag::Verb };
    }
    if is_subject(previous) && second != "of" && (!ends_in_s || THIRD_PERSON.contains(&previous) || previous == "that")
    {
        let agrees = ends_in_s || is_past || !THIRD_PERSON.contains(&previous);
        return if agrees { Tag::Verb } else { Tag::Adjective };
    }
    if HAVE.contains(&previous) && !is_past {
        return Tag::Noun;
    }
    if is_determiner(previous) {
        return if next.is_empty() || is_function_word(next) || ends_in_s { Tag::Noun } else { Tag::Modifier };
    }
    if BE.contains(&previous) || (BE.contains(&second) && ADVERBS.contains(&previous)) {
        return if is_past { Tag::Verb } else { Tag::Adjective };
    }
    if PREPOSITIONS.contains(&previous) {
        return if is_nominal_end(next) || ends_in_s { Tag::Noun } else { Tag::Modifier };
    }
    let follows_plural = is_plural(previous) && !ends_in_s;
    if follows_plural && (PREPOSITIONS.contains(&next) || matches!(next, "well" | "together")) {
        return Tag::Verb;
    }
    if matches!(word, "upset" | "undercut" | "sublet") && takes_object(next) {
        return Tag::Verb;
    }
    if takes_object(next) && (previous.is_empty() || ADVERBS.contains(&previous) || is_plural(previous) != ends_in_s) {
        return Tag::Verb;
    }
    if ADVERBS.contains(&previous) && is_past {
        return Tag::Verb;
    }
    if previous.is_empty() && !is_function_word(next) && !next.is_empty() { Tag::Modifier } else { Tag::Noun }
}

/// Whether the word follows *to*, a modal verb or another word that an infinitive follows, with at most one adverb between.
fn is_infinitive(context: &Context) -> bool {
    let [previous, second, _] = context.before;
    let leads = |word: &str| {
        MODALS.contains(&word) || AUXILIARIES.contains(&word) || word.ends_with("'ll") || word.ends_with("'d")
    };
    let after_to =
        |word: &str, before: &str| word == "to" && !matches!(before, "according" | "due" | "thanks" | "prior");
    let between = matches!(previous, "not") || ADVERBS.contains(&previous) || is_subject(previous);
    leads(previous)
        || after_to(previous, second)
        || (between && (leads(second) || (second == "to" && !is_subject(previous))))
        || matches!(previous, "let's" | "please" | "lets")
        || (second == "let" && OBJECTS.contains(&previous))
}

fn is_subject(word: &str) -> bool {
    SUBJECTS.contains(&word)
}

fn is_determiner(word: &str) -> bool {
    DETERMINERS.contains(&word) || (word.ends_with("'s") && !is_subject(word.trim_end_matches("'s")))
}

/// Whether a noun phrase can end before this word.
fn is_nominal_end(next: &str) -> bool {
    next.is_empty() || is_function_word(next)
}

fn takes_object(next: &str) -> bool {
    DETERMINERS.contains(&next) || OBJECTS.contains(&next) || next == "to" || next == "that"
}

fn is_plural(word: &str) -> bool {
    word.ends_with('s') && !word.ends_with("ss") && !word.ends_with("us") && !word.ends_with("'s")
        || matches!(word, "people" | "children" | "men" | "women")
}

fn tag_that(context: &Context) -> Tag {
    let Context { before: [previous, ..], after: [next, _], .. } = *context;
    let opens_clause = is_subject(next) || DETERMINERS.contains(&next) || OBJECTS.contains(&next) || next == "there";
    let is_free = previous.is_empty()
        || PREPOSITIONS.contains(&previous)
        || matches!(previous, "and" | "but" | "or" | "is" | "was");
    let verb_follows =
        BE.contains(&next) || MODALS.contains(&next) || HAVE.contains(&next) || AUXILIARIES.contains(&next);
    if next.is_empty() || previous == "that" || (is_free && !opens_clause) {
        return Tag::Determiner;
    }
    let is_verb_before = AUXILIARIES.contains(&previous) || MODALS.contains(&previous) || is_infinitive(context);
    if is_verb_before && !opens_clause && !verb_follows { Tag::Determiner } else { Tag::Other }
}

fn tag_read(context: &Context) -> Tag {
    let Context { before: [previous, second, third], after: [next, _], .. } = *context;
    let has = |words: &[&str]| words.contains(&previous) || (ADVERBS.contains(&previous) && words.contains(&second));
    if is_infinitive(context) {
        return Tag::Verb;
    }
    if has(&HAVE) || has(&BE) || [previous, second].iter().any(|word| word.ends_with("'ve")) {
        return Tag::Participle;
    }
    if HAVE.contains(&second) && (is_subject(previous) || HAVE.contains(&third)) {
        return Tag::Participle;
    }
    if is_determiner(previous) {
        return Tag::Other;
    }
    if previous.is_empty() || matches!(previous, "and" | "then") {
        return if previous == "and" && is_past_form(second) { Tag::Past } else { Tag::Verb };
    }
    let is_person = is_subject(previous) && !THIRD_PERSON.contains(&previous);
    if is_person && matches!(second, "when" | "if" | "as" | "whenever") && next != "it" {
        return Tag::Verb;
    }
    Tag::Past
}

fn is_past_form(word: &str) -> bool {
    word.ends_with("ed")
        || matches!(word, "sat" | "took" | "went" | "got" | "had" | "was" | "came" | "found" | "bought" | "wrote")
}

fn tag_used(context: &Context) -> Tag {
    let Context { before: [previous, second, _], after: [next, _], .. } = *context;
    let is_passive = |word: &str| BE.contains(&word) || HAVE.contains(&word) || word.ends_with("'s") && word != "it's";
    let passive = is_passive(previous) || (ADVERBS.contains(&previous) && is_passive(second)) || previous == "get";
    if next == "to" && !passive { Tag::Past } else { Tag::Other }
}

fn tag_close(context: &Context) -> Tag {
    let Context { before: [previous, ..], after: [next, _], .. } = *context;
    if is_infinitive(context) && context.word == "close" && next != "to" {
        return Tag::Verb;
    }
    let takes_object = DETERMINERS.contains(&next) || matches!(next, "it" | "them" | "at" | "up" | "down" | "out");
    if (previous.is_empty() || is_plural(previous) || is_subject(previous)) && takes_object && context.word == "close" {
        return Tag::Verb;
    }
    if matches!(previous, "the" | "its") && matches!(next, "of") { Tag::Noun } else { Tag::Other }
}

/// Words that are adverbs after verbs, and adjectives before nouns.
fn tag_adverb(context: &Context) -> Tag {
    let Context { before: [previous, ..], after: [next, _], .. } = *context;
    let after_verb = !is_determiner(previous) && !PREPOSITIONS.contains(&previous) && !BE.contains(&previous);
    if after_verb && is_nominal_end(next) { Tag::Adverb } else { Tag::Other }
}

fn tag_minute(context: &Context) -> Tag {
    let is_tiny = matches!(
        context.after[0],
        "detail" | "details" | "amount" | "amounts" | "quantities" | "particles" | "differences"
    );
    if is_tiny { Tag::Adjective } else { Tag::Noun }
}

fn tag_wound(context: &Context) -> Tag {
    let Context { before: [previous, ..], after: [next, _], .. } = *context;
    let winds = matches!(next, "up" | "around" | "down" | "through" | "its" | "round" | "back" | "the");
    if winds && !is_determiner(previous) { Tag::Past } else { Tag::Noun }
}

fn tag_live(context: &Context) -> Tag {
    let Context { word, before: [previous, second, _], after: [next, _] } = *context;
    let plural_noun = word == "lives";
    let place = matches!(
        next,
        "in" | "at"
            | "with"
            | "on"
            | "here"
            | "there"
            | "near"
            | "alone"
            | "together"
            | "by"
            | "without"
            | "to"
            | "for"
            | "under"
            | "where"
    );
    if is_infinitive(context) {
        return if plural_noun { Tag::Noun } else { Tag::Verb };
    }
    if is_determiner(previous) || PREPOSITIONS.contains(&previous) {
        return Tag::Noun;
    }
    let is_shown = matches!(
        previous,
        "broadcast" | "streamed" | "shown" | "performed" | "recorded" | "aired" | "go" | "goes" | "went"
    );
    let is_adjective = is_shown || BE.contains(&previous) || BE.contains(&second) && ADVERBS.contains(&previous);
    if !plural_noun && is_adjective {
        return Tag::Other;
    }
    if plural_noun && (BE.contains(&next) || HAVE.contains(&next) || MODALS.contains(&next)) {
        return Tag::Noun;
    }
    let has_subject =
        is_subject(previous) || previous == "that" || is_plural(previous) != plural_noun && !previous.is_empty();
    if has_subject || place && (!plural_noun || !is_plural(previous)) { Tag::Verb } else { Tag::Noun }
}
