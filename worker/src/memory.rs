//! What this machine can hold, and refusing before it is asked for more.

use laguna_shared::compute::mlx;
use laguna_topology::Bytes;
use sysinfo::{MemoryRefreshKind, RefreshKind, System};
use tracing::{info, warn};

/// What a load needs is more than this machine has free.
#[derive(Debug, thiserror::Error)]
#[error(
    "{what} needs {needs}, but this machine has {available} of {total} available; \
     give it fewer experts, close other programs, or use another machine"
)]
pub struct TooLittleMemory {
    what: String,
    needs: Bytes,
    available: Bytes,
    total: Bytes,
}

/// Memory that programs can still take without swapping.
pub fn available() -> Bytes {
    Bytes(system().available_memory())
}

/// Refuses `needs` if it is more than what is available.
///
/// # Errors
/// [`TooLittleMemory`], with the numbers.
pub fn require(what: impl Into<String>, needs: Bytes) -> Result<(), TooLittleMemory> {
    let system = system();
    let (available, total) = (Bytes(system.available_memory()), Bytes(system.total_memory()));
    // A platform that does not tell reports 0.
    if needs > available && total.0 > 0 {
        return Err(TooLittleMemory { what: what.into(), needs, available, total });
    }
    Ok(())
}

/// Keeps what MLX has loaded at the GPU's hand; nothing happens where there is none. To be called on the thread that
/// loaded it.
pub fn wire_loaded() {
    match mlx::wired::wire_loaded() {
        Ok(Some(bytes)) => info!("MLX keeps {} wired", Bytes(bytes)),
        Ok(None) => {}
        Err(error) => warn!("MLX cannot keep the weights wired ({error}); calls after a pause may be slow"),
    }
}

fn system() -> System {
    let what = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    System::new_with_specifics(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_there_is_is_refused_in_numbers() {
        require("a little", Bytes(1)).unwrap();
        let error = require("shard 3", Bytes(1 << 60)).unwrap_err().to_string();
        let needs = Bytes(1 << 60).to_string();
        assert!(error.starts_with(&format!("shard 3 needs {needs}, but this machine has ")), "{error}");
        assert!(error.contains(" available; give it fewer experts"), "{error}");
    }
}
