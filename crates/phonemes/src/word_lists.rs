//! Closed classes of English words.

/// Determiners and possessives.
pub const DETERMINERS: [&str; 31] = [
    "a", "an", "the", "this", "these", "those", "my", "your", "his", "her", "its", "our", "their", "some", "any", "no",
    "every", "each", "another", "either", "neither", "which", "whose", "what", "many", "several", "few", "all", "both",
    "such", "own",
];
/// Subject pronouns and what is contracted with them.
pub const SUBJECTS: [&str; 10] = ["i", "you", "he", "she", "it", "we", "they", "who", "someone", "everyone"];
/// Subjects that take a verb in -s.
pub const THIRD_PERSON: [&str; 6] = ["he", "she", "it", "who", "someone", "everyone"];
pub const OBJECTS: [&str; 9] = ["me", "him", "her", "it", "us", "them", "you", "myself", "yourself"];
pub const MODALS: [&str; 15] = [
    "will",
    "would",
    "can",
    "could",
    "shall",
    "should",
    "may",
    "might",
    "must",
    "cannot",
    "can't",
    "won't",
    "couldn't",
    "wouldn't",
    "shouldn't",
];
/// Forms of *do*.
pub const AUXILIARIES: [&str; 6] = ["do", "does", "did", "don't", "doesn't", "didn't"];
pub const BE: [&str; 14] =
    ["is", "are", "was", "were", "be", "been", "being", "am", "isn't", "aren't", "wasn't", "weren't", "i'm", "it's"];
pub const HAVE: [&str; 10] =
    ["have", "has", "had", "having", "haven't", "hasn't", "hadn't", "i've", "we've", "they've"];
pub const PREPOSITIONS: [&str; 28] = [
    "of", "in", "on", "at", "for", "with", "by", "from", "about", "into", "without", "between", "through", "during",
    "under", "over", "after", "before", "against", "among", "within", "across", "behind", "beyond", "near", "per",
    "upon", "via",
];
/// Adverbs that stand before verbs and adjectives.
pub const ADVERBS: [&str; 28] = [
    "very",
    "so",
    "too",
    "more",
    "most",
    "quite",
    "really",
    "always",
    "never",
    "often",
    "usually",
    "also",
    "just",
    "still",
    "already",
    "not",
    "only",
    "rather",
    "sometimes",
    "ever",
    "even",
    "now",
    "then",
    "soon",
    "recently",
    "finally",
    "less",
    "well",
];
const OTHERS: [&str; 16] = [
    "and", "or", "but", "to", "that", "if", "when", "while", "because", "as", "than", "there", "where", "how", "why",
    "since",
];

/// Whether the word is of a closed class: it is not a noun, and seldom begins a name.
pub fn is_function_word(word: &str) -> bool {
    let lists: [&[&str]; 10] =
        [&DETERMINERS, &SUBJECTS, &OBJECTS, &MODALS, &AUXILIARIES, &BE, &HAVE, &PREPOSITIONS, &ADVERBS, &OTHERS];
    lists.iter().any(|list| list.contains(&word))
}
