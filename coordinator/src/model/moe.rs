//! A sparse layer: router, routed experts on their shards, shared expert, one sum.
//!
//! Order matters for speed: the rows leave for the remote shards before the local shard, the shared expert, and the next
//! micro-batch of a prompt start.

use laguna_shared::compute::ActivationType;
use laguna_shared::compute::mlx::array::{activation_dtype, append_bytes, append_f32};
use laguna_shared::ids::LayerId;
use mlx_rs::{Array, transforms};

use super::ForwardError;
use super::dense::Swiglu;
use super::pointwise;
use super::router::{Choices, Router};
use super::trace::{LayerRouting, RoutingTrace};
use crate::experts::{Dispatch, Experts, RoutedRows, Staging};
use crate::flight::{Began, Stage};

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

/// A sparse layer between dispatch and sum.
#[derive(Debug)]
pub(super) struct InFlight {
    dispatch: Dispatch,
    routed: RoutedRows,
    /// Router logits: memory to give back.
    host: Vec<f32>,
    shared: Option<Array>,
    rows: i32,
}

impl SparseMlp {
    /// Routes `x` `[rows, hidden]`, normed since `began`, and sends it on its way.
    pub(super) fn dispatch(
        &self,
        x: &Array,
        experts: &mut Experts,
        trace: Option<&mut RoutingTrace>,
        began: Began,
    ) -> Result<InFlight, ForwardError> {
        let logits = self.router.logits(x)?;
        // The one evaluation before dispatch: what leaves the machine, and what decides where to.
        transforms::eval([&logits, x])?;

        let Staging { logits: mut host, mut choices, rows: mut bytes } = experts.take_staging();
        append_f32(&logits, &mut host)?;
        self.router.rules.choose_into(&host, &mut choices);
        append_bytes(x, &mut bytes)?;
        if let Some(trace) = trace {
            let Choices { experts, weights } = choices.clone();
            trace.layers.push(LayerRouting { layer: self.layer, experts, weights });
        }
        let routed = RoutedRows {
            layer: self.layer,
            activation: self.activation,
            hidden: x.dim(1) as usize,
            top_k: self.router.rules.top_k,
            choices,
            rows: bytes,
        };
        experts.flight.end(began, Stage::Router);

        let dispatch = experts.dispatch(&routed)?;
        let began = experts.flight.begin();
        let shared = self.shared_expert.as_ref().map(|e| e.forward(x)).transpose()?;
        if let Some(shared) = &shared {
            transforms::async_eval([shared])?;
        }
        experts.flight.end(began, Stage::Shared);
        Ok(InFlight { dispatch, routed, host, shared, rows: x.dim(0) })
    }

    /// Waits for the experts' sums; `[rows, hidden]`.
    pub(super) fn collect(&self, sent: InFlight, experts: &mut Experts) -> Result<Array, ForwardError> {
        let InFlight { dispatch, routed, host, shared, rows } = sent;
        let sum = experts.collect(dispatch, &routed)?;
        let shape = [rows, routed.hidden as i32];
        let math = self.router.linear.math();
        let y = pointwise::scale_and_add(&math, sum, self.routed_scaling, shared.as_ref(), &shape)?;
        let RoutedRows { choices, rows, .. } = routed;
        experts.keep_staging(Staging { logits: host, choices, rows });
        Ok(y.as_dtype(activation_dtype(self.activation))?)
    }
}
