//! stub
use super::{args::*, failure::Failure};
pub fn run(_: &Args, _: &KeygenArgs) -> Result<(), Failure> { Err(Failure::usage("stub")) }
