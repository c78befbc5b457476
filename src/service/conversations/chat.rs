//! What chat does with a conversation: it reads the transcript, and adds a turn that ended well.

use super::{Content, Conversation, ConversationRecord, Conversations, Transcript, append, fits, stored};
use crate::error::{Code, Error, Result};
use crate::ids::ConversationId;
use crate::service::access::{Access, Scope};
use crate::service::version::{Expected, IfMatch};
use crate::service::{authority, claim};
use crate::storage::{Reader, project_resources};

impl Conversations {
    /// The transcript for a chat call that will add `added` messages and the answer to it. Needs
    /// the scope `inference` in its project. Refuses what could not be added in the end.
    pub async fn recall(
        &self,
        access: &Access,
        id: ConversationId,
        if_match: Option<IfMatch>,
        added: usize,
    ) -> Result<Transcript> {
        let access = access.clone();
        let expected = Expected { version: None, if_match };
        let read = self.store.read(move |tx| {
            let record = find(tx, &access, id)?;
            authority::living_owner(tx, record.project)?;
            expected.check(Some(record.version))?;
            fits(record.messages as usize + added + 1, 0, "conversation_id")?;
            let messages = stored::messages(tx, id, &record)?;
            Ok(Transcript { conversation: Conversation::new(id, record), messages })
        });
        read.await
    }

    /// Adds a turn to a conversation as it was when the turn began; 409 if it changed meanwhile.
    pub async fn add_turn(&self, access: &Access, seen: Conversation, messages: Vec<String>) -> Result<Conversation> {
        let now = self.clock_rng.now();
        let added = Content::check(messages, None)?;
        let note = self.note(access, "conversation.appended");
        let permit = authority::manages_owner::<ConversationRecord>(seen.id.to_bytes());
        let written = claim::write(&self.store, access, now, permit, move |tx, caller| {
            let record = project_resources::find::<ConversationRecord>(tx, seen.id.to_bytes())?;
            // One that was deleted and made anew may be at the same version.
            let same = record.filter(|record| (record.version, record.created_at) == (seen.version, seen.created_at));
            let Some(record) = same else { return Err(overtaken(tx, &seen)?) };
            caller.require(record.project, Scope::Inference)?;
            authority::living_owner(tx, record.project)?;
            append(tx, &note, seen.id, record, &added, now)
        });
        written.await
    }
}

fn find(tx: &impl Reader, access: &Access, id: ConversationId) -> Result<ConversationRecord> {
    let found = authority::owned(tx, access, Scope::Inference, "conversation", (id, id.to_bytes()));
    found.map_err(|error| error.param("conversation_id"))
}

fn overtaken(tx: &impl Reader, seen: &Conversation) -> Result<Error> {
    let stored = match project_resources::find::<ConversationRecord>(tx, seen.id.to_bytes())? {
        Some(record) => format!("version {} is stored now", record.version),
        None => "it is deleted now".to_owned(),
    };
    let text = format!(
        "The conversation '{}' was at version {} when this answer began, but {stored}. Nothing was added to it. Send the request again.",
        seen.id, seen.version
    );
    Ok(Error::new(Code::Conflict, text).param("conversation_id"))
}
