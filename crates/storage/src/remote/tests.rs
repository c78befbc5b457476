//! The writer over a database in memory.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use super::RemoteError;
use super::memory::{Fault, Memory, State, Tables};
use super::writer::{Availability, Writer};
use crate::cluster::NodeProcess;
use crate::engine::{EngineWrite as _, Scan};
use crate::error::{Code, Error, Result};
use crate::pepper::Pepper;
use crate::shared_state::SharedState;
use crate::tables::{AGENTS, CONTENT_CHUNKS, FILES, RESOURCES_BY_PROJECT, Table, USAGE_SUMS};
use crate::transaction::{Reader as _, WriteTx};
use crate::write_queue::{Message, Task};

/// A writer thread. Writes that are sent before it starts share a group.
struct Rig {
    memory: Memory,
    shared: Arc<SharedState>,
    availability: Arc<Availability>,
    sender: SyncSender<Message>,
    thread: Option<JoinHandle<()>>,
    /// The writer, until it is started.
    writer: Option<Writer<Memory>>,
}

impl Rig {
    fn new(tables: Tables) -> Self {
        Self::of(tables, None)
    }

    /// With a writer that shares the database with other processes.
    fn of(tables: Tables, process: Option<NodeProcess>) -> Self {
        let memory = Memory::default();
        memory.0.lock().unwrap().tables = tables;
        let shared = Arc::new(SharedState::new(Arc::new(Pepper::from_bytes([7; 32])), process));
        let availability = Arc::new(Availability::default());
        let (sender, inbox) = sync_channel(1000);
        let (remote, state, available) = (memory.clone(), shared.clone(), availability.clone());
        let writer = Writer::new(remote, inbox, state, available);
        Self { memory, shared, availability, sender, thread: None, writer: Some(writer) }
    }

    fn send<T, F>(&self, f: F) -> oneshot::Receiver<Result<T>>
    where
        T: Send + 'static,
        F: FnMut(&WriteTx) -> Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        self.sender.send(Message::Write(Box::new(Task::new(f, reply)))).unwrap();
        answer
    }

    fn start(&mut self) {
        let writer = self.writer.take().unwrap();
        self.thread = Some(std::thread::spawn(move || writer.run()));
    }

    /// Sends one write and waits for its result.
    fn write<T, F>(&self, f: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&WriteTx) -> Result<T> + Send + 'static,
    {
        self.send(f).blocking_recv().unwrap()
    }

    fn state<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.memory.0.lock().unwrap())
    }

    /// Stops the writer and returns what is stored.
    fn stop(mut self) -> Tables {
        self.sender.send(Message::Stop).unwrap();
        self.thread.take().unwrap().join().unwrap();
        self.state(|state| std::mem::take(&mut state.tables))
    }
}

fn tables(rows: impl IntoIterator<Item = (Table, Vec<u8>, Vec<u8>)>) -> Tables {
    let mut tables = Tables::new();
    rows.into_iter().for_each(|(table, key, value)| drop(tables.entry(table).or_default().insert(key, value)));
    tables
}

fn number(tx: &WriteTx, table: Table, key: &[u8]) -> Result<u8> {
    Ok(tx.raw(table, key)?.and_then(|value| value.first().copied()).unwrap_or_default())
}

/// Adds one to the number under a key, and returns the sum.
fn increment(key: &'static [u8]) -> impl FnMut(&WriteTx) -> Result<u8> + Send + 'static {
    move |tx| {
        let next = number(tx, AGENTS, key)? + 1;
        tx.put_raw(AGENTS, key, &[next])?;
        Ok(next)
    }
}

#[test]
fn a_group_costs_one_round_trip_for_each_link_of_its_reads() {
    // The value of each row is the key of the next one.
    let chain = (0..5u8).map(|link| (AGENTS, vec![link], vec![link + 1]));
    let mut rig = Rig::new(tables(chain));
    let follow = |write: u8| {
        move |tx: &WriteTx| {
            let (mut links, mut at) = (0, 0);
            while let Some(next) = tx.raw(AGENTS, &[at])? {
                (at, links) = (next[0], links + 1);
            }
            tx.put_raw(FILES, &[write], &[links])?;
            Ok(links)
        }
    };
    let answers: Vec<_> = (0..100).map(|write| rig.send(follow(write))).collect();
    rig.start();
    for answer in answers {
        assert_eq!(answer.blocking_recv().unwrap().unwrap(), 5);
    }
    assert_eq!(rig.state(|state| (state.fetches, state.commits)), (6, 1));
    assert_eq!(rig.shared.writes.load(Relaxed), 100);
}

#[test]
fn later_closures_of_a_group_see_what_earlier_ones_wrote() {
    let mut rig = Rig::new(Tables::new());
    let answers: Vec<_> = (0..50).map(|_| rig.send(increment(b"a"))).collect();
    rig.start();
    let sums: Vec<_> = answers.into_iter().map(|answer| answer.blocking_recv().unwrap().unwrap()).collect();
    assert_eq!(sums, (1..=50).collect::<Vec<_>>());
    assert_eq!(rig.state(|state| (state.fetches, state.commits)), (1, 1));
}

#[test]
fn a_closure_that_fails_or_panics_leaves_nothing_and_harms_nobody() {
    let mut rig = Rig::new(Tables::new());
    let first = rig.send(increment(b"a"));
    let failing = rig.send(|tx| {
        tx.put_raw(AGENTS, b"bad", &[1])?;
        number(tx, AGENTS, b"x")?;
        Err::<(), _>(Error::invalid("x", "too bad"))
    });
    let panicking = rig.send(|tx: &WriteTx| -> Result<()> {
        tx.put_raw(AGENTS, b"worse", &[1])?;
        panic!("for a test")
    });
    // Swallows the error that tells it to run again.
    let careless = rig.send(|tx| {
        let found = tx.raw(AGENTS, b"a").ok().flatten();
        tx.put_raw(AGENTS, b"careless", &[u8::from(found.is_some())])
    });
    let last = rig.send(increment(b"a"));
    rig.start();
    assert_eq!(first.blocking_recv().unwrap().unwrap(), 1);
    assert_eq!(failing.blocking_recv().unwrap().unwrap_err().to_string(), "too bad");
    assert_eq!(panicking.blocking_recv().unwrap().unwrap_err().code(), Code::Internal);
    careless.blocking_recv().unwrap().unwrap();
    assert_eq!(last.blocking_recv().unwrap().unwrap(), 2);
    let expected = [(AGENTS, b"a".to_vec(), vec![2]), (AGENTS, b"careless".to_vec(), vec![1])];
    assert_eq!(rig.stop(), tables(expected));
}

#[test]
fn a_group_that_writes_too_much_becomes_several_transactions() {
    let mut rig = Rig::new(Tables::new());
    let chunk = |index: u8| move |tx: &WriteTx| tx.put_raw(CONTENT_CHUNKS, &[index], &vec![index; 1 << 20]);
    let mut answers: Vec<_> = (0..10).map(|index| rig.send(chunk(index))).collect();
    // A single closure may write more.
    answers.push(rig.send(|tx| tx.put_raw(FILES, b"large", &vec![0; 5 << 20])));
    rig.start();
    answers.into_iter().for_each(|answer| answer.blocking_recv().unwrap().unwrap());
    assert_eq!(rig.state(|state| state.commits), 5);
    assert_eq!(rig.stop()[&CONTENT_CHUNKS].len(), 10);
}

#[test]
fn a_group_runs_again_after_conflicts_and_lost_connections() {
    let faults = [
        Fault::Fails(RemoteError::Conflict("for a test".to_owned())),
        Fault::Fails(RemoteError::Conflict("for a test".to_owned())),
        Fault::Fails(RemoteError::Unavailable("for a test".to_owned())),
    ];
    let mut rig = Rig::new(Tables::new());
    rig.state(|state| {
        state.fetch_faults.extend(faults[..1].to_vec());
        state.commit_faults.extend(faults.to_vec());
    });
    rig.start();
    assert_eq!(rig.write(increment(b"a")).unwrap(), 1);
    assert_eq!(rig.write(increment(b"a")).unwrap(), 2);
    assert_eq!(rig.state(|state| state.commits), 2);
}

#[test]
fn after_a_conflict_transactions_run_alone_for_a_while() {
    let mut rig = Rig::new(Tables::new());
    let conflict = Fault::Fails(RemoteError::Conflict("for a test".to_owned()));
    rig.state(|state| state.commit_faults.extend([Fault::None, conflict]));
    rig.start();
    for count in 1..=60 {
        assert_eq!(rig.write(increment(b"a")).unwrap(), count);
    }
    let in_turn = rig.state(|state| std::mem::take(&mut state.in_turn));
    let expected: Vec<bool> = (0..60).map(|commit| (1..51).contains(&commit)).collect();
    assert_eq!(in_turn, expected);
}

#[test]
fn sums_of_this_process_are_read_once() {
    let process = NodeProcess { number: 7, epoch: 1 };
    let key = |node: u8| [&[0; 25][..], &[0, node]].concat();
    let stored = [7, 8].map(|node| (USAGE_SUMS, key(node), vec![10]));
    let mut rig = Rig::of(tables(stored), Some(process));
    rig.start();
    let add = |node| {
        let key = key(node);
        move |tx: &WriteTx| {
            let next = number(tx, USAGE_SUMS, &key)? + 1;
            tx.put_raw(USAGE_SUMS, &key, &[next]).map(|()| next)
        }
    };
    let fetches = |rig: &Rig| rig.state(|state| state.fetches);
    assert_eq!((rig.write(add(7)).unwrap(), rig.write(add(8)).unwrap(), fetches(&rig)), (11, 11, 2));
    assert_eq!((rig.write(add(7)).unwrap(), fetches(&rig)), (12, 2));
    // Another node may have changed its own.
    rig.state(|state| state.tables.get_mut(&USAGE_SUMS).unwrap().insert(key(8), vec![20]));
    assert_eq!((rig.write(add(8)).unwrap(), fetches(&rig)), (21, 3));
    // A transaction that fails leaves nothing.
    let fails = add(7);
    let failed: Result<u8> = rig.write(move |tx: &WriteTx| {
        fails(tx)?;
        Err(Error::internal("for a test"))
    });
    assert!(failed.is_err());
    assert_eq!((rig.write(add(7)).unwrap(), fetches(&rig)), (13, 3));
}

#[test]
fn a_commit_during_which_the_connection_is_lost_has_one_effect() {
    let mut rig = Rig::new(Tables::new());
    rig.state(|state| {
        state.commit_faults.extend([
            Fault::LostAfterCommit,
            Fault::Fails(RemoteError::Unknown("before the commit".to_owned())),
            Fault::None,
            Fault::LostAfterCommit,
        ]);
        state.unreachable = 2;
    });
    rig.start();
    let sums: Vec<_> = (0..3).map(|_| rig.write(increment(b"a")).unwrap()).collect();
    assert_eq!(sums, [1, 2, 3]);
    assert_eq!(rig.stop(), tables([(AGENTS, b"a".to_vec(), vec![3])]));
}

#[test]
fn writes_are_refused_while_the_database_is_lost_and_accepted_afterwards() {
    let mut rig = Rig::new(Tables::new());
    rig.state(|state| {
        state.commit_faults.push_back(Fault::Fails(RemoteError::Unavailable("for a test".to_owned())));
        state.unreachable = usize::MAX;
    });
    rig.start();
    assert_eq!(rig.write(increment(b"a")).unwrap_err().code(), Code::StorageUnavailable);
    assert!(rig.availability.check().is_err());
    assert_eq!(rig.write(increment(b"a")).unwrap_err().code(), Code::StorageUnavailable);
    rig.state(|state| state.unreachable = 0);
    while rig.availability.check().is_err() {
        std::thread::yield_now();
    }
    assert_eq!(rig.write(increment(b"a")).unwrap(), 1);
}

#[test]
fn a_fenced_writer_stops() {
    let mut rig = Rig::new(Tables::new());
    let fenced = Fault::Fails(RemoteError::Fenced("another process has this name".to_owned()));
    rig.state(|state| state.commit_faults.push_back(fenced));
    rig.start();
    assert_eq!(rig.write(increment(b"a")).unwrap_err().code(), Code::StorageUnavailable);
    rig.thread.take().unwrap().join().unwrap();
    assert!(rig.availability.check().is_err());
    assert!(rig.state(|state| state.tables.is_empty()));
}

/// An operation of a random closure.
#[derive(Clone, Debug)]
enum Step {
    Get(Table, Vec<u8>),
    GetAll(Table, Vec<Vec<u8>>),
    /// Prefix, before, values, expected rows, after how many rows it breaks.
    Scan(Table, Vec<u8>, Option<Vec<u8>>, bool, Option<usize>, usize),
    Put(Table, Vec<u8>, Vec<u8>),
    Remove(Table, Vec<u8>),
    Fail,
}

/// What a closure has seen.
type Seen = Vec<(Vec<u8>, Option<Vec<u8>>)>;

fn run_step(tx: &WriteTx, step: &Step, seen: &mut Seen) -> Result<()> {
    match step {
        Step::Get(table, key) => seen.push((key.clone(), tx.raw(*table, key)?)),
        Step::GetAll(table, keys) => seen.extend(keys.iter().cloned().zip(tx.raw_all(*table, keys)?)),
        Step::Scan(table, prefix, before, values, rows, limit) => {
            let scan = Scan { table: *table, prefix, before: before.as_deref(), values: *values, rows: *rows };
            let mut left = *limit;
            tx.scan(&scan, &mut |key, value| {
                seen.push((key.to_vec(), Some(value.to_vec())));
                left -= 1;
                Ok(if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
        }
        Step::Put(table, key, value) => tx.put_raw(*table, key, value)?,
        Step::Remove(table, key) => {
            tx.remove_raw(*table, key)?;
        }
        Step::Fail => return Err(Error::invalid("x", "for a test")),
    }
    Ok(())
}

mod random {
    use proptest::prelude::*;

    use super::*;
    use crate::redb::in_memory;

    fn table() -> impl Strategy<Value = Table> {
        prop_oneof![Just(AGENTS), Just(RESOURCES_BY_PROJECT), Just(CONTENT_CHUNKS)]
    }

    /// Few keys, so that operations meet.
    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![Just(0), Just(7), Just(255)], 0..4)
    }

    fn step() -> impl Strategy<Value = Step> {
        let scan = (table(), key(), prop::option::of(key()), any::<bool>(), prop::option::of(0..40usize), 1..60usize);
        prop_oneof![
            3 => (table(), key()).prop_map(|(table, key)| Step::Get(table, key)),
            1 => (table(), prop::collection::vec(key(), 0..4)).prop_map(|(table, keys)| Step::GetAll(table, keys)),
            4 => scan.prop_map(|(table, prefix, before, values, rows, limit)| {
                let before = before.map(|rest| [prefix.as_slice(), &rest].concat());
                Step::Scan(table, prefix, before, values, rows, limit)
            }),
            4 => (table(), key(), any::<u8>()).prop_map(|(table, key, value)| Step::Put(table, key, vec![value; 3])),
            2 => (table(), key()).prop_map(|(table, key)| Step::Remove(table, key)),
            1 => Just(Step::Fail),
        ]
    }

    /// The same closures, one after the other, over redb. A closure that fails must not have written.
    fn over_redb(start: &Tables, closures: &[Vec<Step>]) -> (Vec<Option<Seen>>, Tables) {
        let engine = in_memory();
        let pepper = Arc::new(Pepper::from_bytes([7; 32]));
        let mut stored = start.clone();
        for (table, rows) in start {
            rows.iter().for_each(|(key, value)| engine.put(*table, key, value).unwrap());
        }
        let mut results = Vec::new();
        for steps in closures {
            let tx = WriteTx::new(&engine, pepper.clone());
            let mut seen = Seen::new();
            let writes = steps.iter().take_while(|step| !matches!(step, Step::Fail));
            let fails = steps.iter().any(|step| matches!(step, Step::Fail));
            if fails {
                results.push(None);
                continue;
            }
            for step in writes {
                run_step(&tx, step, &mut seen).unwrap();
                match step {
                    Step::Put(table, key, value) => {
                        stored.entry(*table).or_default().insert(key.clone(), value.clone());
                    }
                    Step::Remove(table, key) => drop(stored.entry(*table).or_default().remove(key)),
                    _ => {}
                }
            }
            results.push(Some(seen));
        }
        stored.retain(|_, rows| !rows.is_empty());
        (results, stored)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

        #[test]
        fn closures_see_and_leave_what_they_would_over_redb(
            start in prop::collection::vec((table(), key(), prop::collection::vec(any::<u8>(), 1..4)), 0..60),
            closures in prop::collection::vec(prop::collection::vec(step(), 1..8), 1..8),
        ) {
            let start = tables(start);
            let (expected, stored) = over_redb(&start, &closures);
            let mut rig = Rig::new(start);
            let run = |steps: Vec<Step>| move |tx: &WriteTx| {
                let mut seen = Seen::new();
                steps.iter().try_for_each(|step| run_step(tx, step, &mut seen))?;
                Ok(seen)
            };
            let answers: Vec<_> = closures.into_iter().map(|steps| rig.send(run(steps))).collect();
            rig.start();
            let found: Vec<_> = answers.into_iter().map(|answer| answer.blocking_recv().unwrap().ok()).collect();
            prop_assert_eq!(found, expected);
            let mut left = rig.stop();
            left.retain(|_, rows| !rows.is_empty());
            prop_assert_eq!(left, stored);
        }
    }

    /// Pages end and begin at every place of a table.
    #[test]
    fn walks_over_many_rows_see_them_all() {
        let rows = (0..3000u32).map(|index| (RESOURCES_BY_PROJECT, index.to_be_bytes().to_vec(), vec![1]));
        let mut rig = Rig::new(tables(rows));
        rig.start();
        let removed = rig.write(|tx| {
            let keys = tx.keys(RESOURCES_BY_PROJECT, &[], None, None)?;
            keys.iter().step_by(2).try_for_each(|key| tx.remove_raw(RESOURCES_BY_PROJECT, key))?;
            Ok((keys.len(), tx.keys(RESOURCES_BY_PROJECT, &[], None, None)?.len()))
        });
        assert_eq!(removed.unwrap(), (3000, 1500));
        assert_eq!(rig.state(|state| state.fetches), 5);
        let first = Arc::new(Mutex::new(None));
        let seen = first.clone();
        rig.write(move |tx| {
            *seen.lock().unwrap() = tx.keys(RESOURCES_BY_PROJECT, &[], None, Some(10))?.pop();
            Ok(())
        })
        .unwrap();
        assert_eq!(first.lock().unwrap().take(), Some(2980u32.to_be_bytes().to_vec()));
    }
}
