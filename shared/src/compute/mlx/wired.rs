//! Loaded weights that stay where the GPU can use them at once.
//!
//! Metal may let go of buffers that were not used for a while, as those of rarely chosen experts are not, and the next
//! call that needs them waits until they are back. What is wired stays.

use mlx_rs::error::Exception;
use mlx_rs::memory;

use super::ffi;

/// Wires as much memory as MLX holds now, or as the driver recommends if that is less; returns how much. `None` where
/// there is no GPU to wire it for. Called once everything is loaded.
///
/// # Errors
/// If MLX cannot: macOS before 15 has no such thing.
pub fn wire_loaded() -> Result<Option<u64>, Exception> {
    let loaded = memory::active_memory()?;
    let Some(most) = ffi::recommended_working_set() else { return Ok(None) };
    let limit = loaded.min(most);
    memory::set_wired_limit(limit)?;
    Ok(Some(limit as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_gpu_nothing_is_wired_and_nothing_fails() {
        let wired = wire_loaded().unwrap();
        assert!(wired.is_none() || cfg!(target_os = "macos"), "{wired:?}");
    }
}
