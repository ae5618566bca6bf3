//! What the router chose, for checks against reference outputs.

use laguna_shared::ids::{ExpertId, LayerId};

/// Routing of every sparse layer, in the order the passes ran.
#[derive(Debug, Default)]
pub struct RoutingTrace {
    /// One entry per sparse layer of each pass, or of each micro-batch in it.
    pub layers: Vec<LayerRouting>,
}

/// One sparse layer's choices.
#[derive(Debug)]
pub struct LayerRouting {
    /// Decoder layer.
    pub layer: LayerId,
    /// `[rows, k]`, ascending within a row.
    pub experts: Vec<ExpertId>,
    /// `[rows, k]`, before `moe_routed_scaling_factor`.
    pub weights: Vec<f32>,
}
