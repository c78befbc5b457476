//! `cargo bench --bench writes`: durable key creations per second with 1 to 256 concurrent writers, the bare
//! fsync rate for comparison, and authentications per second from memory.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark, not the program"
)]

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outpost::clock_rng::{ClockRng, Timestamp};
use outpost::service::{Access, Keys, NewKey, first_start};
use outpost::storage::{Store, StoreSettings};
use ring::rand::{SecureRandom, SystemRandom};

const DURATION: Duration = Duration::from_secs(3);

struct SystemClock(Instant, SystemRandom);

impl ClockRng for SystemClock {
    fn now(&self) -> Timestamp {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        Timestamp::from_millis(since.as_millis() as i64)
    }

    fn uptime(&self) -> Duration {
        self.0.elapsed()
    }

    fn fill(&self, bytes: &mut [u8]) {
        self.1.fill(bytes).unwrap();
    }
}

fn fsyncs(dir: &std::path::Path) -> f64 {
    let mut file = std::fs::File::create(dir.join("fsync")).unwrap();
    let (begun, mut count) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(1) {
        file.write_all(&[7; 4096]).unwrap();
        file.sync_data().unwrap();
        count += 1;
    }
    f64::from(count) / begun.elapsed().as_secs_f64()
}

async fn create_until(keys: Arc<Keys>, admin: Access, end: Instant) -> u64 {
    let mut created = 0;
    while Instant::now() < end {
        let new =
            NewKey { name: "bench".into(), project: admin.project(), expires_at: None, scopes: None, models: None };
        keys.create(&admin, new).await.unwrap();
        created += 1;
    }
    created
}

#[tokio::main]
async fn main() {
    let dir = tempfile::tempdir_in(".").unwrap();
    println!("bare 4 KiB write + fdatasync: {:.0}/s", fsyncs(dir.path()));
    let clock_rng: Arc<dyn ClockRng> = Arc::new(SystemClock(Instant::now(), SystemRandom::new()));
    let settings =
        StoreSettings { dir: dir.path().join("data"), cache_bytes: 64 << 20, queue: 1024, min_free_disk: Some(0) };
    let store = Store::open(settings, clock_rng.clone()).unwrap();
    let first = first_start(&store, &clock_rng).await.unwrap().unwrap();
    let keys = Arc::new(Keys::new(store.clone(), clock_rng));
    let admin = keys.authenticate(first.secret.expose()).await.unwrap();
    for writers in [1, 16, 64, 256] {
        let before = store.stats();
        let begun = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..writers {
            tasks.spawn(create_until(keys.clone(), admin.clone(), begun + DURATION));
        }
        let created: u64 = tasks.join_all().await.into_iter().sum();
        let (seconds, after) = (begun.elapsed().as_secs_f64(), store.stats());
        let commits = after.commits - before.commits;
        println!(
            "{writers} writers: {:.0} keys/s, {:.0} commits/s, {:.1} writes a commit",
            created as f64 / seconds,
            commits as f64 / seconds,
            created as f64 / commits as f64
        );
    }
    let (begun, mut count) = (Instant::now(), 0_u64);
    while begun.elapsed() < Duration::from_secs(1) {
        for _ in 0..1000 {
            keys.authenticate(first.secret.expose()).await.unwrap();
        }
        count += 1000;
    }
    println!("authentication from memory, one thread: {:.0}/s", count as f64 / begun.elapsed().as_secs_f64());
}
