//! The flight recorder: what it costs while it is off, and while it is on.
//!
//! - [`measure`]: its calls by themselves, and whole runs with and without it
//!
//! `laguna-bench recorder`, built with `--release`. `off: share` is what its calls take of a decode step while it is off:
//! nanoseconds of each kind of call, by a loop around it, times how often a recorded step makes it, over the step. Below
//! 1 % is the aim; some thousandths of a percent are usual, as a stage is a branch. `on/off` is how much longer a step
//! takes while it is on: stages are then evaluated one by one, and clocks are read. It is a ratio of whole runs, so what
//! else the machine does moves it by more than a few percent.

pub mod measure;
