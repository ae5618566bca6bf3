//! One decoder layer: `x + attention(norm x)`, then `x + mlp(norm x)`.

use laguna_shared::ids::LayerId;
use mlx_rs::Array;

use super::attention::Attention;
use super::dense::Swiglu;
use super::moe::SparseMlp;
use super::norm::RmsNorm;
use super::trace::RoutingTrace;
use super::{ForwardError, Segment};
use crate::experts::Experts;
use crate::flight::Stage;

/// A decoder layer's parts.
#[derive(Debug)]
pub struct Layer {
    pub(super) input_norm: RmsNorm,
    pub(super) attention: Attention,
    pub(super) post_attention_norm: RmsNorm,
    pub(super) mlp: Mlp,
}

/// What follows attention.
#[derive(Debug)]
pub enum Mlp {
    /// One SwiGLU.
    Dense(Swiglu),
    /// Router, routed experts, shared expert.
    Sparse(Box<SparseMlp>),
}

impl Layer {
    pub(super) fn forward(
        &self,
        index: usize,
        x: Array,
        segments: &mut [Segment<'_>],
        experts: &mut Experts,
        trace: Option<&mut RoutingTrace>,
    ) -> Result<Array, ForwardError> {
        experts.flight.enter(Some(LayerId(index as u16)), x.dim(0) as usize);
        let began = experts.flight.begin();
        let attended = self.attention.forward(index, &self.input_norm.forward(&x)?, segments)?;
        let x = x.add(attended)?;
        experts.flight.end_with(began, Stage::Attention, &x)?;

        let mut began = experts.flight.begin();
        let normed = self.post_attention_norm.forward(&x)?;
        let (y, stage) = match &self.mlp {
            Mlp::Dense(swiglu) => (swiglu.forward(&normed)?, Stage::Dense),
            Mlp::Sparse(sparse) => {
                let y = sparse.forward(&normed, experts, trace)?;
                // What came before has stages of its own.
                began = experts.flight.begin();
                (y, Stage::Shared)
            }
        };
        let x = x.add(y)?;
        experts.flight.end_with(began, stage, &x)?;
        Ok(x)
    }
}
