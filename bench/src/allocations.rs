//! How often this process asks for memory: the system's allocator, with a counter before it.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// Two relaxed additions an allocation.
#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Allocations, grown ones included, of all threads since the process began.
pub fn count() -> u64 {
    let stats = COUNTED.stats();
    (stats.allocations + stats.reallocations) as u64
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn what_is_allocated_is_counted() {
        let before = count();
        for size in 1..=100 {
            black_box(vec![0_u8; size]);
        }
        assert!(count() >= before + 100);
    }
}
