//! Partial sums of the shards into one sum per row, f32, always in the order they are added here.

/// The sums of one sparse layer; the buffer is reused from layer to layer.
#[derive(Debug, Default)]
pub struct Gather {
    sums: Vec<f32>,
    hidden: usize,
}

impl Gather {
    /// Begins a layer of `rows` rows: all sums are 0.
    pub fn start(&mut self, rows: usize, hidden: usize) {
        self.hidden = hidden;
        self.sums.clear();
        self.sums.resize(rows * hidden, 0.0);
    }

    /// Adds a shard's `partial` rows, `[sources, hidden]`, to the rows that `sources` names.
    pub fn add(&mut self, sources: &[u32], partial: &[f32]) {
        for (&source, row) in sources.iter().zip(partial.chunks_exact(self.hidden)) {
            let start = source as usize * self.hidden;
            for (sum, value) in self.sums[start..start + self.hidden].iter_mut().zip(row) {
                *sum += value;
            }
        }
    }

    /// `[rows, hidden]`.
    pub fn sums(&self) -> &[f32] {
        &self.sums
    }
}
