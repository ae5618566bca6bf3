//! The API as bytes: one request a connection, no library between.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::run::Running;

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Status.
    pub status: u16,
    /// Status line and headers, in small letters.
    pub head: String,
    /// Everything behind them.
    pub body: String,
}

/// A request that is under way. Dropping it hangs up.
#[derive(Debug)]
pub struct Exchange {
    stream: TcpStream,
    read: Vec<u8>,
}

/// Where a serving coordinator is: `127.0.0.1:PORT`, once it says so.
pub fn address(server: &mut Running, before: &str) -> String {
    let find = |stderr: &str| {
        let rest = stderr.split_once(before)?.1;
        let end = rest.find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | ':'))?;
        Some(rest[..end].to_owned())
    };
    server.until(|server| find(&server.stderr()).is_some());
    find(&server.stderr()).expect("it was there just now")
}

impl Exchange {
    /// Sends a request; a body makes it a POST of JSON.
    ///
    /// # Panics
    /// If nobody listens.
    pub fn begin(address: &str, path: &str, headers: &[(&str, &str)], body: Option<&str>) -> Self {
        let mut stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        let method = if body.is_some() { "POST" } else { "GET" };
        let body = body.unwrap_or_default();
        // HTTP/1.0: the body ends with the connection, and is sent as it is.
        let mut head = format!("{method} {path} HTTP/1.0\r\nhost: {address}\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all((head + body).as_bytes()).expect("the server reads");
        Self { stream, read: Vec::new() }
    }

    /// Reads until `text` has come.
    ///
    /// # Panics
    /// If the answer ends before.
    pub fn until(&mut self, text: &str) {
        while !String::from_utf8_lossy(&self.read).contains(text) {
            let more = self.more();
            assert!(more, "the answer ended without {text:?}: {}", String::from_utf8_lossy(&self.read));
        }
    }

    /// Reads to the end.
    ///
    /// # Panics
    /// If it is no answer.
    pub fn finish(mut self) -> Reply {
        while self.more() {}
        let text = String::from_utf8_lossy(&self.read).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status: {head:?}"));
        Reply { status, head: head.to_lowercase(), body: body.to_owned() }
    }

    fn more(&mut self) -> bool {
        let mut chunk = [0; 4096];
        let count = self.stream.read(&mut chunk).expect("the server answers in time");
        self.read.extend_from_slice(&chunk[..count]);
        count > 0
    }
}

/// The answer to a GET.
pub fn get(address: &str, path: &str) -> Reply {
    Exchange::begin(address, path, &[], None).finish()
}

/// The answer to a POST of `body`.
pub fn post(address: &str, path: &str, body: &str) -> Reply {
    Exchange::begin(address, path, &[], Some(body)).finish()
}

/// Long enough for a laden machine.
const PATIENCE: Duration = Duration::from_secs(120);
