//! How far ahead of their use the kernels for few rows ask memory for weights.
//!
//! Kernels go through a few rows at once, a block, and each row asks for what lies a whole number of blocks on: the same
//! place of a row to come. So every line is asked for once, however long the rows are. (With a fixed distance, rows that
//! are longer than it asked for their neighbours, which are read at that very moment: 11 instead of 20 GB/s.)

/// Bytes from what is read to what is asked for, for blocks of rows of `block` bytes.
pub(super) const fn ahead(block: usize) -> usize {
    if block > FARTHEST { LEAST / 4 } else { block * LEAST.div_ceil(if block == 0 { 1 } else { block }) }
}

/// Bytes that arrive while memory answers once.
const LEAST: usize = 12 << 10;

/// Bytes that a second-level cache keeps besides what else it holds. Rows so long ask for their own next bytes, and go
/// without at their ends.
const FARTHEST: usize = 128 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_blocks_but_for_the_longest_rows() {
        for (block, expected) in [
            (1 << 10, 12 << 10),
            (4 << 10, 12 << 10),
            (5000, 15_000),
            (6 << 10, 12 << 10),
            (8 << 10, 16 << 10),
            (16 << 10, 16 << 10),
            (128 << 10, 128 << 10),
            (256 << 10, 3 << 10),
            (0, 0),
        ] {
            assert_eq!(ahead(block), expected, "{block}");
        }
    }
}
