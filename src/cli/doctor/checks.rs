//! The checks, in the order in which they are printed.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::findings::Finding;
use super::machine::{self, SyncRate};
use crate::app::PREFIX_CACHE_FOLDER;
use crate::app::run_record::{self, Crash};
use crate::clock_rng::{ClockRng, Timestamp};
use crate::config::{ComputeArgs, DataPaths, DiskArgs};
use crate::control_socket;
use crate::disk_space::{DataClass, DiskLevel, DiskReserve, bytes_below, is_same_disk};
use crate::display::format_bytes;
use crate::engine::InstalledSettings;
use crate::models::backend::Isa;
use crate::models::devices;
use crate::system_memory::SystemMemory;

/// Less free space than this is reported. A full disk stops the store.
const LITTLE_SPACE: u64 = 5_000_000_000;
/// Below this rate of durable writes, requests wait noticeably for the disk.
const SLOW_SYNCS_PER_SECOND: f64 = 100.;
/// How long the disk is measured.
const SYNC_TIME: Duration = Duration::from_secs(1);
/// Files may be this much younger than the clock says, because file systems round times.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(2);
/// Any time before this one, 2025-01-01 in seconds since 1970, is wrong.
const EARLIEST_TIME: u64 = 1_735_689_600;
/// Crashes are reported for this long.
const RECENT: Duration = Duration::from_secs(7 * 86_400);
/// Files of the data folder that only its owner may read.
const SECRETS: [&str; 3] = ["pepper", "admin.key", "outpost.redb"];

/// Runs all checks. `no_device`: why a device that the server is to use cannot be used. `measures`: whether to measure, which
/// takes a second.
pub(super) fn all(
    paths: &DataPaths,
    listen: SocketAddr,
    (compute, disk_args): (&ComputeArgs, &DiskArgs),
    no_device: Option<&str>,
    clock_rng: &dyn ClockRng,
    measures: bool,
) -> Vec<Finding> {
    let data = existing(&paths.data);
    let mut findings = vec![
        cpu(compute.threads()),
        memory(SystemMemory::read(), compute.memory()),
        disk("disk", data, disk_args.min_free_disk),
    ];
    let models = existing(&paths.models);
    if !is_same_disk(data, models) {
        findings.push(disk("models disk", models, disk_args.min_free_disk));
    }
    if let Some(max_bytes) = disk_args.prefix_cache() {
        let reserve = DiskReserve::new(data, disk_args.min_free_disk);
        let used = bytes_below(&paths.data.join(PREFIX_CACHE_FOLDER));
        findings.push(prefix_cache(max_bytes, used, reserve.status().map(|status| status.room(DataClass::Bulk))));
    }
    findings.push(match (&paths.store.store, measures) {
        (Some(_), _) => Finding::skip("fsync", "the store is in a PostgreSQL database"),
        (None, false) => Finding::skip("fsync", "not measured"),
        (None, true) => syncs(machine::sync_rate(data, SYNC_TIME, clock_rng)),
    });
    findings.extend([
        match no_device {
            Some(reason) => Finding::fail("GPU", reason, "choose another device, or leave out the option"),
            None => gpus(devices::present()),
        },
        port(listen, TcpListener::bind(listen).map(drop), is_served(&paths.data)),
        files(&paths.data),
        models_folder(models),
        last_crash(run_record::last_crash(&paths.data), clock_rng.now()),
        model_settings(&paths.models),
        clock(now(clock_rng), last_write(&paths.data), machine::is_clock_synchronized()),
    ]);
    findings
}

/// The nearest folder above a path that exists.
fn existing(path: &Path) -> &Path {
    let exists = |folder: &&Path| !folder.as_os_str().is_empty() && folder.exists();
    path.ancestors().find(exists).unwrap_or(Path::new("."))
}

/// True if a server uses this data folder.
fn is_served(data: &Path) -> bool {
    control_socket::is_listening(data)
}

fn cpu(threads: usize) -> Finding {
    let used = Isa::detect();
    let others: Vec<_> = Isa::available().into_iter().filter(|isa| *isa != used).map(Isa::name).collect();
    let also = if others.is_empty() { String::new() } else { format!(" (also {})", others.join(", ")) };
    let found = format!("{}, {threads} threads; kernels: {}{also}", machine::cpu_name(), used.name());
    match used {
        Isa::Portable => Finding::warn(
            "CPU",
            found,
            "this CPU has no vector instructions that Outpost knows, so models are slow; a virtual machine may hide them",
        ),
        _ => Finding::ok("CPU", found),
    }
}

/// `for_models`: what models may use.
fn memory(memory: SystemMemory, for_models: u64) -> Finding {
    let limit = memory.limit.map_or_else(String::new, |limit| format!(", {} in this container", format_bytes(limit)));
    let found = format!(
        "{}{limit}; {} for models, {} available now",
        format_bytes(memory.machine),
        format_bytes(for_models),
        format_bytes(memory.available)
    );
    if for_models > memory.total() {
        return Finding::fail("memory", found, "models may use more than there is; lower --memory");
    }
    match memory.available < for_models {
        true => Finding::warn("memory", found, "end other programs, or lower --memory"),
        false => Finding::ok("memory", found),
    }
}

/// `min_free`: what the server is to keep free.
fn disk(check: &'static str, folder: &Path, min_free: Option<u64>) -> Finding {
    match DiskReserve::new(folder, min_free).status() {
        Ok(status) => {
            let [free, total, kept] = [status.space.free, status.space.total, status.min_free].map(format_bytes);
            let found = format!("{free} of {total} free in {}, {kept} kept back", folder.display());
            match status.level() {
                DiskLevel::Ample if status.space.free >= LITTLE_SPACE => Finding::ok(check, found),
                DiskLevel::Ample => {
                    Finding::warn(check, found, format!("have at least {} free", format_bytes(LITTLE_SPACE)))
                }
                DiskLevel::Low => {
                    let effect =
                        "uploads, pulls and generated images are refused; free space, or lower --min-free-disk";
                    Finding::fail(check, found, effect)
                }
                DiskLevel::Critical => {
                    let effect = "all content is refused; free space, or lower --min-free-disk";
                    Finding::fail(check, found, effect)
                }
            }
        }
        Err(cause) => Finding::fail(check, format!("{}: {cause}", folder.display()), "the folder must be readable"),
    }
}

/// `used`: what it has already. `room`: the bytes that may be written to the disk.
fn prefix_cache(max_bytes: u64, used: u64, room: io::Result<u64>) -> Finding {
    let check = "prefix cache";
    let [max, now] = [max_bytes, used].map(format_bytes);
    let found = format!("{now} of at most {max} on disk");
    match room {
        Ok(room) if used.saturating_add(room) < max_bytes => Finding::warn(
            check,
            format!("{found}, and there is space for {} more", format_bytes(room)),
            "free space, or lower --prefix-cache-disk; what does not fit is computed again",
        ),
        Ok(_) => Finding::ok(check, found),
        // The check of the disk reports it.
        Err(_) => Finding::skip(check, found),
    }
}

fn syncs(measured: io::Result<SyncRate>) -> Finding {
    match measured {
        Ok(SyncRate { per_second, p99 }) => {
            let found = format!("{per_second:.0} durable writes per second, p99 {:.1} ms", p99.as_secs_f64() * 1000.);
            match per_second < SLOW_SYNCS_PER_SECOND {
                true => Finding::warn("fsync", found, "put the data folder on a faster disk, such as an SSD"),
                false => Finding::ok("fsync", found),
            }
        }
        Err(cause) if cause.kind() == io::ErrorKind::PermissionDenied => {
            Finding::skip("fsync", "this user may not write to the data folder")
        }
        Err(cause) => Finding::fail("fsync", cause.to_string(), "the data folder must accept writes"),
    }
}

fn gpus(present: Result<Vec<crate::device_choice::DeviceChoice>, String>) -> Finding {
    let choices = match present {
        Ok(choices) if choices.is_empty() => return Finding::ok("GPU", "none; models run on the CPU"),
        Ok(choices) => choices,
        Err(reason) => return Finding::ok("GPU", format!("none; models run on the CPU: {reason}")),
    };
    let (mut usable, mut reasons) = (Vec::new(), Vec::new());
    for choice in choices {
        match devices::find(choice) {
            Ok(gpu) => usable.push(gpu.to_string()),
            Err(reason) => reasons.push(format!("{choice}: {reason}")),
        }
    }
    match reasons.is_empty() {
        true => Finding::ok("GPU", usable.join(", ")),
        false => Finding::warn("GPU", usable.join(", "), reasons.join("; ")),
    }
}

/// `bound`: whether the address could be used just now.
fn port(listen: SocketAddr, bound: io::Result<()>, is_served: bool) -> Finding {
    match bound {
        Ok(()) => Finding::ok("port", format!("{listen} is free")),
        Err(cause) if cause.kind() == io::ErrorKind::AddrInUse && is_served => {
            Finding::ok("port", format!("{listen} is in use, as is the data folder by a running server"))
        }
        Err(cause) if cause.kind() == io::ErrorKind::AddrInUse => Finding::fail(
            "port",
            format!("{listen} is in use by another program"),
            "end that program, or choose another address with --listen",
        ),
        Err(cause) => Finding::fail("port", format!("{listen}: {cause}"), "choose another address with --listen"),
    }
}

/// Owners and permissions of the data folder.
fn files(data: &Path) -> Finding {
    let folder = match fs::metadata(data) {
        Ok(folder) => folder,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            return Finding::ok("data", format!("{} does not exist yet; the server creates it", data.display()));
        }
        Err(cause) => return Finding::fail("data", format!("{}: {cause}", data.display()), "give the user access"),
    };
    let user = rustix::process::geteuid().as_raw();
    if folder.uid() != user {
        let found = format!("{} belongs to the user with the number {}", data.display(), folder.uid());
        return Finding::warn("data", found, "start the server, and outpost's other commands, as that user");
    }
    let is_private = |metadata: &fs::Metadata| metadata.mode() & 0o077 == 0;
    let open = SECRETS.iter().filter(|name| fs::metadata(data.join(name)).is_ok_and(|found| !is_private(&found)));
    let mut open: Vec<String> = open.map(|name| data.join(name).display().to_string()).collect();
    if !is_private(&folder) {
        open.insert(0, data.display().to_string());
    }
    if open.is_empty() {
        return Finding::ok("data", format!("{}, only for this user", data.display()));
    }
    let remedy = format!("take the access away: chmod go= {}", open.join(" "));
    Finding::fail("data", format!("other users may read {}", open.join(" and ")), remedy)
}

/// `crash`: the last one of a server with this data folder.
fn last_crash(crash: Option<Crash>, now: Timestamp) -> Finding {
    match crash {
        None => Finding::ok("last crash", "none"),
        Some(crash) if crash.found.until(now) < RECENT => Finding::warn(
            "last crash",
            crash.to_string(),
            "read the server's log of that time; keep it for a bug report",
        ),
        Some(crash) => Finding::ok("last crash", crash.to_string()),
    }
}

fn models_folder(models: &Path) -> Finding {
    match rustix::fs::access(models, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK) {
        Ok(()) => Finding::ok("models", format!("{} can be written", models.display())),
        Err(_) => Finding::warn(
            "models",
            format!("{} cannot be written by this user", models.display()),
            "models can be used but not installed; run `outpost models pull` as the owner",
        ),
    }
}

/// The settings of models, whose errors the server only logs.
fn model_settings(models: &Path) -> Finding {
    let settings = InstalledSettings::read(models);
    let (aliases, pinned) = (settings.aliases().count(), settings.pinned().count());
    match settings.problems() {
        [] => Finding::ok("settings", format!("aliases: {aliases}, pinned models: {pinned}")),
        [problem, ..] => Finding::warn(
            "settings",
            problem,
            "repair the file; a running server keeps its last good settings, and one that starts ignores the file",
        ),
    }
}

fn now(clock_rng: &dyn ClockRng) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(clock_rng.now().as_millis()).unwrap_or_default())
}

/// When the store was last written.
fn last_write(data: &Path) -> Option<SystemTime> {
    fs::metadata(data.join("outpost.redb")).and_then(|found| found.modified()).ok()
}

fn clock(now: SystemTime, last_write: Option<SystemTime>, is_synchronized: Option<bool>) -> Finding {
    let remedy = "set the clock, for example with systemd-timesyncd or chrony; keys expire by it";
    let is_early = now.duration_since(SystemTime::UNIX_EPOCH).is_ok_and(|since| since.as_secs() < EARLIEST_TIME);
    if is_early {
        return Finding::fail("clock", "the time is before 2025", remedy);
    }
    if last_write.is_some_and(|last| last > now + CLOCK_TOLERANCE) {
        return Finding::fail("clock", "the clock is behind the last write of the store", remedy);
    }
    match is_synchronized {
        Some(true) => Finding::ok("clock", "synchronized"),
        Some(false) => Finding::warn("clock", "not synchronized yet", remedy),
        None => Finding::ok("clock", "plausible; whether it is synchronized is not known"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::io;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::{Duration, SystemTime};

    use super::super::findings::{Finding, Status};
    use super::super::machine::SyncRate;
    use crate::system_memory::SystemMemory;

    fn text(finding: &Finding) -> String {
        format!("{}: {}", finding.found, finding.remedy.as_deref().unwrap_or_default())
    }

    #[test]
    fn models_may_use_what_there_is() {
        let memory = SystemMemory { machine: 24_000_000_000, limit: Some(8_000_000_000), available: 5_000_000_000 };
        let status = |for_models| super::memory(memory, for_models).status;
        assert_eq!(status(4_000_000_000), Status::Ok);
        assert_eq!(status(6_000_000_000), Status::Warn);
        assert_eq!(status(9_000_000_000), Status::Fail, "the container has less");
        let unlimited = SystemMemory { limit: None, ..memory };
        assert_eq!(super::memory(unlimited, 9_000_000_000).status, Status::Warn);
    }

    #[test]
    fn a_prefix_cache_that_does_not_fit_the_disk_is_reported() {
        let found = |used, room| super::prefix_cache(20_000_000_000, used, room);
        assert_eq!(found(0, Ok(20_000_000_000)).status, Status::Ok);
        assert_eq!(found(15_000_000_000, Ok(5_000_000_000)).status, Status::Ok, "what it has is counted");
        let full = found(5_000_000_000, Ok(1_000_000_000));
        assert!(full.status == Status::Warn && text(&full).contains("--prefix-cache-disk"), "{full:?}");
        assert_eq!(found(0, Err(io::ErrorKind::NotFound.into())).status, Status::Skip);
    }

    #[test]
    fn a_slow_disk_is_reported_and_one_that_fails_too() {
        let rate = |per_second| Ok(SyncRate { per_second, p99: Duration::from_millis(3) });
        assert_eq!(super::syncs(rate(99.)).status, Status::Warn);
        assert_eq!(super::syncs(rate(101.)).found, "101 durable writes per second, p99 3.0 ms");
        assert_eq!(super::syncs(Err(io::ErrorKind::ReadOnlyFilesystem.into())).status, Status::Fail);
        assert_eq!(super::syncs(Err(io::ErrorKind::PermissionDenied.into())).status, Status::Skip);
    }

    #[test]
    fn a_port_in_use_is_fine_only_if_it_is_this_servers() {
        let listen = "127.0.0.1:8080".parse().unwrap();
        let used = || Err(io::ErrorKind::AddrInUse.into());
        assert_eq!(super::port(listen, Ok(()), false).status, Status::Ok);
        assert_eq!(super::port(listen, used(), true).status, Status::Ok);
        let other = super::port(listen, used(), false);
        assert!(other.status == Status::Fail && text(&other).contains("--listen"), "{other:?}");
    }

    #[test]
    fn secrets_that_others_may_read_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        assert_eq!(super::files(&data).status, Status::Ok, "it does not exist yet");
        std::fs::create_dir(&data).unwrap();
        let mode = |path: &std::path::Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        mode(&data, 0o700);
        let pepper = data.join("pepper");
        std::fs::write(&pepper, "secret").unwrap();
        mode(&pepper, 0o600);
        assert_eq!(super::files(&data).status, Status::Ok);
        mode(&pepper, 0o640);
        let open = super::files(&data);
        assert_eq!(open.status, Status::Fail);
        assert!(open.remedy.as_ref().unwrap().ends_with(&format!("chmod go= {}", pepper.display())), "{open:?}");
        mode(&data, 0o755);
        assert!(text(&super::files(&data)).contains(&format!("read {} and", data.display())));
    }

    #[test]
    fn a_clock_that_runs_behind_is_found() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let status = |last, synchronized| super::clock(now, last, synchronized).status;
        assert_eq!(status(None, None), Status::Ok);
        assert_eq!(status(Some(now + Duration::from_secs(1)), Some(true)), Status::Ok);
        assert_eq!(status(Some(now), Some(false)), Status::Warn);
        assert_eq!(status(Some(now + Duration::from_secs(60)), Some(true)), Status::Fail);
        assert_eq!(super::clock(SystemTime::UNIX_EPOCH, None, Some(true)).status, Status::Fail);
    }
}
