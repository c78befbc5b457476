//! Conversations and agents: quota usage, and the problems that a check finds.

use outpost::clock_rng::ClockRng as _;
use outpost::ids::{AgentId, ConversationId, ProjectId};
use outpost::service::agents::MAX_VERSIONS;
use outpost::service::{AgentFields, Agents, Conversations, NewConversation, PageRequest, Precondition};
use outpost::storage::conversations::ConversationRecord;
use outpost::storage::{agents, conversations, project_resources, quota_usage};

use super::fixture::Fixture;

fn services(fixture: &Fixture) -> (Conversations, Agents) {
    let new = || (fixture.store.clone(), fixture.clock.clone());
    let ((store, clock), (other, same)) = (new(), new());
    (Conversations::new(store, clock), Agents::new(other, same))
}

async fn quota_usage_of(fixture: &Fixture, project: ProjectId) -> quota_usage::QuotaUsageRecord {
    fixture.store.read(move |tx| quota_usage::of(tx, project)).await.unwrap()
}

fn instructed(instructions: String) -> impl Fn(AgentFields) -> AgentFields {
    move |old| AgentFields { instructions: Some(instructions.clone()), ..old }
}

#[tokio::test]
async fn an_agents_last_thousand_versions_are_kept_and_counted() {
    let fixture = Fixture::new().await;
    let (_, agents) = services(&fixture);
    let project = fixture.project("agents").await.id;
    let new = AgentFields { name: Some("helper".into()), ..AgentFields::default() };
    let id: AgentId = agents.create(&fixture.admin, Some(project), new).await.unwrap().id;
    assert_eq!((quota_usage_of(&fixture, project).await.agents, quota_usage_of(&fixture, project).await.bytes), (1, 6));
    let last = MAX_VERSIONS + 5;
    for number in 2..=last {
        let change = instructed(format!("{number:04}"));
        let now = agents.update(&fixture.admin, id, change, Precondition::default()).await.unwrap();
        assert_eq!(now.version, number);
    }
    assert_eq!(quota_usage_of(&fixture, project).await.bytes, MAX_VERSIONS * 10);
    assert!(agents.get(&fixture.admin, id, Some(5), u64::MAX).await.is_err());
    let oldest = agents.get(&fixture.admin, id, Some(6), u64::MAX).await.unwrap().read().unwrap();
    assert_eq!(oldest.fields.instructions.as_deref(), Some("0006"));
    let page = PageRequest { limit: Some(100), ..PageRequest::default() };
    let page = agents.versions(&fixture.admin, id, page, u64::MAX);
    assert_eq!(page.await.unwrap().read().unwrap().items[0].version, last);
    assert_eq!(fixture.store.verify().unwrap().problems, Vec::<String>::new());

    agents.delete(&fixture.admin, id, Precondition::default()).await.unwrap();
    assert_eq!((quota_usage_of(&fixture, project).await.agents, quota_usage_of(&fixture, project).await.bytes), (0, 0));
    let found = fixture.store.verify().unwrap();
    assert_eq!((found.problems.len(), found.records["agent_versions"]), (0, 0));
}

#[tokio::test]
async fn check_finds_missing_and_orphaned_messages_and_versions() {
    let fixture = Fixture::new().await;
    let (conversations, agents_) = services(&fixture);
    let message = "{\"role\":\"user\",\"content\":\"x\"}".to_owned();
    let new = NewConversation { messages: vec![message.clone(); 3], ..NewConversation::default() };
    let conversation = conversations.create(&fixture.admin, new).await.unwrap().id;
    let agent = agents_.create(&fixture.admin, None, AgentFields::default()).await.unwrap().id;
    assert_eq!(fixture.store.verify().unwrap().problems, Vec::<String>::new());

    let stray = message.clone();
    let broken = fixture.store.write(move |tx| {
        conversations::remove_message(tx, conversation, 1)?;
        conversations::put_messages(tx, conversation, 7, std::slice::from_ref(&stray))?;
        agents::remove_version(tx, agent, 1)
    });
    broken.await.unwrap();
    let problems = fixture.store.verify().unwrap().problems;
    // Three messages, one of them in an invalid row, and an agent without its only version.
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(
        conversations.get(&fixture.admin, conversation, u64::MAX).await.is_err(),
        "an incomplete transcript is never returned"
    );
    let revoked = fixture.store.write(move |tx| conversations::remove_message(tx, conversation, 0));
    revoked.await.unwrap();
    assert_eq!(fixture.store.verify().unwrap().problems.len(), 3);
}

#[tokio::test]
async fn check_finds_every_stray_message_among_many_others() {
    let fixture = Fixture::new().await;
    let (project, now) = (fixture.first.project.id, fixture.clock.now());
    let record = ConversationRecord {
        project,
        metadata: None,
        version: 1,
        messages: 600,
        first_row: 0,
        next_row: 600,
        bytes: 1200,
        created_at: now,
        updated_at: now,
    };
    let written = fixture.store.write(move |tx| {
        project_resources::insert(tx, [5; 16], &record)?;
        [(5, 600), (1, 30), (9, 30)].into_iter().try_for_each(|(id, count)| {
            conversations::put_messages(tx, ConversationId::from_bytes([id; 16]), 0, &vec!["{}".to_owned(); count])
        })
    });
    written.await.unwrap();
    let problems = fixture.store.verify().unwrap().problems;
    assert_eq!(problems, ["a message is in no conversation"; 60]);
}
