//! The flight recorder: where the time of a token goes, stage by stage and layer by layer.
//!
//! - [`recorder`]: spans as they end, on the engine thread; nothing but a branch while it is off
//! - [`summary`]: the stages' share of the time, and their percentiles
//! - [`chrome`]: the spans as a Chrome trace, for `--trace`
//!
//! MLX is lazy, so a stage would otherwise be paid for by whoever asks for its result: while the recorder is on, each
//! stage is evaluated where it ends. That costs some of the overlap that it shows.

pub mod chrome;
pub mod recorder;
pub mod summary;

pub use recorder::{Began, Call, Flight, Span, Stage};
