//! Conversations in chats: reading the transcript and adding a completed turn.

use super::{Content, Conversation, ConversationRecord, Conversations, Transcript, append, fits, stored};
use crate::error::{Code, Error, Result};
use crate::ids::ConversationId;
use crate::service::access::authorize;
use crate::service::access::{Access, Scope};
use crate::service::writes::precondition::{IfMatch, Precondition};
use crate::storage::{Reader, project_resources};

impl Conversations {
    /// The transcript for a chat that will add `added` messages and the completion. Needs the scope `inference` in its
    /// project. Fails early if they could not be added.
    pub async fn get_for_chat(
        &self,
        access: &Access,
        id: ConversationId,
        if_match: Option<IfMatch>,
        added: usize,
    ) -> Result<Transcript> {
        let access = access.clone();
        let precondition = Precondition { version: None, if_match };
        let read = self.store.read(move |tx| {
            let record = find(tx, &access, id)?;
            authorize::require_active_owner(tx, record.project)?;
            precondition.check(Some(record.version))?;
            fits(record.messages as usize + added + 1, 0, "conversation_id")?;
            let messages = stored::messages(tx, id, &record)?;
            Ok(Transcript { conversation: Conversation::new(id, record), messages })
        });
        read.await
    }

    /// Adds a turn to a conversation; 409 if the conversation has changed since the turn began.
    pub async fn add_turn(
        &self,
        access: &Access,
        conversation: Conversation,
        messages: Vec<String>,
    ) -> Result<Conversation> {
        let now = self.clock_rng.now();
        let added = Content::check(messages, None)?;
        let entry = self.audit_entry(access, "conversation.appended");
        let permit = authorize::scope_of_owner::<ConversationRecord>(conversation.id.to_bytes(), Scope::Inference);
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let record = project_resources::find::<ConversationRecord>(tx, conversation.id.to_bytes())?;
            // A conversation that was deleted and created again may have the same version.
            let same = record.filter(|record| {
                (record.version, record.created_at) == (conversation.version, conversation.created_at)
            });
            let Some(record) = same else { return Err(version_conflict(tx, &conversation)?) };
            caller.require(record.project, Scope::Inference)?;
            authorize::require_active_owner(tx, record.project)?;
            Ok(append(tx, &entry, conversation.id, record, &added, now)?.conversation)
        });
        written.await
    }
}

fn find(tx: &impl Reader, access: &Access, id: ConversationId) -> Result<ConversationRecord> {
    let found = authorize::resource(tx, access, Scope::Inference, "conversation", (id, id.to_bytes()));
    found.map_err(|error| error.param("conversation_id"))
}

fn version_conflict(tx: &impl Reader, conversation: &Conversation) -> Result<Error> {
    let stored = match project_resources::find::<ConversationRecord>(tx, conversation.id.to_bytes())? {
        Some(record) => format!("version {} is stored now", record.version),
        None => "it is deleted now".to_owned(),
    };
    let text = format!(
        "The conversation '{}' was at version {} when this answer began, but {stored}. Nothing was added to it. Send the request again.",
        conversation.id, conversation.version
    );
    Ok(Error::new(Code::Conflict, text).param("conversation_id"))
}
