//! A parrot on a port, for real clients: `cargo test -p laguna-coordinator --lib http::tests::server -- --ignored`.

use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

use super::rig::{Rig, ids};
use crate::engine::handle::Status;
use crate::http::testing::{Line, limits};

/// Serves on LAGUNA_PARROT (an address) until killed. It says what stands behind the last `SAY ` of the prompt's last
/// user message; `{` and `}` in it stand for `<` and `>`, `WAIT` for three seconds.
#[tokio::test]
#[ignore = "a server for clients outside of this process"]
async fn serve_a_parrot() {
    let Ok(address) = std::env::var("LAGUNA_PARROT") else { return };
    let tokenizer = super::rig::state(|_| {}).text.tokenizer;
    let rig = Rig::with(
        |options| options.keep_alive.every = Duration::from_secs(1),
        limits(2048, 8),
        Status::default(),
        move |submission| {
            let prompt = tokenizer.decode(&submission.prompt).unwrap();
            let turn = prompt.rsplit_once("<user>").map_or("", |(_, turn)| turn);
            let said = turn.split_once("</user>").map_or("", |(said, _)| said);
            let said = said.rsplit_once("SAY ").map_or("nothing", |(_, said)| said);
            let said = said.replace('{', "<").replace('}', ">");
            let mut lines = vec![Line::Prefill { processed: submission.prompt.len(), cached: 3 }];
            for (index, piece) in said.split("WAIT").enumerate() {
                if index > 0 {
                    lines.push(Line::Wait(Duration::from_secs(3)));
                }
                lines.push(Line::Say(ids(piece)));
            }
            lines
        },
    );
    let listener = TcpListener::bind(address).await.unwrap();
    let (_stop, stopped) = watch::channel(false);
    crate::http::serve(vec![listener], rig.app, stopped).await.unwrap();
}
