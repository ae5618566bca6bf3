//! Time: silence, cancels, the end. Over real sockets, because that is where clients hang up.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::rig::{Rig, asking, ids, wait_for};
use crate::engine::handle::Status;
use crate::http::state::KeepAliveStyle;
use crate::http::testing::{Line, limits};

/// A rig on a socket of both loopback addresses.
struct Served {
    rig: Rig,
    address: SocketAddr,
    stop: watch::Sender<bool>,
    server: tokio::task::JoinHandle<std::io::Result<()>>,
}

async fn serve(rig: Rig) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = watch::channel(false);
    let server = tokio::spawn(crate::http::serve(vec![listener], rig.app.clone(), stopped));
    Served { rig, address, stop, server }
}

impl Served {
    async fn post(&self, path: &str, body: Value) -> TcpStream {
        let body = body.to_string();
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).await.unwrap();
        stream
    }

    fn over(&self) -> usize {
        self.rig.seen.over.load(Ordering::SeqCst)
    }

    fn cancelled(&self) -> usize {
        self.rig.seen.cancelled.load(Ordering::SeqCst)
    }
}

/// Reads until `text` has come.
async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut all = String::new();
    let mut buffer = [0; 4096];
    let reading = async {
        while !all.contains(text) {
            let count = stream.read(&mut buffer).await.unwrap();
            assert!(count > 0, "closed before {text:?}: {all}");
            all.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reading).await.expect("in time");
    all
}

fn slow() -> Rig {
    Rig::with(
        |options| options.keep_alive.every = Duration::from_millis(20),
        limits(2048, 8),
        Status::default(),
        |_| vec![Line::Wait(Duration::from_secs(60)), Line::Say(ids("late"))],
    )
}

#[tokio::test]
async fn report_16_headers_and_signs_of_life_come_before_the_first_token() {
    let served = serve(slow()).await;
    let mut stream = served.post("/v1/chat/completions", asking(json!({"stream": true}))).await;
    let text = read_until(&mut stream, ": keep-alive\n\n").await;
    assert!(text.starts_with("HTTP/1.1 200 OK"));
    assert!(text.contains(r#""delta":{"role":"assistant","content":""}"#));
}

#[tokio::test]
async fn report_17_signs_of_life_can_be_events() {
    let rig = Rig::with(
        |options| {
            options.keep_alive.every = Duration::from_millis(20);
            options.keep_alive.style = KeepAliveStyle::Chunk;
        },
        limits(2048, 8),
        Status::default(),
        |_| vec![Line::Wait(Duration::from_secs(60))],
    );
    let served = serve(rig).await;
    let mut stream = served.post("/v1/chat/completions", asking(json!({"stream": true}))).await;
    let text = read_until(&mut stream, r#""delta":{},"#).await;
    assert!(!text.contains(": keep-alive"));
    let body = json!({"stream": true, "max_tokens": 9});
    let mut stream = served.post("/v1/messages", asking(body)).await;
    read_until(&mut stream, "event: ping\ndata: {\"type\":\"ping\"}\n\n").await;
    let mut stream = served.post("/v1/responses", json!({"input": "hi", "stream": true})).await;
    read_until(&mut stream, "\"type\":\"response.in_progress\",\"sequence_number\":2").await;
}

#[tokio::test]
async fn report_45_hanging_up_ends_the_request() {
    let served = serve(slow()).await;
    let paths = ["/v1/chat/completions", "/v1/messages"];
    for (count, (path, stream)) in paths.iter().flat_map(|path| [(path, true), (path, false)]).enumerate() {
        let mut socket = served.post(path, asking(json!({"stream": stream, "max_tokens": 9}))).await;
        if stream {
            read_until(&mut socket, "200 OK").await;
        } else {
            wait_for(|| served.rig.seen.prompts.lock().unwrap().len() == count + 1).await;
        }
        drop(socket);
        wait_for(|| served.cancelled() == count + 1).await;
    }
    assert_eq!(served.over(), 4);
}

#[tokio::test]
async fn a_stop_string_ends_the_request_at_once() {
    let rig = Rig::new(|_| vec![Line::Say(ids("a STOP")), Line::Wait(Duration::from_secs(60))]);
    let answer = rig.chat(json!({"stop": "STOP"})).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "a ");
    wait_for(|| rig.seen.cancelled.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test]
async fn stopping_lets_answers_finish_and_takes_no_more() {
    let rig = Rig::new(|_| {
        vec![Line::Say(ids("one")), Line::Wait(Duration::from_millis(300)), Line::Say(ids(" two"))]
    });
    let served = serve(rig).await;
    let mut stream = served.post("/v1/chat/completions", asking(json!({"stream": true}))).await;
    let mut text = read_until(&mut stream, "one").await;
    served.rig.app.engine().unwrap().drain();
    served.stop.send(true).unwrap();
    text += &read_until(&mut stream, "data: [DONE]").await;
    assert!(text.contains("two"));
    served.server.await.unwrap().unwrap();
    assert!(TcpStream::connect(served.address).await.is_err());
    let answer = served.rig.chat(json!({})).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["code"]), (503, &json!("shutting_down")));
}

/// Past the drain's limit: streams are told so, answers in one piece too, and the engine stops.
#[tokio::test]
async fn what_is_not_done_in_time_ends_with_an_error() {
    let served = serve(slow()).await;
    let mut streamed = served.post("/v1/chat/completions", asking(json!({"stream": true}))).await;
    read_until(&mut streamed, "200 OK").await;
    let mut whole = served.post("/v1/messages", asking(json!({"max_tokens": 9}))).await;
    wait_for(|| served.rig.seen.prompts.lock().unwrap().len() == 2).await;
    served.rig.app.stopping.cut_now();
    assert!(!read_until(&mut streamed, "\"code\":\"shutting_down\"").await.contains("[DONE]"));
    let text = read_until(&mut whole, "overloaded_error").await;
    assert!(text.starts_with("HTTP/1.1 503"), "{text}");
    wait_for(|| served.cancelled() == 2).await;
}

#[tokio::test]
async fn the_longest_time_of_a_request_reaches_the_engine() {
    for limit in [None, Some(Duration::from_secs(7))] {
        let rig = Rig::with(
            |options| options.deadline = limit,
            limits(2048, 8),
            Status::default(),
            |submission| vec![Line::Say(ids(if submission.deadline.is_some() { "some" } else { "none" }))],
        );
        let answer = rig.chat(json!({})).await.json();
        let said = if limit.is_some() { "some" } else { "none" };
        assert_eq!(answer["choices"][0]["message"]["content"], said);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_streams_and_random_cancels_mix_nothing_up() {
    // Says its prompt's length, in words.
    let rig = Rig::with(
        |_| {},
        limits(2048, 64),
        Status::default(),
        |submission| {
            let said = ids(&format!("{} tokens", submission.prompt.len()));
            said.into_iter()
                .flat_map(|id| [Line::Say(vec![id]), Line::Wait(Duration::from_millis(1))])
                .collect()
        },
    );
    let served = Arc::new(serve(rig).await);
    let tasks: Vec<_> = (0..200_usize)
        .map(|number| {
            let served = served.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis((number % 25 * 20) as u64)).await;
                let content = "x ".repeat(number % 40);
                let body =
                    asking(json!({"stream": true, "messages": [{"role": "user", "content": content}]}));
                let mut stream = served.post("/v1/chat/completions", body.clone()).await;
                if number % 3 == 0 {
                    read_until(&mut stream, "role").await;
                    return;
                }
                let text = read_until(&mut stream, "[DONE]").await;
                let said: String = text
                    .lines()
                    .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok())
                    .filter_map(|chunk| Some(chunk["choices"][0]["delta"]["content"].as_str()?.to_owned()))
                    .collect();
                let shown = served.rig.post("/apply-template", body).await.json()["prompt"].clone();
                assert_eq!(said, format!("{} tokens", ids(shown.as_str().unwrap()).len()));
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    wait_for(|| served.over() == 200).await;
}
