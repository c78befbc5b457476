//! Chunks and the files that they belong to.

use outpost::ids::FileId;
use outpost::storage::file_records::{self, Chunk, FileRecord};

use super::fixture::Fixture;

fn record(fixture: &Fixture, chunks: u32) -> FileRecord {
    FileRecord {
        project: fixture.first.project.id,
        name: "train.jsonl".into(),
        purpose: 1,
        bytes: 0,
        chunks,
        examples: 0,
        form: 1,
        sha256: [0; 32],
        created_at: fixture.first.project.created_at,
    }
}

async fn put(fixture: &Fixture, id: FileId, places: std::ops::Range<u32>) {
    let put =
        move |tx: &_| places.clone().try_for_each(|place| file_records::put_chunk(tx, id, place, &Chunk(vec![1; 10])));
    fixture.store.write(put).await.unwrap();
}

#[tokio::test]
async fn a_check_finds_content_without_a_file_and_a_file_without_content() {
    let fixture = Fixture::new().await;
    let [whole, short, arriving, stray] = [1, 2, 3, 4].map(|number| FileId::from_bytes([number; 16]));
    put(&fixture, whole, 0..3).await;
    put(&fixture, short, 0..2).await;
    put(&fixture, arriving, 0..2).await;
    assert!(fixture.store.verify().unwrap().is_clean(), "what is marked belongs to an upload");
    let records = [(whole, record(&fixture, 3)), (short, record(&fixture, 3))];
    let insert = move |tx: &_| records.iter().try_for_each(|(id, record)| file_records::insert(tx, *id, record));
    fixture.store.write(insert).await.unwrap();
    // Without its first chunk there is no mark.
    put(&fixture, stray, 1..2).await;
    put(&fixture, whole, 3..4).await;
    let mut problems = fixture.store.verify().unwrap().problems;
    problems.sort();
    let stray = "a content chunk belongs to no file";
    assert_eq!(problems, [stray, stray, "the file 'train.jsonl' has lost the end of its content"]);
}

#[tokio::test]
async fn sweeping_takes_what_belongs_to_no_file_and_nothing_else() {
    let fixture = Fixture::new().await;
    let (file, other) = (FileId::from_bytes([1; 16]), FileId::from_bytes([2; 16]));
    put(&fixture, file, 0..20).await;
    put(&fixture, other, 0..20).await;
    let record = record(&fixture, 20);
    fixture.store.write(move |tx| file_records::insert(tx, file, &record)).await.unwrap();
    let sweep = |id: FileId| fixture.store.write(move |tx| file_records::sweep(tx, id, 8));
    assert!(sweep(file).await.unwrap(), "a file is left alone");
    let steps = [sweep(other).await.unwrap(), sweep(other).await.unwrap(), sweep(other).await.unwrap()];
    assert_eq!(steps, [false, false, true]);
    let left = fixture.store.verify().unwrap();
    assert!(left.is_clean(), "{:?}", left.problems);
    assert_eq!((left.records["file_chunks"], left.records["file_remains"]), (20, 0));
    assert_eq!(fixture.store.read(file_records::orphaned_chunks).await.unwrap(), []);
}

#[tokio::test]
async fn no_file_is_made_of_chunks_that_were_swept() {
    let fixture = Fixture::new().await;
    let id = FileId::from_bytes([1; 16]);
    put(&fixture, id, 0..1).await;
    fixture.store.write(move |tx| file_records::sweep(tx, id, 8)).await.unwrap();
    let record = record(&fixture, 1);
    assert!(fixture.store.write(move |tx| file_records::insert(tx, id, &record)).await.is_err());
}
