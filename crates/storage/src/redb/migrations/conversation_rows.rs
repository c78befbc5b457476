//! Layout 5 to 6: conversations have the numbers of their rows. Those of layout 5 have no gaps.

use serde::{Deserialize, Serialize};

use super::table_conversion::convert;
use crate::codec::Record;
use crate::conversations::ConversationRecord;
use crate::error::Result;
use crate::ids::ProjectId;
use crate::record_serde;
use crate::tables::{CONVERSATIONS, Table};
use crate::transaction::WriteTx;
use outpost_common::clock_rng::Timestamp;

#[derive(Serialize, Deserialize)]
struct OldConversation {
    #[serde(with = "record_serde::project_id")]
    project: ProjectId,
    metadata: Option<String>,
    version: u64,
    messages: u32,
    bytes: u64,
    #[serde(with = "record_serde::time")]
    created_at: Timestamp,
    #[serde(with = "record_serde::time")]
    updated_at: Timestamp,
}

impl Record for OldConversation {
    const TABLE: Table = CONVERSATIONS;
    const VERSION: u8 = 1;
    const SEALED: bool = true;
}

impl From<OldConversation> for ConversationRecord {
    fn from(old: OldConversation) -> Self {
        let OldConversation { project, metadata, version, messages, bytes, created_at, updated_at } = old;
        let (first_row, next_row) = (0, messages);
        Self { project, metadata, version, messages, first_row, next_row, bytes, created_at, updated_at }
    }
}

pub(super) fn number_rows(tx: &WriteTx) -> Result<()> {
    convert::<OldConversation, ConversationRecord>(tx)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::pepper::Pepper;
    use crate::redb::transaction::in_memory;
    use crate::transaction::Reader as _;

    #[test]
    fn a_conversation_keeps_its_fields_and_its_next_message_gets_the_next_row() {
        let old = OldConversation {
            project: ProjectId::from_bytes([1; 16]),
            metadata: Some("{}".to_owned()),
            version: 4,
            messages: 3,
            bytes: 90,
            created_at: Timestamp::from_millis(5),
            updated_at: Timestamp::from_millis(6),
        };
        let engine = in_memory();
        let tx = WriteTx::new(&engine, Arc::new(Pepper::from_bytes([7; 32])));
        tx.put(b"id", &old).unwrap();
        number_rows(&tx).unwrap();
        let new: ConversationRecord = tx.get(b"id").unwrap().unwrap();
        assert_eq!((new.messages, new.first_row, new.next_row), (3, 0, 3));
        assert_eq!((new.project, new.metadata.as_deref()), (ProjectId::from_bytes([1; 16]), Some("{}")));
        assert_eq!((new.version, new.bytes), (4, 90));
        assert_eq!((new.created_at, new.updated_at), (Timestamp::from_millis(5), Timestamp::from_millis(6)));
    }
}
