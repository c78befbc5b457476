//! The GPU of a Mac.

use candle_metal_kernels::metal::Device;

use super::gpu::Gpu;
use outpost_common::device_choice::DeviceChoice;

/// The name and the memory of the first GPU. CPU and GPU share the memory: what is free is what the system recommends to
/// use at most, less what this process uses.
///
/// # Errors
/// If Metal finds no GPU.
pub fn find() -> Result<Gpu, String> {
    let found = Device::all().into_iter().next();
    let device = found.ok_or("Metal finds no GPU; a virtual machine has none")?;
    let total = device.recommended_max_working_set_size() as u64;
    let free = total.saturating_sub(device.current_allocated_size() as u64);
    Ok(Gpu { choice: DeviceChoice::Metal, name: device.architecture_name(), total_memory: total, free_memory: free })
}
