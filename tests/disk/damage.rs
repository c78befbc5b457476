//! A damaged database file. The server gives a correct response or refuses with 503 `storage_unavailable`. It does not
//! abort, hang, or make a wrong decision about a key.
//!
//! A child process opens one variant after the other and prints the number of each that it has completed. If it crashes
//! or hangs, the test counts that variant and starts another process with the next one.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use outpost::clock_rng::Timestamp;
use outpost::error::{Code, Error, Result};
use outpost::ids::{ConversationId, FileId, KeyId, ProjectId};
use outpost::service::{Access, Conversations, NewConversation, PageRequest, Precondition, Secret, Transcript};
use outpost::storage::usage::{self, Amounts, Outcome, SeriesRecord, UsageRecord};
use outpost::storage::{DATABASE_FILE, WriteTx, check, content_chunks};
use serde_json::json;

use crate::history::TestRng;
use crate::panics;
use crate::server::{Installation, Server, runtime};
use crate::simulated_disk::Disk;
use crate::workload::{Id, Op, hold};

/// The range of variants that a child opens: `FIRST END`.
const CHILD: &str = "OUTPOST_TEST_DAMAGE";
/// The number of variants of the long test.
const VARIANTS: &str = "OUTPOST_TEST_VARIANTS";
const SEED: u64 = 26;
const PAGE: usize = 4096;
/// Messages of each conversation.
const MESSAGES: usize = 20;
const HANG: Duration = Duration::from_secs(30);

/// An installation with records in every kind of table, and their expected content.
struct Content {
    installation: Installation,
    project: ProjectId,
    active_key: (KeyId, Secret),
    revoked: Secret,
    conversations: Vec<ConversationId>,
    file: FileId,
    bytes: Vec<u8>,
}

fn text(conversation: usize, at: usize) -> String {
    json!({ "role": "user", "content": format!("message {at} of talk {conversation}: {}", "word ".repeat(at * 7 % 90)) })
        .to_string()
}

fn chunk_bytes(at: u32) -> Vec<u8> {
    (0..30_000_u32).map(|byte| (byte * 31 + at) as u8).collect()
}

fn conversations(server: &Server) -> Conversations {
    Conversations::new(server.store.clone(), server.clock_rng.clone())
}

/// Reads a conversation of any size.
async fn read_conversation(server: &Server, admin: &Access, id: ConversationId) -> Result<Transcript> {
    let read = conversations(server).get(admin, id, u64::MAX).await;
    read.map(|transcript| transcript.read().unwrap())
}

async fn fill(
    installation: &Installation,
    server: &Server,
) -> Result<(ProjectId, (KeyId, Secret), Secret, Vec<ConversationId>, FileId)> {
    let admin = server.admin(installation).await?;
    let project = installation.first.project.id;
    let (mut active_key, mut revoked) = (None, None);
    for number in 0..60 {
        server.change(installation, &admin, Op::NewProject).await?;
        let done = server.change(installation, &admin, Op::NewKey).await?;
        let Id::Key(id) = done.id else { unreachable!() };
        match number {
            20 => active_key = done.secret.map(|secret| (id, secret)),
            _ if number % 3 == 0 => {
                server.change(installation, &admin, Op::Revoke(id)).await?;
                revoked = done.secret;
            }
            _ => drop(server.change(installation, &admin, Op::Rename(id, number)).await?),
        }
    }
    let mut ids = Vec::new();
    for conversation in 0..20 {
        let messages = (0..MESSAGES).map(|at| text(conversation, at)).collect();
        let new = NewConversation { project: Some(project), messages, metadata: None };
        ids.push(conversations(server).create(&admin, new).await?.id);
    }
    let file = FileId::generate(&*server.clock_rng);
    for at in 0..6 {
        server
            .store
            .write(move |tx| content_chunks::put(tx, file, at, &content_chunks::Chunk(chunk_bytes(at))))
            .await?;
    }
    for number in 0..300 {
        server.store.write(move |tx| meter(tx, project, key_id(number), number)).await?;
    }
    let (active_key, revoked) = (active_key.expect("a key"), revoked.expect("a key"));
    Ok((project, active_key, revoked, ids, file))
}

fn key_id(number: u64) -> KeyId {
    KeyId::from_bytes(u128::from(number % 5).to_be_bytes())
}

fn meter(tx: &outpost::storage::WriteTx, project: ProjectId, key: KeyId, number: u64) -> Result<()> {
    let name = SeriesRecord { key, endpoint: "POST /chat/completions".into(), model: Some("m".into()) };
    let series = usage::number(tx, project, &name, false)?;
    let amounts = Amounts { input: number, output: 7, ..Amounts::default() };
    let record = UsageRecord { series, outcome: Outcome::Succeeded, amounts };
    let at = Timestamp::from_millis(1_800_000_000_000 + number as i64 * 1000);
    usage::append(tx, project, at, [0; 6], &record)
}

impl Content {
    fn new() -> Self {
        let installation = Installation::new(SEED);
        let disk = Disk::new(installation.database.clone());
        let server = installation.open(&disk).unwrap();
        let (project, active_key, revoked, conversations, file) =
            runtime().block_on(fill(&installation, &server)).unwrap();
        server.close();
        Self { bytes: disk.take_bytes(), installation, project, active_key, revoked, conversations, file }
    }

    /// The file with damage that is determined by the number.
    fn variant(&self, number: u64) -> Vec<u8> {
        let mut rng = TestRng::new(SEED, number as usize);
        let mut bytes = self.bytes.clone();
        let pages = bytes.len() / PAGE;
        let page = |rng: &mut TestRng| rng.below(pages) * PAGE;
        match number % 6 {
            // Flipped bits anywhere.
            0 => (0..200).for_each(|_| bytes[rng.below(self.bytes.len())] ^= 1 << rng.below(8)),
            // A truncated file.
            1 => bytes.truncate(rng.below(self.bytes.len())),
            // Swapped pages.
            2 => {
                for _ in 0..8 {
                    let (first, second) = (page(&mut rng), page(&mut rng));
                    let saved = bytes[first..first + PAGE].to_vec();
                    bytes.copy_within(second..second + PAGE, first);
                    bytes[second..second + PAGE].copy_from_slice(&saved);
                }
            }
            // Pages of noise, and pages of zeros.
            3 => {
                for noise in [true, false, true, false] {
                    let at = page(&mut rng);
                    bytes[at..at + PAGE]
                        .iter_mut()
                        .for_each(|byte| *byte = if noise { rng.below(256) as u8 } else { 0 });
                }
            }
            // Page headers: type, number of entries, and their ends.
            4 => {
                for _ in 0..24 {
                    let at = page(&mut rng).max(PAGE) + rng.below(40);
                    bytes[at] ^= 1 << rng.below(8);
                }
            }
            // One bit in each page but the first.
            _ => (1..pages).for_each(|page| bytes[page * PAGE + rng.below(PAGE)] ^= 1 << rng.below(8)),
        }
        bytes
    }
}

/// Checks that an error is one that a damaged or missing record can cause.
fn allow_damage_errors<T>(what: &str, outcome: Result<T, Error>) -> Option<T> {
    use Code as C;
    outcome
        .inspect_err(|error| {
            // A row may be lost with its page. Requests that depend on it are refused.
            let allowed = [
                C::StorageUnavailable,
                C::NotFound,
                C::InvalidApiKey,
                C::RevokedApiKey,
                C::Conflict,
                C::InsufficientQuota,
            ];
            assert!(allowed.contains(&error.code()), "{what}: {:?} {error} {:?}", error.code(), error.cause());
        })
        .ok()
}

async fn decide(content: &Content, server: &Server) {
    for _ in 0..2 {
        if let Some(access) =
            allow_damage_errors("a key", server.keys.authenticate(content.active_key.1.expose()).await)
        {
            assert_eq!((access.key(), access.project()), (content.active_key.0, content.project));
            assert!(!access.is_admin(), "damage turned a key into an admin key");
        }
        let code = server.keys.authenticate(content.revoked.expose()).await.err().map(|error| error.code());
        let refused = matches!(code, Some(Code::StorageUnavailable | Code::InvalidApiKey | Code::RevokedApiKey));
        assert!(refused, "a revoked key gets {code:?}");
    }
}

async fn read(content: &Content, server: &Server, admin: &Access) {
    let pages = || PageRequest { limit: Some(100), ..PageRequest::default() };
    allow_damage_errors("projects", server.projects.list(admin, pages()).await);
    allow_damage_errors("keys", server.keys.list(admin, content.project, pages()).await);
    for (number, id) in content.conversations.iter().enumerate() {
        let Some(transcript) = allow_damage_errors("a conversation", read_conversation(server, admin, *id).await)
        else {
            continue;
        };
        for (at, message) in transcript.messages.iter().enumerate() {
            // Messages that this test appended.
            let expected = if at < MESSAGES { text(number, at) } else { text(0, 0) };
            assert_eq!(*message, expected, "an altered message was not detected");
        }
    }
    for at in 0..6 {
        let file = content.file;
        let found = server.store.read(move |tx| content_chunks::get(tx, file, at)).await;
        if let Some(Some(bytes)) = allow_damage_errors("a chunk", found) {
            assert!(bytes == chunk_bytes(at), "altered content of a file was not detected");
        }
    }
    let project = content.project;
    let all = |tx: &outpost::storage::ReadTx| {
        usage::each_raw(tx, project, Timestamp::ORIGIN, Timestamp::LAST, |_, record| {
            assert_eq!(record.amounts.output, 7, "altered usage was not detected");
            Ok(())
        })
    };
    allow_damage_errors("usage", server.store.read_blocking(all));
    let _ = server.store.verify();
}

async fn write(content: &Content, server: &Server, admin: &Access) {
    allow_damage_errors("a new project", server.change(&content.installation, admin, Op::NewProject).await);
    allow_damage_errors("a new key", server.change(&content.installation, admin, Op::NewKey).await);
    for id in &content.conversations {
        let expected = Precondition { version: None, if_match: None };
        allow_damage_errors(
            "an appended message",
            conversations(server).append(admin, *id, vec![text(0, 0)], expected).await,
        );
    }
    for number in [1, 150, 299, 1000] {
        let project = content.project;
        allow_damage_errors("usage", server.store.write(move |tx| meter(tx, project, key_id(number), number)).await);
    }
    let file = content.file;
    let peers = server.store.peers();
    let sweep = move |tx: &WriteTx| content_chunks::sweep(tx, file, 3, &peers);
    allow_damage_errors("a file's end", server.store.write(sweep).await);
}

async fn exercise(content: &Content, server: &Server) {
    decide(content, server).await;
    let Some(admin) = allow_damage_errors("the admin's key", server.admin(&content.installation).await) else { return };
    read(content, server, &admin).await;
    write(content, server, &admin).await;
    decide(content, server).await;
    read(content, server, &admin).await;
}

fn open_damaged(content: &Content, number: u64) {
    let bytes = content.variant(number);
    let file = content.installation.path().join(DATABASE_FILE);
    std::fs::write(&file, &bytes).unwrap();
    let _ = check(content.installation.path());
    std::fs::remove_file(&file).unwrap();
    let disk = Disk::new(bytes);
    std::fs::write(&file, "not empty").unwrap();
    if let Ok(server) = content.installation.open_through(disk.opener()) {
        runtime().block_on(exercise(content, &server));
        server.close();
    }
}

/// The child process. Does nothing in an ordinary test run.
#[test]
fn child_process_opens_damaged_databases() {
    let Ok(range) = std::env::var(CHILD) else { return };
    let (first, end) = range.split_once(' ').unwrap();
    let content = Content::new();
    for number in first.parse().unwrap()..end.parse().unwrap() {
        open_damaged(&content, number);
        let mut out = std::io::stdout().lock();
        writeln!(out, "\ncompleted {number}").unwrap();
        out.flush().unwrap();
    }
}

fn child(first: u64, end: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "damage::child_process_opens_damaged_databases", "--nocapture"]);
    command.env(CHILD, format!("{first} {end}")).stdout(Stdio::piped());
    command.stderr(if std::env::var_os("OUTPOST_TEST_LOUD").is_some() { Stdio::inherit() } else { Stdio::null() });
    command.spawn().unwrap()
}

/// The results of the variants.
#[derive(Debug, Default, PartialEq, Eq)]
struct Results {
    completed: u64,
    /// The process was killed by a signal.
    crashed: Vec<u64>,
    /// An assertion failed.
    failed: Vec<u64>,
    hung: Vec<u64>,
}

fn results(mut first: u64, end: u64) -> Results {
    let mut results = Results::default();
    while first < end {
        let mut child = child(first, end);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, numbers) = channel();
        std::thread::spawn(move || {
            let numbers = lines.map_while(std::result::Result::ok);
            numbers
                .filter_map(|line| line.strip_prefix("completed ")?.parse().ok())
                .try_for_each(|number: u64| sender.send(number))
        });
        let hung = loop {
            match numbers.recv_timeout(HANG) {
                Ok(number) => (results.completed, first) = (results.completed + 1, number + 1),
                Err(RecvTimeoutError::Timeout) => break true,
                Err(RecvTimeoutError::Disconnected) => break false,
            }
        };
        if hung {
            child.kill().unwrap();
        }
        let status = child.wait().unwrap();
        if first < end {
            let list = if hung {
                &mut results.hung
            } else if status.code().is_none() {
                &mut results.crashed
            } else {
                &mut results.failed
            };
            list.push(first);
            first += 1;
        }
    }
    results
}

/// In this variant, a page of the messages has taken the place of another one. Each of its rows is sound.
#[test]
fn rows_of_another_conversation_are_not_shown() {
    assert_eq!(results(938, 939), Results { completed: 1, ..Results::default() });
}

#[test]
fn a_damaged_database_never_crashes_or_misleads_the_server() {
    let results = results(0, 60);
    assert_eq!(results, Results { completed: 60, ..Results::default() });
}

/// `OUTPOST_TEST_VARIANTS=1000 cargo test --test disk damaged_databases -- --ignored --nocapture`
#[test]
#[ignore = "a thousand variants: minutes"]
fn a_thousand_damaged_databases_never_mislead_the_server() {
    let count = std::env::var(VARIANTS).map_or(1000, |count| count.parse().unwrap());
    let results = results(0, count);
    println!("{count} variants: {results:?}");
    assert!(results.failed.is_empty() && results.hung.is_empty(), "{results:?}");
    // redb 4.5: if its list of freed pages is damaged, the first commit after the start panics. During unwinding, one of
    // redb's destructors panics because of the same page. Nothing outside of redb can prevent the abort.
    assert!(results.crashed.len() as u64 * 100 <= count, "more than 1 % of the variants end the process: {results:?}");
}

/// Edits every page that contains this message. `edit` gets the page and the message's offset in it.
fn damage_pages(content: &Content, conversation: usize, at: usize, edit: impl Fn(&mut [u8], usize)) -> Disk {
    let mut bytes = content.bytes.clone();
    let needle = text(conversation, at).into_bytes();
    let positions: Vec<usize> =
        (0..bytes.len() - needle.len()).filter(|position| bytes[*position..].starts_with(&needle)).collect();
    assert!(!positions.is_empty());
    for position in positions {
        edit(&mut bytes[position / PAGE * PAGE..][..PAGE], position % PAGE);
    }
    Disk::new(bytes)
}

async fn append(server: &Server, admin: &Access, conversation: ConversationId) -> Option<Code> {
    let expected = Precondition { version: None, if_match: None };
    conversations(server).append(admin, conversation, vec![text(0, 0)], expected).await.err().map(|error| error.code())
}

#[test]
fn damaged_pages_are_503_and_other_requests_succeed() {
    let _panics = panics::watch();
    let content = Content::new();
    // An invalid page type, for which redb panics.
    let disk = damage_pages(&content, 3, 19, |page, _| page[0] = 9);
    let server = content.installation.open_through(disk.opener()).unwrap();
    runtime().block_on(async {
        let admin = server.admin(&content.installation).await.unwrap();
        let (bad, good) = (content.conversations[3], content.conversations[18]);
        for _ in 0..20 {
            let refused = read_conversation(&server, &admin, bad).await.err().unwrap();
            assert_eq!(refused.code(), Code::StorageUnavailable, "{:?}", refused.cause());
            assert!(refused.wait().is_some());
            // The three writes share a transaction.
            let release = hold(&server.store).await;
            let (good_append, bad_append, new_key) = (
                append(&server, &admin, good),
                append(&server, &admin, bad),
                server.change(&content.installation, &admin, Op::NewKey),
            );
            let all = futures_util::future::join3(good_append, bad_append, new_key);
            futures_util::pin_mut!(all);
            assert!(futures_util::FutureExt::now_or_never(&mut all).is_none());
            drop(release);
            let (good_append, bad_append, new_key) = all.await;
            assert_eq!((good_append, bad_append), (None, Some(Code::StorageUnavailable)));
            assert!(new_key.is_ok());
            assert!(read_conversation(&server, &admin, good).await.is_ok());
        }
        let transcript = read_conversation(&server, &admin, good).await.unwrap();
        assert_eq!(transcript.messages.len(), 40, "each acknowledged message is stored once");
    });
    server.close();
}

#[test]
fn altered_text_is_detected_when_it_is_read() {
    let content = Content::new();
    let disk = damage_pages(&content, 3, 12, |page, at| page[at + 30] ^= 1);
    let server = content.installation.open_through(disk.opener()).unwrap();
    runtime().block_on(async {
        let admin = server.admin(&content.installation).await.unwrap();
        let refused = read_conversation(&server, &admin, content.conversations[3]).await.err().unwrap();
        assert_eq!(refused.code(), Code::StorageUnavailable);
        assert!(refused.message().contains("damaged"));
        assert!(read_conversation(&server, &admin, content.conversations[4]).await.is_ok());
    });
    let report = server.store.verify().unwrap();
    assert!(report.problems.iter().any(|problem| problem.contains("checksum")), "{:?}", report.problems);
    server.close();
}

#[test]
fn a_panicking_write_does_not_fail_the_other_writes_of_its_group() {
    let _panics = panics::watch();
    let installation = Installation::new(SEED);
    let disk = Disk::new(installation.database.clone());
    let opened = std::sync::Arc::new(AtomicUsize::new(0));
    let (inner, count) = (disk.opener(), opened.clone());
    let server = installation
        .open_through(Box::new(move |builder, path| {
            count.fetch_add(1, SeqCst);
            inner(builder, path)
        }))
        .unwrap();
    runtime().block_on(async {
        let admin = server.admin(&installation).await.unwrap();
        let release = hold(&server.store).await;
        let bad = server.store.write(|_| -> Result<()> { panic!("on purpose") });
        let good = server.change(&installation, &admin, Op::NewKey);
        let both = futures_util::future::join(bad, good);
        futures_util::pin_mut!(both);
        assert!(futures_util::FutureExt::now_or_never(&mut both).is_none());
        drop(release);
        let (bad, good) = both.await;
        // A panic is reported as an internal error, not as damage.
        assert_eq!(bad.err().map(|error| error.code()), Some(Code::Internal));
        assert!(good.is_ok());
        assert_eq!(opened.load(SeqCst), 2, "the database is reopened after the panic");
        assert!(server.change(&installation, &admin, Op::NewKey).await.is_ok());
        assert_eq!(opened.load(SeqCst), 2);
    });
    server.close();
}
