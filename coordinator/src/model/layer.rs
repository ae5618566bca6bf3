//! One decoder layer: `x + attention(norm x)`, then `x + mlp(norm x)`.

use laguna_shared::ids::LayerId;
use mlx_rs::Array;

use super::attention::Attention;
use super::dense::Swiglu;
use super::micro_batch::Piece;
use super::moe::{InFlight, SparseMlp};
use super::norm::RmsNorm;
use super::pointwise;
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

/// A layer that was begun.
#[derive(Debug)]
pub(super) enum Begun {
    /// Nothing is left to do: the residual stream, `[rows, hidden]`.
    Whole(Array),
    /// Its experts are at work: the residual stream without them.
    AtExperts(Array, Box<InFlight>),
}

impl Layer {
    /// All of it, or as far as the dispatch of a sparse layer.
    pub(super) fn begin(
        &self,
        index: usize,
        x: Array,
        pieces: &[Piece],
        segments: &mut [Segment<'_>],
        experts: &mut Experts,
        trace: Option<&mut RoutingTrace>,
    ) -> Result<Begun, ForwardError> {
        experts.flight.enter(Some(LayerId(index as u16)), x.dim(0) as usize);
        let began = experts.flight.begin();
        let attended = self.attention.forward(index, &self.input_norm.forward(&x)?, pieces, segments)?;
        let math = self.attention.q.math();
        let x = pointwise::add(&math, &x, &attended)?;
        experts.flight.end_with(began, Stage::Attention, &x)?;

        let began = experts.flight.begin();
        let normed = self.post_attention_norm.forward(&x)?;
        match &self.mlp {
            Mlp::Dense(swiglu) => {
                let x = pointwise::add(&math, &x, &swiglu.forward(&normed)?)?;
                experts.flight.end_with(began, Stage::Dense, &x)?;
                Ok(Begun::Whole(x))
            }
            Mlp::Sparse(sparse) => {
                Ok(Begun::AtExperts(x, Box::new(sparse.dispatch(&normed, experts, trace, began)?)))
            }
        }
    }

    /// The residual stream with what the experts have to add.
    pub(super) fn finish(
        &self,
        index: usize,
        begun: Begun,
        experts: &mut Experts,
    ) -> Result<Array, ForwardError> {
        match (begun, &self.mlp) {
            (Begun::AtExperts(x, sent), Mlp::Sparse(sparse)) => {
                experts.flight.enter(Some(LayerId(index as u16)), x.dim(0) as usize);
                let y = sparse.collect(*sent, experts)?;
                // What came before has stages of its own.
                let began = experts.flight.begin();
                let x = pointwise::add(&self.attention.q.math(), &x, &y)?;
                experts.flight.end_with(began, Stage::Shared, &x)?;
                Ok(x)
            }
            (Begun::Whole(x) | Begun::AtExperts(x, _), _) => Ok(x),
        }
    }
}
