//! What decode should cost at the end of a link, predicted from the same workers without it:
//!
//! `step = trunk + layers · (bank + protocol + round trip)`
//!
//! - `trunk` is the step without a link, less `layers` exchanges of a sparse layer (which the shared expert is part of)
//! - `bank` is what the slowest shard's arithmetic took, `protocol` the rest of an exchange
//! - `round trip` is that of as many bytes of plain UDP through such a link, less the same on 127.0.0.1
//!
//! Every layer waits for one round trip: nothing is hidden behind compute, and nothing is lost. Links that lose
//! datagrams are slower than this by what recovery takes.

use serde::Serialize;

/// The parts, in microseconds, measured without the link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Model {
    /// All of a step but its sparse layers' exchanges.
    pub trunk_us: f64,
    /// Sparse layers.
    pub layers: usize,
    /// Arithmetic of one exchange.
    pub bank_us: f64,
    /// The rest of one exchange.
    pub protocol_us: f64,
    /// What the link adds to one exchange.
    pub round_trip_us: f64,
}

impl Model {
    /// From a step of `step_us` with `layers` exchanges of `exchange_us`, of which `bank_us` were arithmetic, and the
    /// plain round trips `through` a link and without.
    pub fn new(
        step_us: f64,
        layers: usize,
        exchange_us: f64,
        bank_us: f64,
        [through, direct]: [f64; 2],
    ) -> Self {
        Self {
            trunk_us: step_us - layers as f64 * exchange_us,
            layers,
            bank_us,
            protocol_us: exchange_us - bank_us,
            round_trip_us: through - direct,
        }
    }

    /// Microseconds of a decode step.
    pub fn step_us(&self) -> f64 {
        self.trunk_us + self.layers as f64 * (self.bank_us + self.protocol_us + self.round_trip_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layer_pays_one_round_trip() {
        let model = Model::new(10_000.0, 4, 1500.0, 1200.0, [350.0, 50.0]);
        assert_eq!((model.trunk_us, model.protocol_us, model.round_trip_us), (4000.0, 300.0, 300.0));
        assert_eq!(model.step_us(), 10_000.0 + 4.0 * 300.0);
        let near = Model::new(10_000.0, 4, 1500.0, 1200.0, [50.0, 50.0]);
        assert_eq!(near.step_us(), 10_000.0);
    }
}
