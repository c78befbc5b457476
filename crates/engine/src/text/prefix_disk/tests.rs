//! Files are read back as they were written, or not at all.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::{ModelIdentity, PrefixDisk, ReadBlock, TextBlock, TextNames};
use crate::runtime::metrics::Metrics;
use crate::runtime::{DeviceInfo, Runtime};
use crate::settings::{PrefixDiskKey, PrefixDiskSettings, Settings};
use crate::text::prompt::BlockKey;
use outpost_common::clock_rng::{ClockRng, Timestamp};
use outpost_common::disk_space::DiskReserve;
use outpost_models::kv::BLOCK;
use outpost_testing::test_clock::TestClock;
use outpost_testing::wait::until;

/// Bytes of a file with contents of up to some thousand bytes.
const PAGE: u64 = 4096;
const FIRST: TextBlock = TextBlock { index: 0, group: 0 };

/// A clock whose time of day goes on, too, also for the next rig.
struct MovingClock(TestClock);

impl ClockRng for MovingClock {
    fn now(&self) -> Timestamp {
        static READINGS: AtomicI64 = AtomicI64::new(1);
        Timestamp::from_millis(READINGS.fetch_add(1, Ordering::Relaxed))
    }

    fn uptime(&self) -> Duration {
        self.0.uptime()
    }

    fn fill(&self, bytes: &mut [u8]) {
        self.0.fill(bytes);
    }
}

struct Rig {
    disk: PrefixDisk,
    runtime: Arc<Runtime>,
    metrics: Arc<Metrics>,
}

fn settings(folder: &Path, pages: u64) -> PrefixDiskSettings {
    PrefixDiskSettings {
        folder: folder.join("prefixes"),
        max_bytes: pages * PAGE,
        key: PrefixDiskKey([3; 32]),
        reserve: DiskReserve::new(folder, Some(0)),
    }
}

fn rig(settings: PrefixDiskSettings) -> Rig {
    let (clock, metrics) = (Arc::new(MovingClock(TestClock::default())), Arc::new(Metrics::new(Vec::new(), [])));
    let device = DeviceInfo { index: 0, name: "cpu".to_owned() };
    let runtime = Runtime::new(Settings::new(".", 1 << 20), device, Arc::clone(&metrics), clock.clone());
    let disk = PrefixDisk::start(settings, clock, Arc::clone(&metrics)).unwrap();
    Rig { disk, runtime: Arc::new(runtime), metrics }
}

/// The names of a text whose blocks have one token each.
fn text(rig: &Rig, model: (&str, &str), tenant: u128, tokens: &[u32]) -> TextNames {
    let root = rig.disk.root(&ModelIdentity { id: model.0, description: model.1 }, tenant, None, false);
    rig.disk.names(root, tokens.iter().map(|token| BlockKey { tokens: [*token; BLOCK], media: 0 }))
}

const MODEL: (&str, &str) = ("m", "1");

impl Rig {
    /// Writes the blocks of a text, and waits until they are there.
    fn write(&self, text: &TextNames, contents: &[&[u8]]) {
        let blocks: Vec<_> = (0..contents.len()).map(|index| TextBlock { index, group: 0 }).collect();
        for (block, contents) in blocks.iter().zip(contents) {
            self.disk.write(text, *block, contents.to_vec());
        }
        self.disk.mark_used(text, &blocks);
        self.wait();
    }

    /// Waits until the thread has nothing to do.
    fn wait(&self) {
        let marker = text(self, ("marker", "1"), 9, &[1]);
        self.disk.read(&self.runtime, u64::MAX, &marker, &[], &[]);
        until(
            || "the queue is empty",
            || {
                let state = self.disk.shared.lock();
                state.writes.is_empty() && state.reads.is_empty() && state.deletions.is_empty()
            },
        );
        // What was taken last may still be at work; a read comes after it.
        self.disk.take_read(0, usize::MAX);
        self.disk.read(&self.runtime, u64::MAX, &marker, &[], &[]);
        until(|| "a read is served", || !self.disk.take_read(0, usize::MAX).is_empty());
    }

    fn read(&self, text: &TextNames, indices: &[usize]) -> Vec<Vec<u8>> {
        let wanted: Vec<_> = indices.iter().map(|index| TextBlock { index: *index, group: 0 }).collect();
        self.disk.read(&self.runtime, 1, text, &wanted, &wanted);
        let (mut read, mut has_ended) = (Vec::new(), false);
        until(
            || "all is read",
            || {
                for ReadBlock { request, contents } in self.disk.take_read(0, usize::MAX) {
                    assert!(request == 1 && !has_ended);
                    has_ended = contents.is_none();
                    read.extend(contents.map(|(_, bytes)| bytes));
                }
                has_ended
            },
        );
        read
    }

    fn found(&self, text: &TextNames) -> Vec<bool> {
        self.disk.find(text, 1).into_iter().map(|groups| groups[0]).collect()
    }

    fn count(&self, event: &str) -> u64 {
        let (text, name) =
            (self.metrics.encode(), format!("outpost_prefix_cache_disk_blocks_total{{event=\"{event}\"}} "));
        text.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |count| count.parse().unwrap())
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = folder.read_dir().into_iter().flatten().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn blocks_are_read_by_the_same_text_of_the_same_model_and_tenant_only() {
    let folder = tempfile::tempdir().unwrap();
    let first = rig(settings(folder.path(), 100));
    let own = text(&first, MODEL, 1, &[1, 2, 3]);
    first.write(&own, &[b"one", b"two", b"three"]);
    assert_eq!(first.read(&own, &[0, 1, 2]), [&b"one"[..], b"two", b"three"]);
    let names: Vec<_> = files(folder.path()).iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(names.len() == 3 && names.iter().all(|bytes| !bytes.windows(3).any(|window| window == b"two")));
    drop(first);
    let second = rig(settings(folder.path(), 100));
    let own = text(&second, MODEL, 1, &[1, 2, 3]);
    assert_eq!(second.found(&own), [true; 3], "after a restart");
    assert_eq!(second.read(&own, &[1, 2]), [&b"two"[..], b"three"]);
    assert_eq!(second.found(&text(&second, MODEL, 1, &[1, 3, 3])), [true, false, false]);
    assert_eq!(second.found(&text(&second, MODEL, 2, &[1])), [false]);
    assert_eq!(second.found(&text(&second, ("other", "1"), 1, &[1])), [false]);
    drop(second);
    let key = PrefixDiskKey([4; 32]);
    let third = rig(PrefixDiskSettings { key, ..settings(folder.path(), 100) });
    assert_eq!(third.found(&text(&third, MODEL, 1, &[1, 2, 3])), [false; 3]);
}

#[test]
fn a_changed_model_or_a_forgotten_tenant_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let rig = rig(settings(folder.path(), 100));
    for (model, tenant) in [(MODEL, 1), (MODEL, 2), (("other", "1"), 1)] {
        rig.write(&text(&rig, model, tenant, &[1]), &[b"contents"]);
    }
    assert_eq!((files(folder.path()).len(), rig.disk.tenants().contains(&2)), (3, true));
    rig.disk.forget(2);
    rig.wait();
    assert_eq!((files(folder.path()).len(), rig.disk.tenants().contains(&2)), (2, false));
    assert_eq!(rig.found(&text(&rig, MODEL, 1, &[1])), [true]);
    assert_eq!(rig.found(&text(&rig, ("m", "2"), 1, &[1])), [false]);
    rig.wait();
    assert_eq!(files(folder.path()).len(), 1, "that of the other model");
    rig.disk.forget(1);
    rig.wait();
    assert!(folder.path().join("prefixes").read_dir().unwrap().next().is_none(), "no folder is left");
}

#[test]
fn a_damaged_file_is_deleted_and_ends_the_read() {
    let folder = tempfile::tempdir().unwrap();
    let damages: [fn(&mut Vec<u8>); 5] = [
        |bytes| bytes[20] ^= 1,
        |bytes| *bytes.last_mut().unwrap() ^= 0x80,
        |bytes| bytes.truncate(30),
        Vec::clear,
        |bytes| bytes.extend([0; 5000]),
    ];
    let rig = rig(settings(folder.path(), 100));
    let own = text(&rig, MODEL, 1, &[1, 2, 3]);
    for (index, damage) in (1..).zip(damages) {
        rig.write(&own, &[b"one", b"two, which is longer", b"three"]);
        let all = files(folder.path());
        let path = all.iter().max_by_key(|path| path.metadata().unwrap().len()).unwrap();
        let mut bytes = std::fs::read(path).unwrap();
        damage(&mut bytes);
        std::fs::write(path, bytes).unwrap();
        assert_eq!(rig.read(&own, &[0, 1, 2]), [b"one"]);
        assert_eq!((rig.count("damaged"), rig.found(&own)), (index, vec![true, false, true]));
        assert!(!path.exists());
    }
    let all = files(folder.path());
    let [one, other] = [&all[0], &all[1]].map(|path| std::fs::read(path).unwrap());
    std::fs::write(&all[0], other).unwrap();
    std::fs::write(&all[1], one).unwrap();
    assert_eq!(rig.read(&own, &[0, 2]).len(), 0, "contents with the name of another block");
    assert_eq!(rig.count("damaged"), 6);
}

#[test]
fn the_least_recently_used_files_are_evicted_the_end_of_a_text_first() {
    let folder = tempfile::tempdir().unwrap();
    let first = rig(settings(folder.path(), 6));
    let [a, b] = [[1, 2, 3], [4, 5, 6]].map(|tokens| text(&first, MODEL, 1, &tokens));
    first.write(&a, &[b"1", b"2", b"3"]);
    first.write(&b, &[b"4", b"5", b"6"]);
    let new = text(&first, MODEL, 1, &[7]);
    first.write(&new, &[b"7"]);
    assert_eq!((first.found(&a), first.found(&b)), (vec![true, true, false], vec![true; 3]));
    assert_eq!(first.read(&a, &[0, 1]).len(), 2);
    first.wait();
    drop(first);
    // The order of uses survives a restart.
    let second = rig(settings(folder.path(), 6));
    let [a, b] = [[1, 2, 3], [4, 5, 6]].map(|tokens| text(&second, MODEL, 1, &tokens));
    second.write(&text(&second, MODEL, 1, &[8, 9]), &[b"8", b"9"]);
    assert_eq!((second.found(&a), second.found(&b)), (vec![true, true, false], vec![true, false, false]));
    assert_eq!((second.count("evicted"), files(folder.path()).len()), (2, 6));
    assert!(second.metrics.encode().contains("outpost_prefix_cache_disk_bytes 24576"));
    second.write(&text(&second, MODEL, 1, &[10]), &[&vec![0; 7 * PAGE as usize]]);
    assert_eq!((second.count("evicted"), second.count("unwritten")), (2, 0), "larger than all files together may be");
}

#[test]
fn nothing_is_written_to_a_disk_that_is_nearly_full() {
    let folder = tempfile::tempdir().unwrap();
    let first = rig(settings(folder.path(), 100));
    first.write(&text(&first, MODEL, 1, &[1, 2]), &[b"1", b"2"]);
    drop(first);
    let reserve = DiskReserve::new(folder.path(), Some(u64::MAX / 4));
    let full = rig(PrefixDiskSettings { reserve, ..settings(folder.path(), 100) });
    full.write(&text(&full, MODEL, 1, &[3]), &[b"3"]);
    assert_eq!((full.count("evicted"), full.count("unwritten"), files(folder.path()).len()), (2, 1, 0));
    // It is not tried again at once.
    full.write(&text(&full, MODEL, 1, &[4]), &[b"4"]);
    assert_eq!(full.count("unwritten"), 1);
}

#[test]
fn files_that_were_not_finished_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let first = rig(settings(folder.path(), 100));
    first.write(&text(&first, MODEL, 1, &[1]), &[b"1"]);
    drop(first);
    let path = files(folder.path()).remove(0);
    std::fs::write(path.with_extension("tmp"), b"half").unwrap();
    std::fs::write(path.with_file_name("unknown"), b"not ours").unwrap();
    let second = rig(settings(folder.path(), 100));
    assert_eq!(second.read(&text(&second, MODEL, 1, &[1]), &[0]), [b"1"]);
    assert_eq!(files(folder.path()).len(), 2);
}

#[test]
fn what_is_queued_is_written_when_the_cache_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let first = rig(settings(folder.path(), 1000));
    let tokens: Vec<u32> = (0..200).collect();
    let own = text(&first, MODEL, 1, &tokens);
    (0..200).for_each(|index| first.disk.write(&own, TextBlock { index, ..FIRST }, vec![1; 100]));
    first.disk.close(Duration::from_secs(60));
    assert_eq!(files(folder.path()).len(), 200);
}
