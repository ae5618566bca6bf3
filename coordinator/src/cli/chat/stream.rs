//! A streamed chat completion, read: bytes → lines → what the model says.

use std::collections::VecDeque;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::time::timeout;

use super::client::ClientError;

/// A streamed chat completion. Dropping it ends the request on the server, too.
pub struct Stream {
    base: String,
    body: Body,
    /// Bytes without a line's end so far.
    rest: Vec<u8>,
    ready: VecDeque<Delta>,
    done: bool,
}

/// Something new.
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    /// So many of so many prompt tokens are done.
    Prompt {
        /// Done.
        processed: u64,
        /// All.
        total: u64,
    },
    /// Reasoning.
    Reasoning(String),
    /// The answer.
    Content(String),
    /// Why the answer is over.
    Finish(String),
    /// What it took.
    Usage(Usage),
}

/// Tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt: u64,
    /// Of these, from the server's cache.
    pub cached: u64,
    /// New ones.
    pub completion: u64,
}

impl Stream {
    /// Reads `body`, which came from `base`.
    pub fn new(base: String, body: Body) -> Self {
        Self { base, body, rest: Vec::new(), ready: VecDeque::new(), done: false }
    }

    /// What comes next; `None` after the end.
    ///
    /// # Errors
    /// If the server says that it failed, or the stream breaks off.
    pub async fn next(&mut self) -> Result<Option<Delta>, ClientError> {
        loop {
            if let Some(delta) = self.ready.pop_front() {
                return Ok(Some(delta));
            }
            if self.done {
                return Ok(None);
            }
            let frame = timeout(SILENCE, self.body.frame()).await;
            let frame = frame.map_err(|_| self.lost(&format!("nothing came for {} s", SILENCE.as_secs())))?;
            let frame = frame.ok_or_else(|| self.lost(&"it ended too early"))?;
            let frame = frame.map_err(|error| self.lost(&error))?;
            let Ok(data) = frame.into_data() else { continue };
            self.rest.extend_from_slice(&data);
            while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                self.line(&line)?;
            }
            if self.rest.len() > LINE_LIMIT {
                return Err(self.strange(format!("a line of more than {LINE_LIMIT} bytes")));
            }
        }
    }

    /// Takes one line. Comments and empty ones only show that the server is alive.
    fn line(&mut self, line: &[u8]) -> Result<(), ClientError> {
        let Some(data) = line.strip_prefix(b"data: ").map(<[u8]>::trim_ascii) else { return Ok(()) };
        if data == b"[DONE]" {
            self.done = true;
            return Ok(());
        }
        let chunk: Value = serde_json::from_slice(data)
            .map_err(|error| self.strange(format!("a chunk that is no JSON: {error}")))?;
        if chunk["error"].is_object() {
            return Err(ClientError::refused(StatusCode::OK, &chunk));
        }
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let progress = &chunk["prompt_progress"];
        if progress.is_object() {
            let (processed, total) = (number(&progress["processed"]), number(&progress["total"]));
            self.ready.push_back(Delta::Prompt { processed, total });
        }
        let choice = &chunk["choices"][0];
        let text = |name: &str| choice["delta"][name].as_str().filter(|text| !text.is_empty());
        if let Some(reasoning) = text("reasoning_content").or_else(|| text("reasoning")) {
            self.ready.push_back(Delta::Reasoning(reasoning.to_owned()));
        }
        if let Some(content) = text("content") {
            self.ready.push_back(Delta::Content(content.to_owned()));
        }
        if let Some(finish) = choice["finish_reason"].as_str() {
            self.ready.push_back(Delta::Finish(finish.to_owned()));
        }
        let usage = &chunk["usage"];
        if usage.is_object() {
            self.ready.push_back(Delta::Usage(Usage {
                prompt: number(&usage["prompt_tokens"]),
                cached: number(&usage["prompt_tokens_details"]["cached_tokens"]),
                completion: number(&usage["completion_tokens"]),
            }));
        }
        Ok(())
    }

    fn lost(&self, reason: &dyn ToString) -> ClientError {
        ClientError::Lost(self.base.clone(), reason.to_string())
    }

    fn strange(&self, reason: String) -> ClientError {
        ClientError::Strange(self.base.clone(), reason)
    }
}

/// Longest silence; the server breaks it every ten seconds.
const SILENCE: Duration = Duration::from_secs(60);

/// Bytes of a line: far more than a chunk has.
const LINE_LIMIT: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(text: &'static str) -> (Vec<Delta>, Option<String>) {
        // A frame a byte: lines come in pieces.
        let bytes = text.bytes().map(|byte| Ok::<_, std::convert::Infallible>(vec![byte]));
        let body = Body::from_stream(futures_util::stream::iter(bytes));
        let mut stream = Stream::new("http://a".to_owned(), body);
        let mut all = Vec::new();
        loop {
            match stream.next().await {
                Ok(Some(delta)) => all.push(delta),
                Ok(None) => return (all, None),
                Err(error) => return (all, Some(error.to_string())),
            }
        }
    }

    #[tokio::test]
    async fn everything_a_stream_tells_is_read() {
        let (all, error) = read(concat!(
            ": keep-alive\n\n",
            "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}],\"usage\":null}\n\n",
            "data: {\"choices\":[{\"delta\":{}}],\"prompt_progress\":{\"total\":9,\"processed\":4}}\n\n",
            "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}\r\n\r\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"é\"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,",
            "\"prompt_tokens_details\":{\"cached_tokens\":3}}}\n\n",
            "data: [DONE]\n\n",
        ))
        .await;
        assert_eq!(error, None);
        let usage = Usage { prompt: 9, cached: 3, completion: 2 };
        let expected = [
            Delta::Prompt { processed: 4, total: 9 },
            Delta::Reasoning("hm".to_owned()),
            Delta::Content("é".to_owned()),
            Delta::Finish("stop".to_owned()),
            Delta::Usage(usage),
        ];
        assert_eq!(all, expected);
    }

    #[tokio::test]
    async fn breaking_off_is_an_error_and_so_is_what_the_server_says_of_one() {
        let (_, error) = read("data: {\"choices\":[]}\n\n").await;
        assert!(error.is_some_and(|error| error.contains("ended too early")));
        let (_, error) = read("data: {\"error\":{\"message\":\"shard 1 is gone\"}}\n\n").await;
        assert_eq!(error.as_deref(), Some("shard 1 is gone"));
        let (_, error) = read("data: <html>\n\n").await;
        assert!(error.is_some_and(|error| error.contains("no JSON")));
    }
}
