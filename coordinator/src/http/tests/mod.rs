//! The API over its router and over real sockets, with a parrot for an engine. `../README.md` maps reports to tests.
//!
//! - [`rig`]: a server with a parrot, and a client that keeps every byte
//! - `stream`, `whole`: chat completions; `calls`: tools; `forms`: answers of a form that is asked for; `refusals`: what is turned away; `access`: who is let in
//! - `prompts`: what reaches the model; `messages`, `responses`, `completions`: the other dialects
//! - `life`: cancels, silence, draining; `looks`: the page, `/health`, `/cluster`, names of requests

mod access;
mod calls;
mod completions;
mod forms;
mod life;
mod looks;
mod messages;
mod prompts;
mod refusals;
mod responses;
pub(crate) mod rig;
mod stream;
