//! Chunks and the files that they belong to.

use outpost::ids::FileId;
use outpost::storage::WriteTx;
use outpost::storage::content_chunks::{self, Chunk};
use outpost::storage::files::{self, FileRecord, Purpose};
use outpost::storage::work_leases::{self, Work};

use super::fixture::Fixture;

fn record(fixture: &Fixture, chunks: u32) -> FileRecord {
    FileRecord {
        project: fixture.first.project.id,
        name: "train.jsonl".into(),
        purpose: Purpose::FineTune,
        bytes: 0,
        chunks,
        examples: 0,
        example_format: 1,
        sha256: [0; 32],
        created_at: fixture.first.project.record.created_at,
    }
}

async fn write_chunks(fixture: &Fixture, id: FileId, indices: std::ops::Range<u32>) {
    let write_chunks = move |tx: &WriteTx| {
        // Nodes that share the store write only chunks that they have begun with.
        work_leases::take(tx, Work::Content(id))?;
        indices.clone().try_for_each(|index| content_chunks::put(tx, id, index, &Chunk(vec![1; 10])))
    };
    fixture.store.write(write_chunks).await.unwrap();
}

#[tokio::test]
async fn check_finds_content_without_a_file_and_files_without_content() {
    let fixture = Fixture::new().await;
    let [whole, short, arriving, stray] = [1, 2, 3, 4].map(|number| FileId::from_bytes([number; 16]));
    write_chunks(&fixture, whole, 0..3).await;
    write_chunks(&fixture, short, 0..2).await;
    write_chunks(&fixture, arriving, 0..2).await;
    assert!(fixture.store.verify().unwrap().is_clean(), "marked chunks belong to an upload");
    let records = [(whole, record(&fixture, 3)), (short, record(&fixture, 3))];
    let insert = move |tx: &WriteTx| records.iter().try_for_each(|(id, record)| files::insert(tx, *id, record));
    fixture.store.write(insert).await.unwrap();
    // Without its first chunk, an upload has no mark.
    write_chunks(&fixture, stray, 1..2).await;
    write_chunks(&fixture, whole, 3..4).await;
    let mut problems = fixture.store.verify().unwrap().problems;
    problems.sort();
    let stray = "a content chunk belongs to nothing";
    assert_eq!(problems, [stray, stray, "the file 'train.jsonl' has lost the end of its content"]);
}

#[tokio::test]
async fn the_sweeper_removes_only_orphaned_chunks() {
    let fixture = Fixture::new().await;
    let (file, other) = (FileId::from_bytes([1; 16]), FileId::from_bytes([2; 16]));
    write_chunks(&fixture, file, 0..20).await;
    write_chunks(&fixture, other, 0..20).await;
    let record = record(&fixture, 20);
    fixture.store.write(move |tx| files::insert(tx, file, &record)).await.unwrap();
    let peers = fixture.store.peers();
    let sweep = |id: FileId| {
        let peers = peers.clone();
        fixture.store.write(move |tx| content_chunks::sweep(tx, id, 8, &peers))
    };
    assert!(sweep(file).await.unwrap(), "the sweeper does not remove a file");
    let steps = [sweep(other).await.unwrap(), sweep(other).await.unwrap(), sweep(other).await.unwrap()];
    assert_eq!(steps, [false, false, true]);
    let left = fixture.store.verify().unwrap();
    assert!(left.is_clean(), "{:?}", left.problems);
    assert_eq!((left.records["content_chunks"], left.records["orphaned_chunks"]), (20, 0));
    assert_eq!(fixture.store.read(move |tx| content_chunks::orphaned(tx, &peers)).await.unwrap(), []);
}

#[tokio::test]
async fn swept_chunks_cannot_become_a_file() {
    let fixture = Fixture::new().await;
    let id = FileId::from_bytes([1; 16]);
    write_chunks(&fixture, id, 0..1).await;
    let peers = fixture.store.peers();
    fixture.store.write(move |tx| content_chunks::sweep(tx, id, 8, &peers)).await.unwrap();
    let record = record(&fixture, 1);
    assert!(fixture.store.write(move |tx| files::insert(tx, id, &record)).await.is_err());
}
