//! Where Italian words have their stress: spelling marks it only on a last vowel.

use super::syllables::{Sound, accented, nuclei};

/// Words without stress of their own.
const UNSTRESSED: [&str; 46] = [
    "il", "lo", "la", "i", "gli", "le", "un", "uno", "una", "di", "a", "da", "in", "con", "su", "per", "tra", "fra",
    "e", "ed", "o", "che", "mi", "ti", "si", "ci", "vi", "ne", "del", "al", "dal", "nel", "sul", "non", "se", "ma",
    "ha", "ho", "hai", "dei", "ai", "dai", "nei", "sui", "col", "ad",
];
/// Endings before which the stress is on the third syllable from the end.
const EARLY_STRESS: [&str; 60] = [
    "issimo", "issima", "issimi", "issime", "abile", "abili", "ibile", "ibili", "evole", "evoli", "ico", "ica", "ici",
    "iche", "ologo", "ografo", "ometro", "udine", "agine", "igine", "esimo", "esima", "colo", "cola", "coli", "cole",
    "polo", "poli", "bolo", "vola", "vole", "tolo", "toli", "gola", "gole", "bero", "mmero", "ssero", "ebbero", "dono",
    "gono", "avano", "evano", "ivano", "arono", "erono", "irono", "assimo", "essimo", "ciano", "giano", "gliano",
    "andolo", "andola", "andoli", "andole", "endolo", "endola", "endoli", "endole",
];
/// Words in -ano and -ono that are no verbs.
const NO_VERBS: [&str; 30] = [
    "lontano",
    "umano",
    "romano",
    "americano",
    "africano",
    "messicano",
    "toscano",
    "vulcano",
    "divano",
    "capitano",
    "sovrano",
    "sultano",
    "invano",
    "pagano",
    "urbano",
    "germano",
    "repubblicano",
    "cubano",
    "vaticano",
    "veneziano",
    "abbandono",
    "perdono",
    "patrono",
    "artigiano",
    "partigiano",
    "parmigiano",
    "siciliano",
    "padano",
    "fagiano",
    "baciano",
];
/// Endings in -ia whose i is stressed.
const STRESSED_I: [&str; 13] = [
    "logia",
    "logie",
    "grafia",
    "grafie",
    "nomia",
    "nergia",
    "attia",
    "attie",
    "legria",
    "sofia",
    "crazia",
    "trattoria",
    "dia",
];
/// Frequent words with their stress on the third syllable from the end.
const EARLY_WORDS: [&str; 40] = [
    "essere",
    "vivere",
    "vendere",
    "prendere",
    "leggere",
    "scrivere",
    "chiedere",
    "correre",
    "perdere",
    "ridere",
    "mettere",
    "credere",
    "rispondere",
    "chiudere",
    "conoscere",
    "nascere",
    "crescere",
    "giovane",
    "giovani",
    "ordine",
    "numero",
    "numeri",
    "genere",
    "lettera",
    "lettere",
    "camera",
    "camere",
    "opera",
    "opere",
    "sabato",
    "domenica",
    "macchina",
    "pagina",
    "pagine",
    "anima",
    "ultimo",
    "ultima",
    "prossimo",
    "massimo",
    "minimo",
];
const EARLY_WORDS_TOO: [&str; 24] = [
    "parlano",
    "cercano",
    "mangiano",
    "arrivano",
    "trovano",
    "restano",
    "portano",
    "dormono",
    "vogliono",
    "possono",
    "devono",
    "vengono",
    "tengono",
    "isola",
    "isole",
    "facile",
    "difficile",
    "simile",
    "utile",
    "umile",
    "albero",
    "alberi",
    "povero",
    "telefono",
];

/// Whether the word has no stress of its own.
pub fn is_unstressed(spelling: &str) -> bool {
    UNSTRESSED.contains(&spelling)
}

/// Whether a final *-ia* or *-io* has its stress on the i.
pub fn has_stressed_i(spelling: &str) -> bool {
    let is_exception = matches!(spelling, "materia" | "miseria" | "arteria");
    spelling.len() < 4
        || STRESSED_I.iter().any(|ending| spelling.ends_with(ending))
        || (spelling.ends_with("eria") && !is_exception)
}

/// The syllable with the stress: the accent, or the last but one, or the third from the end of words that are known for it.
pub fn stressed(spelling: &str, sounds: &[Sound]) -> Option<usize> {
    let syllables = nuclei(sounds).len();
    let last = syllables.checked_sub(1)?;
    if let Some(accented) = accented(sounds) {
        return Some(accented);
    }
    let is_verb = last > 1 && (spelling.ends_with("ano") && !spelling.ends_with("iano") || spelling.ends_with("ono"));
    if NO_VERBS.contains(&spelling) {
        return Some(last.saturating_sub(1));
    }
    let listed = EARLY_WORDS.contains(&spelling) || EARLY_WORDS_TOO.contains(&spelling);
    let is_early = is_verb || listed || EARLY_STRESS.iter().any(|ending| spelling.ends_with(ending));
    Some(last.saturating_sub(if is_early { 2 } else { 1 }))
}
