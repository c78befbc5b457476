//! Identifiers: a prefix for the kind, and 128 bits that sort by creation time.
//!
//! 48 bits of milliseconds since 1970 are followed by a 16-bit counter within the millisecond and 64 random bits, so
//! that a process generates ids in ascending order. The text form is the prefix and 32 lowercase hexadecimal digits.
//! Nothing else parses, so each id has one spelling.
//!
//! IDs have no node part: with 64 random bits, two nodes do not generate the same one, and a node's number would tell
//! nothing that a user may rely on.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use outpost_common::clock_rng::{ClockRng, Timestamp};

/// The text is not an identifier of this kind.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("is not a valid {kind} ID. A valid ID is {form}")]
pub struct BadId {
    pub kind: &'static str,
    /// The form of such an ID, for error messages.
    pub form: &'static str,
}

fn generate(clock_rng: &dyn ClockRng) -> u128 {
    let mut random = [0; 8];
    clock_rng.fill(&mut random);
    let stamp = ascending(clock_rng.now().as_millis().unsigned_abs() << 16);
    u128::from(stamp) << 64 | u128::from(u64::from_be_bytes(random))
}

/// The time stamp, moved past the last one issued. If the clock is set back, or more than 65,536 ids are needed in a
/// millisecond, time stamps run ahead of the clock for a while.
fn ascending(stamp: u64) -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let next = |last: u64| stamp.max(last.wrapping_add(1));
    let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
    last.map_or(stamp, next)
}

fn parse(prefix: &str, text: &str) -> Option<u128> {
    let digits = text.strip_prefix(prefix)?;
    let plain = digits.len() == 32 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    plain.then(|| u128::from_str_radix(digits, 16).ok()).flatten()
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident $kind:literal $prefix:literal;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            /// A new id, later than those made in earlier milliseconds.
            pub fn generate(clock_rng: &dyn ClockRng) -> Self {
                Self(generate(clock_rng))
            }

            /// The smallest id that can be made at a time.
            pub fn first_at(time: Timestamp) -> Self {
                Self(u128::from(time.as_millis().unsigned_abs()) << 80)
            }

            /// Big-endian bytes: they sort as the ids do.
            pub fn to_bytes(self) -> [u8; 16] {
                self.0.to_be_bytes()
            }

            /// The bits as a number, such as the engine identifies tenants by.
            pub fn to_u128(self) -> u128 {
                self.0
            }

            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(u128::from_be_bytes(bytes))
            }
        }

        impl FromStr for $name {
            type Err = BadId;

            fn from_str(text: &str) -> Result<Self, BadId> {
                parse($prefix, text).map(Self).ok_or(BadId {
                    kind: $kind,
                    form: concat!("'", $prefix, "' followed by 32 lowercase hexadecimal digits"),
                })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{:032x}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        /// As text for clients, as bytes in records.
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match serializer.is_human_readable() {
                    true => serializer.collect_str(self),
                    false => self.to_bytes().serialize(serializer),
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                match deserializer.is_human_readable() {
                    true => String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom),
                    false => <[u8; 16]>::deserialize(deserializer).map(Self::from_bytes),
                }
            }
        }
    )+};
}

ids! {
    /// A project, the owner of everything else.
    ProjectId "project" "proj_";
    /// An API key; it outlives the rotation of its secret.
    KeyId "API key" "key_";
    /// One row of the audit log.
    AuditId "audit event" "audit_";
    /// One HTTP request, in `x-request-id`, the log and error bodies.
    RequestId "request" "req_";
    /// One chat completion.
    CompletionId "chat completion" "chatcmpl-";
    /// A message of Anthropic's API, or of the Responses API.
    MessageId "message" "msg_";
    /// A response of the Responses API.
    ResponseId "response" "resp_";
    /// A tool call in the output of a response.
    FunctionCallId "function call" "fc_";
    /// The result of a tool call in the input of a response.
    FunctionOutputId "function call output" "fco_";
    /// A call of a custom tool in the output of a response.
    CustomCallId "custom tool call" "ctc_";
    /// The result of a custom tool's call in the input of a response.
    CustomOutputId "custom tool call output" "ctco_";
    /// The reasoning in the output of a response.
    ReasoningId "reasoning item" "rs_";
    /// The summary of a conversation.
    CompactionId "compaction" "cmp_";
    /// Another item in the input of a response.
    ItemId "item" "item_";
    /// One text completion.
    TextCompletionId "text completion" "cmpl-";
    /// The response to a request to tokenize or detokenize a text.
    TokenizationId "tokenization" "tok_";
    /// The response to an embeddings request.
    EmbeddingId "embedding" "embd-";
    /// The response to a rerank request.
    RerankId "rerank" "rerank_";
    /// The response to a moderation request.
    ModerationId "moderation" "modr-";
    /// The response to an image request.
    ImagesId "image" "img-";
    /// The response to a request to transcribe or translate audio.
    TranscriptionId "transcription" "transcript_";
    /// A stored image that is fetched by a signed URL.
    StoredImageId "image" "pic_";
    /// The response to a list request.
    ListId "list" "list_";
    /// The response to a usage query.
    UsageId "usage report" "usage_";
    /// A stored transcript.
    ConversationId "conversation" "conv_";
    /// Instructions, model and tools under one name.
    AgentId "agent" "agent_";
    /// An uploaded file.
    FileId "file" "file-";
    /// A fine-tuning job.
    JobId "fine-tuning job" "ftjob-";
    /// An event of a fine-tuning job.
    JobEventId "fine-tuning event" "ftevent-";
    /// An adapter that a fine-tuning job has saved.
    CheckpointId "checkpoint" "ftckpt_";
    /// The pull of a model.
    PullId "model pull" "pull_";
    /// A batch of requests.
    BatchId "batch" "batch_";
    /// The result of one request of a batch.
    BatchResultId "batch result" "batch_req_";
}

#[cfg(test)]
mod tests {
    use super::{BadId, KeyId, ProjectId};

    #[test]
    fn an_id_has_one_spelling() {
        let id = ProjectId::from_bytes([7; 16]);
        assert_eq!(id.to_string().parse(), Ok(id));
        let text = id.to_string();
        for bad in [text.to_uppercase(), format!("{text} "), text.replace("proj_", "key_"), text[..20].to_owned()] {
            let bad_project = BadId { kind: "project", form: "'proj_' followed by 32 lowercase hexadecimal digits" };
            assert_eq!(bad.parse::<ProjectId>(), Err(bad_project), "{bad}");
        }
        assert!(text.parse::<KeyId>().is_err());
    }
}
