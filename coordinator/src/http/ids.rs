//! Names for responses and calls: never the same twice, not even after a restart, because clients send old ones back.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A new id: `prefix`, this process's random number, a running number.
pub fn unique(prefix: &str) -> String {
    static PROCESS: LazyLock<u64> = LazyLock::new(rand::random);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{prefix}{:016x}{:08x}", *PROCESS, NEXT.fetch_add(1, Ordering::Relaxed))
}
