//! Code that the crates share: the clock, free space of disks, names and texts. It depends on none of them.

pub mod clock_rng;
pub mod device_choice;
pub mod disk_space;
pub mod display;
pub mod file_lock;
pub mod ip_network;
pub mod new_folder;
pub mod process_limits;
pub mod progress;
pub mod spelling;
pub mod tls_roots;
pub mod toml_text;
