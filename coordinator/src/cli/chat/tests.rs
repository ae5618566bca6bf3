//! The chat's engine against a parrot behind the real API, over a socket.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::client::Client;
use super::session::Session;
use super::voice::Voice;
use super::{Outcome, answer, ready};
use crate::engine::handle::Status;
use crate::engine::request::EngineError;
use crate::http::auth::Keys;
use crate::http::state::Loading;
use crate::http::testing::{Line, limits, parrot};
use crate::http::tests::rig::{Rig, ids, state, wait_for};

const SILENT: Voice = Voice { guarded: false, seen: false, color: false };

/// A client of `app`, served on a free port.
async fn client(app: crate::http::state::SharedApp, key: Option<&str>) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (_stop, stopped) = watch::channel(false);
        crate::http::serve(vec![listener], app, stopped).await.unwrap();
    });
    Client::new(&address.to_string(), key).unwrap()
}

fn session() -> Session {
    let mut session = Session { model: "m".to_owned(), ..Session::default() };
    session.ask("hi");
    session
}

#[tokio::test]
async fn answers_are_kept_with_their_reasoning() {
    let rig = Rig::saying("hm</think>yes");
    let client = client(rig.app.clone(), None).await;
    let mut session = session();
    session.thinking = Some(crate::cli::serve::Switch::On);
    let outcome = answer(&client, SILENT, &mut session, std::future::pending()).await.unwrap();
    assert_eq!(outcome, Outcome::Whole);
    let said = json!({"role": "assistant", "content": "yes", "reasoning_content": "hm"});
    assert_eq!(session.request()["messages"][1], said);
}

#[tokio::test]
async fn stopping_ends_the_request_on_the_server_and_keeps_what_was_said() {
    let rig = Rig::new(|_| vec![Line::Say(ids("</think>half")), Line::Wait(Duration::from_secs(60))]);
    let client = client(rig.app.clone(), None).await;
    let (mut session, seen) = (session(), rig.seen.clone());
    let stop = async {
        wait_for(|| seen.prompts.lock().unwrap().len() == 1).await;
        // The text is on its way: a moment for it to arrive, and none of the test's claims if it does not.
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let outcome = answer(&client, SILENT, &mut session, stop).await.unwrap();
    assert_eq!(outcome, Outcome::Stopped);
    wait_for(|| rig.seen.cancelled.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test]
async fn failures_are_told_in_the_servers_words_and_say_what_to_do() {
    let lost = || vec![Line::Fail(EngineError::WorkerLost("shard 1 (a:1): gone".to_owned()))];
    let rig = Rig::new(move |_| lost());
    let talk = client(rig.app.clone(), None).await;
    let error = answer(&talk, SILENT, &mut session(), std::future::pending()).await.unwrap_err();
    assert_eq!(error.to_string(), "shard 1 (a:1): gone");

    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let nobody = Client::new(&nobody.to_string(), None).unwrap();
    let error = ready(&nobody, SILENT).await.unwrap_err().to_string();
    for part in ["nothing answers at http://127.0.0.1:", "laguna-coord --loopback --model DIR", "--url"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[tokio::test]
async fn keys_are_sent_and_their_lack_is_known_before_the_first_message() {
    let change = |options: &mut crate::http::state::Options| options.keys = Keys::new(["sesame"]);
    let rig = Rig::with(change, limits(2048, 8), Status::default(), |_| vec![Line::Say(ids("</think>a"))]);
    assert!(ready(&client(rig.app.clone(), Some("sesame")).await, SILENT).await.is_ok());
    for (key, words) in [(None, "asks for an API key"), (Some("wrong"), "key is wrong")] {
        let error = ready(&client(rig.app.clone(), key).await, SILENT).await.unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("LAGUNA_API_KEY"), "{error}");
    }
}

#[tokio::test]
async fn a_loading_server_is_waited_for() {
    let app = std::sync::Arc::new(state(|_| {}));
    app.set_loading(Loading { progress: Some(0.5), what: "trunk".to_owned() });
    let client = client(app.clone(), None).await;
    let (status, body) = client.get("/health").await.unwrap();
    assert_eq!((status.as_u16(), &body["progress"], &body["loading"]), (503, &json!(0.5), &json!("trunk")));
    assert_eq!(body["error"]["message"], "the model is loading (50 %): trunk");
    let waiting = ready(&client, SILENT);
    let loaded = async {
        tokio::task::yield_now().await;
        app.ready(parrot(limits(2048, 8), Status::default(), |_| Vec::new()).0);
    };
    let (ready, ()) = tokio::join!(waiting, loaded);
    assert_eq!(ready.unwrap()["model"], "laguna-nano");
}
