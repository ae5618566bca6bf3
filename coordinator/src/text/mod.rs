//! Text in, ids out, and back.
//!
//! - [`tokenizer`]: the checkpoint's own tokenizer; one BOS, never two
//! - [`detokenizer`]: ids to text as they come, whole characters only

pub mod detokenizer;
pub mod tokenizer;

pub use detokenizer::Detokenizer;
pub use tokenizer::{TextError, TextTokenizer};
