//! A clock that is set forward or back, by an hour or a year, with and without a restart: the old secret expires on
//! time and never becomes valid again.

use std::time::Duration;

use outpost::error::Code;
use outpost::service::Secret;

use super::fixture::Fixture;

const HOUR: i64 = 3600;
const YEAR: i64 = 365 * 24 * HOUR;
const JUMPS: [i64; 4] = [HOUR, -HOUR, YEAR, -YEAR];
const GRACES: [i64; 2] = [1, 2_592_000];
const TICK: Duration = Duration::from_millis(1);

/// How the server stops around the jump of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    None,
    /// The clock jumps and then the server is restarted.
    After,
    /// The clock jumps while the server is stopped.
    During,
    Crash,
}

impl Stop {
    const ALL: [Stop; 4] = [Stop::None, Stop::After, Stop::During, Stop::Crash];
}

async fn jump(fixture: Fixture, seconds: i64, stop: Stop) -> Fixture {
    if stop != Stop::During {
        fixture.clock.jump(seconds);
    }
    let fixture = if stop == Stop::None { fixture } else { fixture.restart(stop != Stop::Crash).await };
    if stop == Stop::During {
        // No key was used between the two restarts.
        fixture.clock.jump(seconds);
        return fixture.restart(false).await;
    }
    fixture
}

async fn fixture_with_rotated_key(grace: i64) -> (Fixture, Secret, Secret) {
    let fixture = Fixture::new().await;
    let (key, old) = fixture.key(fixture.first.project.id, &[]).await;
    let (_, new) = fixture.rotate(&key, grace).await.unwrap();
    (fixture, old, new)
}

const INVALID: Option<Code> = Some(Code::RevokedApiKey);

/// Checks that the old secret is invalid and stays so.
async fn assert_stays_invalid(fixture: Fixture, old: &Secret, new: &Secret, case: &str) {
    assert_eq!(fixture.code(old).await, INVALID, "{case}: the old secret is still valid");
    fixture.clock.jump(-YEAR);
    assert_eq!(fixture.code(old).await, INVALID, "{case}: the old secret is valid again after the clock was set back");
    let fixture = fixture.restart(false).await;
    assert_eq!(fixture.code(old).await, INVALID, "{case}: the old secret is valid again after a restart");
    assert_eq!(fixture.code(new).await, None, "{case}: the new secret stays valid");
}

/// Runs a case for every combination. The cases run on several threads, because they mostly wait for the disk.
fn for_all_combinations<A: Copy + Sync, B: Copy + Sync, C: Copy + Sync>(
    (a, b, c): (&[A], &[B], &[C]),
    case: impl AsyncFn(A, B, C) + Sync,
) {
    const THREADS: usize = 8;
    let combine = |number: usize| (a[number / b.len() / c.len()], b[number / c.len() % b.len()], c[number % c.len()]);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (case, combine) = (&case, &combine);
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                for number in (thread..a.len() * b.len() * c.len()).step_by(THREADS) {
                    let (a, b, c) = combine(number);
                    runtime.block_on(case(a, b, c));
                }
            });
        }
    });
}

#[test]
fn without_grace_the_old_secret_stays_invalid_when_the_clock_changes() {
    for_all_combinations((&[0], &JUMPS, &[Stop::None, Stop::During]), async |grace, seconds, stop| {
        let (fixture, old, new) = fixture_with_rotated_key(grace).await;
        let fixture = jump(fixture, seconds, stop).await;
        assert_stays_invalid(fixture, &old, &new, &format!("{seconds} s, {stop:?}")).await;
    });
}

#[test]
fn the_old_secret_expires_on_time_although_the_clock_jumps() {
    for_all_combinations((&GRACES, &JUMPS, &Stop::ALL), async |grace, seconds, stop| {
        let (full, half) = (Duration::from_secs(grace as u64), Duration::from_millis(grace as u64 * 500));
        let case = format!("grace {grace} s, {seconds} s, {stop:?}");
        let (fixture, old, new) = fixture_with_rotated_key(grace).await;
        fixture.clock.pass(half);
        assert_eq!(fixture.code(&old).await, None, "{case}");
        let fixture = jump(fixture, seconds, stop).await;
        // Setting the clock forward shortens the grace period. Setting it back never lengthens it. After a crash, the
        // clock may continue from the time of the rotation.
        let left = half.saturating_sub(Duration::from_secs(seconds.max(0) as u64));
        let latest = if stop == Stop::Crash && seconds < 0 { full } else { left };
        if let Some(last) = left.checked_sub(TICK) {
            fixture.clock.pass(last);
            assert_eq!(fixture.code(&old).await, None, "{case}: the old secret expired early");
            fixture.clock.pass(latest - last);
        }
        assert_stays_invalid(fixture, &old, &new, &case).await;
    });
}

#[test]
fn an_unused_old_secret_expires_too() {
    let stops = [Stop::None, Stop::After, Stop::During];
    for_all_combinations((&GRACES, &[-HOUR, -YEAR], &stops), async |grace, seconds, stop| {
        let (fixture, old, new) = fixture_with_rotated_key(grace).await;
        fixture.clock.pass(Duration::from_secs(grace as u64));
        let fixture = jump(fixture, seconds, stop).await;
        assert_stays_invalid(fixture, &old, &new, &format!("grace {grace} s, {seconds} s, {stop:?}")).await;
    });
}

#[test]
fn a_rotation_under_a_wrong_clock_has_exactly_its_grace_period() {
    for_all_combinations((&[60], &JUMPS, &[Stop::None, Stop::After]), async |grace, seconds, stop| {
        let (fixture, _, _) = fixture_with_rotated_key(HOUR).await;
        fixture.clock.jump(seconds);
        let (key, old) = fixture.key(fixture.first.project.id, &[]).await;
        let (_, new) = fixture.rotate(&key, grace).await.unwrap();
        let fixture = jump(fixture, -seconds, stop).await;
        let case = format!("{seconds} s, {stop:?}");
        fixture.clock.pass(Duration::from_secs(grace as u64) - TICK);
        assert_eq!(fixture.code(&old).await, None, "{case}: the old secret expired early");
        fixture.clock.pass(TICK);
        assert_stays_invalid(fixture, &old, &new, &case).await;
    });
}
