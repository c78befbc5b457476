use outpost_common::device_choice::DeviceChoice;
use outpost_models::devices::{Selected, find, open, present, select};

use crate::choice;

#[test]
#[ignore = "needs a GPU"]
fn gpu_has_a_name_and_memory() {
    let selected = select(choice()).unwrap();
    println!("{}", selected.describe(1));
    let Selected::Gpu(gpu) = selected else { return };
    assert!(!gpu.name.is_empty());
    assert!(gpu.free_memory > 0 && gpu.free_memory <= gpu.total_memory, "{gpu:?}");
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_is_the_default() {
    let Selected::Gpu(gpu) = select(DeviceChoice::Auto).unwrap() else { panic!("auto is the CPU") };
    assert!(present().unwrap().contains(&gpu.choice));
    assert!(!open(DeviceChoice::Auto).unwrap().is_cpu());
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_that_is_absent_is_refused_with_the_number_of_cards() {
    let count = present().unwrap().len();
    let reason = find(DeviceChoice::Cuda(count)).unwrap_err();
    assert!(reason.contains(&format!("there is no cuda:{count}")), "{reason}");
    assert!(reason.contains(&format!("cuda:{}", count - 1)), "{reason}");
}
