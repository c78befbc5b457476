//! What the labels of classifiers mean for moderation.
//!
//! Every publisher names labels differently. A table has the labels of well-known classifiers with OpenAI's categories; the
//! settings of a model take precedence over it. A label of a moderation model that is in neither counts as harmful under
//! its own name, because content that is flagged by mistake does less damage than content that is missed.
//!
//! A classifier without any label that is known to be harmful does something else, so it is refused rather than
//! trusted. `obscene` has no category: it means swear words, and `sexual` would be wrong. If the scores of a model add
//! up to 1, a harmful text may be split between several harmful labels, each below the threshold. Their sum is
//! therefore compared with the threshold, and the most likely one applies.

use std::collections::BTreeMap;

/// OpenAI's categories, <https://platform.openai.com/docs/guides/moderation>. Its clients require all of them.
pub const CATEGORIES: [&str; 13] = [
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/intent",
    "self-harm/instructions",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
];

/// The score from which a label applies to a text, unless the model's settings have another.
pub const DEFAULT_THRESHOLD: f32 = 0.5;

/// What a label means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelMeaning {
    /// It never flags a text.
    Safe,
    /// It flags a text, under its own name only.
    Unsafe,
    /// It flags a text, also under this one of [`CATEGORIES`].
    Category(&'static str),
}

impl LabelMeaning {
    /// Reads `safe`, `unsafe` or the name of a category.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "safe" => Some(Self::Safe),
            "unsafe" => Some(Self::Unsafe),
            name => CATEGORIES.into_iter().find(|category| *category == name).map(Self::Category),
        }
    }
}

/// The settings of a model for moderation, as far as they are set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModerationSettings {
    pub threshold: Option<f32>,
    /// The meanings of labels.
    pub labels: BTreeMap<String, LabelMeaning>,
}

impl ModerationSettings {
    /// Fills the unset fields from `other`.
    pub(super) fn or(mut self, other: Self) -> Self {
        for (label, meaning) in other.labels {
            self.labels.entry(label).or_insert(meaning);
        }
        Self { threshold: self.threshold.or(other.threshold), ..self }
    }
}

/// Known labels, as [`key`] spells them.
///
/// - An insult of a person is harassment, one of a group is hate. Jigsaw's `threat` means violence against a person, which is
///   OpenAI's `harassment/threatening`; OpenAI's `violence` is the description of violence.
/// - Jigsaw's `obscene` means swear words, for which OpenAI has no category: it is not `sexual`.
const KNOWN: &[(LabelMeaning, &[&str])] = &[
    (
        LabelMeaning::Safe,
        &[
            "ok",
            "safe",
            "neutral",
            "normal",
            "benign",
            "clean",
            "none",
            "neither",
            "acceptable",
            "appropriate",
            "sfw",
            "ham",
            "nontoxic",
            "nothate",
            "nonhate",
            "noharm",
            // Jigsaw's unintended-bias labels: who a text is about.
            "male",
            "female",
            "homosexual_gay_or_lesbian",
            "christian",
            "jewish",
            "muslim",
            "black",
            "white",
            "psychiatric_or_mental_illness",
        ],
    ),
    (
        LabelMeaning::Unsafe,
        &["unsafe", "harmful", "obscene", "profanity", "vulgar", "spam", "injection", "jailbreak", "malicious"],
    ),
    (
        LabelMeaning::Category("harassment"),
        &[
            "toxic",
            "toxicity",
            "severe_toxic",
            "severe_toxicity",
            "insult",
            "offensive",
            "abusive",
            "abuse",
            "bullying",
            "cyberbullying",
            "harassment",
            "hr",
        ],
    ),
    (LabelMeaning::Category("harassment/threatening"), &["threat", "threatening", "harassment_threatening"]),
    (
        LabelMeaning::Category("hate"),
        &["identity_hate", "identity_attack", "hate", "hateful", "hatespeech", "hate_speech", "racism", "sexism"],
    ),
    (LabelMeaning::Category("hate/threatening"), &["hate_threatening", "h2"]),
    (LabelMeaning::Category("illicit"), &["illicit"]),
    (LabelMeaning::Category("illicit/violent"), &["illicit_violent"]),
    (LabelMeaning::Category("self-harm"), &["self_harm", "selfharm", "suicide", "sh"]),
    (LabelMeaning::Category("self-harm/intent"), &["self_harm_intent"]),
    (LabelMeaning::Category("self-harm/instructions"), &["self_harm_instructions"]),
    (
        LabelMeaning::Category("sexual"),
        &["sexual", "sexual_explicit", "sexually_explicit", "explicit", "nsfw", "porn", "pornography", "adult"],
    ),
    (LabelMeaning::Category("sexual/minors"), &["sexual_minors", "s3"]),
    (LabelMeaning::Category("violence"), &["violence", "violent"]),
    (LabelMeaning::Category("violence/graphic"), &["violence_graphic", "v2"]),
];
/// Short labels of OpenAI's published test data, which mean something only together.
const SHORT: [(&str, &str); 3] = [("s", "sexual"), ("h", "hate"), ("v", "violence")];
/// The generic names of a binary classifier's labels. The first is the negative one.
const BINARY: [&str; 2] = ["LABEL_0", "LABEL_1"];

/// A label in the spelling of the table.
fn key(label: &str) -> String {
    label.trim().to_lowercase().replace(['-', '/', ' '], "_")
}

/// Looks up the labels in the table.
fn known(labels: &[String]) -> Vec<Option<LabelMeaning>> {
    if labels == BINARY {
        return vec![Some(LabelMeaning::Safe), Some(LabelMeaning::Unsafe)];
    }
    let keys: Vec<String> = labels.iter().map(|label| key(label)).collect();
    let are_short = SHORT.iter().all(|(short, _)| keys.iter().any(|key| key == short));
    let one = |key: &String| {
        let short = SHORT.iter().find(|(short, _)| are_short && key == short);
        let negated = ["non_", "not_", "no_"].iter().any(|start| key.starts_with(start));
        match (short, negated) {
            (Some((_, category)), _) => Some(LabelMeaning::Category(category)),
            (None, true) => Some(LabelMeaning::Safe),
            (None, false) => KNOWN.iter().find(|(_, names)| names.contains(&key.as_str())).map(|(meaning, _)| *meaning),
        }
    };
    keys.iter().map(one).collect()
}

/// The meanings of a classifier's labels, in their order; `None` if none of them is known to be harmful, so that it does
/// something else, such as telling moods apart.
pub fn label_meanings(labels: &[String], settings: Option<&ModerationSettings>) -> Option<Vec<LabelMeaning>> {
    let set = |label: &String| settings.and_then(|settings| settings.labels.get(label)).copied();
    let meanings: Vec<Option<LabelMeaning>> =
        labels.iter().zip(known(labels)).map(|(label, known)| set(label).or(known)).collect();
    let moderates = meanings.iter().flatten().any(|meaning| *meaning != LabelMeaning::Safe);
    moderates.then(|| meanings.into_iter().map(|meaning| meaning.unwrap_or(LabelMeaning::Unsafe)).collect())
}
