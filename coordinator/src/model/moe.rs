//! A sparse layer: router, routed experts on their shards, shared expert, one sum.
//!
//! Order matters for speed: the rows leave for the remote shards before the local shard and the shared expert start.

use laguna_shared::compute::ActivationType;
use laguna_shared::compute::mlx::array::{append_bytes, append_f32};
use laguna_shared::ids::LayerId;
use mlx_rs::{Array, Dtype, transforms};

use super::ForwardError;
use super::dense::Swiglu;
use super::router::{Choices, Router};
use super::trace::{LayerRouting, RoutingTrace};
use crate::experts::{Experts, RoutedRows, Staging};
use crate::flight::Stage;

/// A sparse layer's part of the trunk.
#[derive(Debug)]
pub struct SparseMlp {
    pub(super) layer: LayerId,
    pub(super) router: Router,
    /// `None` where the config gives it no width.
    pub(super) shared_expert: Option<Swiglu>,
    /// `moe_routed_scaling_factor`.
    pub(super) routed_scaling: f32,
    pub(super) activation: ActivationType,
}

impl SparseMlp {
    /// `x` `[rows, hidden]`, normed → `[rows, hidden]`.
    pub(super) fn forward(
        &self,
        x: &Array,
        experts: &mut Experts,
        trace: Option<&mut RoutingTrace>,
    ) -> Result<Array, ForwardError> {
        let (height, hidden) = (x.dim(0), x.dim(1));
        let began = experts.flight.begin();
        let logits = self.router.logits(x)?;
        let x = x.contiguous()?;
        // The one evaluation before dispatch: what leaves the machine, and what decides where to.
        transforms::eval([&logits, &x])?;

        let Staging { logits: mut host, mut choices, rows: mut bytes } = experts.take_staging();
        append_f32(&logits, &mut host)?;
        self.router.rules.choose_into(&host, &mut choices);
        append_bytes(&x, &mut bytes)?;
        let routed = RoutedRows {
            layer: self.layer,
            activation: self.activation,
            hidden: hidden as usize,
            top_k: self.router.rules.top_k,
            choices,
            rows: bytes,
        };
        experts.flight.end(began, Stage::Router);

        let dispatch = experts.dispatch(&routed)?;
        let shared = self.shared_expert.as_ref().map(|e| e.forward(&x)).transpose()?;
        if let Some(shared) = &shared {
            transforms::async_eval([shared])?;
        }
        let sum = experts.collect(dispatch, &routed)?;
        let sum = Array::from_slice(sum, &[height, hidden]).multiply(Array::from_f32(self.routed_scaling))?;
        let y = match shared {
            Some(shared) => sum.add(shared.as_dtype(Dtype::Float32)?)?,
            None => sum,
        };
        let RoutedRows { choices, rows, .. } = routed;
        if let Some(trace) = trace {
            let Choices { experts, weights } = choices.clone();
            trace.layers.push(LayerRouting { layer: self.layer, experts, weights });
        }
        experts.keep_staging(Staging { logits: host, choices, rows });
        Ok(y.as_dtype(laguna_shared::compute::mlx::array::activation_dtype(self.activation))?)
    }
}
