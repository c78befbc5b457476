//! Transactions that have their turn run alone.

use outpost_testing::needs_postgres;

use super::super::connection::{Connection, Request};
use super::super::node::Node;
use super::super::turn::{Turn, Turns};
use super::{Database, stored, values, wanted, writes};
use crate::remote::Wanted;
use crate::tables::KEYS;

fn wanting() -> Turns {
    let mut turns = Turns::default();
    turns.want();
    turns
}

async fn begin(connection: &mut Connection, node: &Node, turns: &mut Turns) -> Option<Vec<u8>> {
    values(connection.begin(node, &wanted(KEYS, &[b"k"]), turns).await.unwrap()).remove(0)
}

async fn commit(connection: &mut Connection, node: &mut Node, value: &[u8]) {
    connection.commit(node, &writes(&[(KEYS, b"k", Some(value))]), &[]).await.unwrap();
}

/// Two transactions of two nodes, of which the second waits for the first and sees what it wrote.
fn second_waits_for_first(mut first_turns: Turns, mut second_turns: Turns) {
    let database = Database::new();
    let (mut first, mut second) = (database.register("a"), database.register("b"));
    let (mut one, mut two) = (database.connect(), database.connect());
    database.runtime.block_on(async { begin(&mut one, &first, &mut first_turns).await });
    let waiting = database.runtime.spawn(async move {
        let found = begin(&mut two, &second, &mut second_turns).await;
        commit(&mut two, &mut second, b"second").await;
        found
    });
    database.wait_for_lock();
    database.runtime.block_on(async {
        commit(&mut one, &mut first, b"first").await;
        assert_eq!(waiting.await.unwrap().unwrap(), b"first");
    });
    assert_eq!(stored(&database, KEYS, b"k").unwrap(), b"second");
}

#[test]
fn a_turn_waits_for_open_transactions() {
    needs_postgres!();
    second_waits_for_first(Turns::default(), wanting());
}

#[test]
fn transactions_wait_for_a_turn() {
    needs_postgres!();
    second_waits_for_first(wanting(), Turns::default());
}

#[test]
fn without_the_lock_in_time_transactions_begin_without_it() {
    needs_postgres!();
    let database = Database::new();
    let mut node = database.register("a");
    let (mut holder, mut writer) = (database.connect(), database.connect());
    let mut turns = wanting();
    database.runtime.block_on(async {
        holder.run_one(Request::command(Turn::Exclusive.begin())).await.unwrap();
        assert_eq!(begin(&mut writer, &node, &mut turns).await, None);
        commit(&mut writer, &mut node, b"v").await;
        // The lock is not tried again for a while.
        turns.want();
        writer.begin(&node, &Wanted::default(), &mut turns).await.unwrap();
        assert_eq!(turns.next(), Turn::Unlocked);
    });
}

#[test]
fn a_database_without_such_locks_is_used_without_them() {
    needs_postgres!();
    let database = Database::new();
    let mut node = database.register("a");
    database.run(async |connection| {
        connection.run_one(Request::command("DROP TABLE outpost_turn")).await.unwrap();
        assert_eq!(begin(connection, &node, &mut Turns::default()).await, None);
        commit(connection, &mut node, b"v").await;
    });
    assert_eq!(stored(&database, KEYS, b"k").unwrap(), b"v");
}
