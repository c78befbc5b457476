//! `kill -9` during writes of sixteen writers: every acknowledged write is stored completely.
//!
//! The child process is this test program. If an environment variable is set, it writes, and prints each effect after
//! its acknowledgement.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use outpost::clock_rng::ClockRng;
use outpost::error::Code;
use outpost::ids::{ConversationId, KeyId, ProjectId};
use outpost::service::{
    Access, Conversations, FirstKey, Keys, NewConversation, NewProject, Precondition, Projects, Rotation, new_admin_key,
};
use outpost::storage::{Store, check, conversations, project_resources};
use serde_json::json;

use super::fixture::{Clock, dir, new_key, settings};

const CHILD: &str = "OUTPOST_TEST_KILL_DIR";
const KILLS: usize = 20;
const WRITERS: usize = 16;
const ACKNOWLEDGED: usize = 2_000;

fn print_acknowledged(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "ack {line}").unwrap();
    out.flush().unwrap();
}

async fn write_until_killed(keys: Arc<Keys>, projects: Projects, conversations: Conversations, admin: Access) {
    loop {
        let project =
            projects.create(&admin, NewProject { name: "p".into(), ..NewProject::default() }).await.unwrap().id;
        print_acknowledged(&format!("project {project}"));
        let (key, secret) = keys.create(&admin, new_key(project, &[])).await.unwrap();
        print_acknowledged(&format!("live {} {}", key.id, secret.unwrap().expose()));
        let (_, second) = keys.rotate(&admin, key.id, Rotation::default()).await.unwrap();
        print_acknowledged(&format!("live {} {}", key.id, second.unwrap().expose()));
        let (revoked_key, secret) = keys.create(&admin, new_key(project, &[])).await.unwrap();
        keys.revoke(&admin, revoked_key.id).await.unwrap();
        print_acknowledged(&format!("dead {} {}", revoked_key.id, secret.unwrap().expose()));
        conversation(&conversations, &admin, project).await;
    }
}

/// Creates a conversation and appends one or two messages at a time.
async fn conversation(conversations: &Conversations, admin: &Access, project: ProjectId) {
    let message = |at: usize| json!({ "role": "user", "content": format!("message {at}") }).to_string();
    let new = NewConversation { project: Some(project), messages: vec![message(0)], metadata: None };
    let id = conversations.create(admin, new).await.unwrap().id;
    print_acknowledged(&format!("talk {id} 1"));
    for (first, count) in [(1, 1), (2, 2), (4, 1)] {
        let messages = (first..first + count).map(message).collect();
        let expected = Precondition { version: None, if_match: None };
        let now = conversations.append(admin, id, messages, expected).await.unwrap();
        print_acknowledged(&format!("talk {id} {}", now.messages));
    }
}

/// The child process. Does nothing in an ordinary test run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_process_writes_until_it_is_killed() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let clock = Clock::new();
    let clock_rng: Arc<dyn ClockRng> = clock.clone();
    let store = Store::open(settings(Path::new(&dir)), clock).unwrap();
    let keys = Arc::new(Keys::new(store.clone(), clock_rng.clone()));
    outpost::service::first_start(&store, &clock_rng).await.unwrap();
    let FirstKey { secret, .. } = new_admin_key(&store, &clock_rng).await.unwrap();
    let admin = keys.authenticate(secret.expose()).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..WRITERS {
        let projects = Projects::new(store.clone(), clock_rng.clone());
        let conversations = Conversations::new(store.clone(), clock_rng.clone());
        tasks.spawn(write_until_killed(keys.clone(), projects, conversations, admin.clone()));
    }
    tasks.join_next().await;
}

/// The effects that the child printed as acknowledged.
#[derive(Default)]
struct Acknowledged {
    projects: Vec<ProjectId>,
    /// The last acknowledged secret of each key.
    active_keys: HashMap<KeyId, String>,
    revoked_secrets: Vec<String>,
    /// The number of acknowledged messages of each conversation.
    conversations: HashMap<ConversationId, usize>,
    count: usize,
}

impl Acknowledged {
    fn record(&mut self, line: &str) {
        // The test harness prints to the same stream.
        let Some((_, line)) = line.split_once("ack ") else { return };
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["project", id] => self.projects.push(id.parse().unwrap()),
            ["live", id, secret] => drop(self.active_keys.insert(id.parse().unwrap(), secret.into())),
            ["dead", _, secret] => self.revoked_secrets.push(secret.into()),
            ["talk", id, messages] => drop(self.conversations.insert(id.parse().unwrap(), messages.parse().unwrap())),
            _ => return,
        }
        self.count += 1;
    }
}

/// Runs a child until it has printed `count` further acknowledgements, and kills it while it writes.
fn run_and_kill(dir: &Path, count: usize, acknowledged: &mut Acknowledged) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["kill_recovery::child_process_writes_until_it_is_killed", "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let goal = acknowledged.count + count;
    while acknowledged.count < goal {
        acknowledged.record(&lines.next().expect("the child exited by itself").unwrap());
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // The remaining output. The last line may be truncated.
    let rest: Vec<_> = lines.map_while(Result::ok).collect();
    for line in rest.iter().take(rest.len().saturating_sub(1)) {
        acknowledged.record(line);
    }
}

async fn verify(store: &Store, keys: &Keys, acknowledged: &Acknowledged, rotated: &mut usize) {
    assert_eq!(store.verify().unwrap().problems, Vec::<String>::new());
    let projects = acknowledged.projects.clone();
    let lost = store.read(move |tx| {
        let mut lost = 0;
        for id in projects {
            lost += usize::from(outpost::storage::projects::find(tx, id)?.is_none());
        }
        Ok(lost)
    });
    assert_eq!(lost.await.unwrap(), 0, "acknowledged projects are lost");
    verify_conversations(store, acknowledged.conversations.clone()).await;
    for secret in acknowledged.active_keys.values() {
        match keys.authenticate(secret).await {
            Ok(_) => {}
            // The key was being rotated when the child was killed.
            Err(error) if error.code() == Code::RevokedApiKey => *rotated += 1,
            Err(error) => panic!("an acknowledged key is lost: {error}"),
        }
    }
    for secret in &acknowledged.revoked_secrets {
        assert_eq!(keys.authenticate(secret).await.unwrap_err().code(), Code::RevokedApiKey, "a revoked key is valid");
    }
}

/// Checks that every acknowledged message is stored, and that all stored messages are complete.
async fn verify_conversations(store: &Store, conversations: HashMap<ConversationId, usize>) {
    let checked = store.read(move |tx| {
        for (id, acknowledged) in conversations {
            let record: conversations::ConversationRecord =
                project_resources::find(tx, id.to_bytes())?.expect("the conversation was acknowledged");
            let messages = conversations::messages(tx, id, &record)?;
            assert!(messages.len() >= acknowledged, "{id} lost messages");
            for (at, text) in messages.iter().enumerate() {
                assert_eq!(*text, json!({ "role": "user", "content": format!("message {at}") }).to_string());
            }
        }
        Ok(())
    });
    checked.await.unwrap();
}

#[tokio::test]
async fn no_acknowledged_write_is_lost_when_the_process_is_killed() {
    let dir = dir();
    let mut acknowledged = Acknowledged::default();
    let (mut slowest, mut rotated) = (Duration::ZERO, 0);
    for _ in 0..KILLS {
        run_and_kill(dir.path(), ACKNOWLEDGED.div_ceil(KILLS), &mut acknowledged);
        #[expect(clippy::disallowed_methods, reason = "measures the duration of a real crash recovery")]
        let started = Instant::now();
        let clock = Clock::new();
        let store = Store::open(settings(dir.path()), clock.clone()).unwrap();
        slowest = slowest.max(started.elapsed());
        let keys = Keys::new(store.clone(), clock);
        rotated = 0;
        verify(&store, &keys, &acknowledged, &mut rotated).await;
        drop(keys);
        store.shutdown();
    }
    assert!(acknowledged.count >= ACKNOWLEDGED);
    assert!(rotated <= KILLS * WRITERS, "more unacknowledged rotations than concurrent writers");
    assert!(slowest <= Duration::from_secs(2), "reopening took {slowest:?}");
    assert!(check(dir.path()).unwrap().is_clean());
    println!("{} acknowledged over {KILLS} kills, slowest reopening {slowest:?}", acknowledged.count);
}
