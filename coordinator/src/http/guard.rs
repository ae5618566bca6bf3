//! Who may talk to a server without keys: not a web page that a person happens to have open. A page reaches
//! `127.0.0.1` under its own name (DNS rebinding, seen in `Host`) or from its own origin (seen in `Origin`).

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tower_http::cors::{AllowOrigin, Any, CorsLayer};

use super::error::Fault;
use super::state::SharedApp;

/// Hosts and origins that are let in.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Names besides `localhost` and addresses that `Host` may have.
    pub hosts: Vec<String>,
    /// Any `Host` is let in: the server is meant for a network, and asks for keys.
    pub any_host: bool,
    /// Origins besides the server's own; `*` is all.
    pub origins: Vec<String>,
}

impl Access {
    fn allows_host(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        let name = authority.host().trim_end_matches('.').to_ascii_lowercase();
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        self.any_host
            || address.is_ok()
            || name == "localhost"
            || name.ends_with(".localhost")
            || self.hosts.iter().any(|own| own.eq_ignore_ascii_case(&name))
    }

    fn allows_origin(&self, origin: &str, host: Option<&str>) -> bool {
        // A page that this server itself has sent.
        let own = origin.split_once("://").is_some_and(|(scheme, from)| {
            matches!(scheme, "http" | "https") && host.is_some_and(|host| from.eq_ignore_ascii_case(host))
        });
        own || self.origins.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(origin))
    }

    fn admit(&self, request: &Request) -> Result<(), Fault> {
        let text =
            |name| request.headers().get(name).map(|value: &HeaderValue| value.to_str().unwrap_or("?"));
        let host = text(HOST).or_else(|| request.uri().authority().map(Authority::as_str));
        if let Some(host) = host.filter(|host| !self.allows_host(host)) {
            let how = "start it with --allow-host NAME to let it in";
            return Err(Fault::Forbidden(format!("Host {host:?} is not this server's; {how}")));
        }
        if let Some(origin) = text(ORIGIN).filter(|origin| !self.allows_origin(origin, host)) {
            let how = format!("start the server with --cors {origin} to let it in");
            return Err(Fault::Forbidden(format!("Origin {origin:?} is not let in; {how}")));
        }
        Ok(())
    }

    /// Answers preflights, and tells browsers what they may read.
    pub fn cors(&self) -> CorsLayer {
        let exposed = [header::RETRY_AFTER, header::WARNING];
        let methods = [Method::GET, Method::POST, Method::HEAD];
        // A list that mirrors what is asked: `*` does not cover `authorization`.
        let headers = tower_http::cors::AllowHeaders::mirror_request();
        let layer = CorsLayer::new().allow_methods(methods).allow_headers(headers).expose_headers(exposed);
        if self.origins.iter().any(|origin| origin == "*") {
            return layer.allow_origin(Any);
        }
        let origins = self.origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok());
        layer.allow_origin(AllowOrigin::list(origins))
    }
}

/// Turns foreign hosts and origins away.
pub async fn check(State(app): State<SharedApp>, request: Request, next: Next) -> Response {
    match app.options.access.admit(&request) {
        Ok(()) => next.run(request).await,
        Err(fault) => fault.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_ours_are_foreign() {
        let access = Access { hosts: vec!["studio-a.local".to_owned()], ..Access::default() };
        for host in
            ["localhost", "LOCALHOST:8080", "127.0.0.1:8080", "[::1]:8080", "10.0.5.2", "Studio-A.local:1"]
        {
            assert!(access.allows_host(host), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io:8080", "", "a b"] {
            assert!(!access.allows_host(host), "{host}");
        }
    }

    #[test]
    fn origins_are_ours_or_listed() {
        let access = Access { origins: vec!["http://app.local:3000".to_owned()], ..Access::default() };
        assert!(access.allows_origin("http://127.0.0.1:8080", Some("127.0.0.1:8080")));
        assert!(access.allows_origin("http://app.local:3000", Some("127.0.0.1:8080")));
        for origin in ["http://evil.example", "null", "http://127.0.0.1:9", "file://127.0.0.1:8080"] {
            assert!(!access.allows_origin(origin, Some("127.0.0.1:8080")), "{origin}");
        }
        assert!(Access { origins: vec!["*".to_owned()], ..Access::default() }.allows_origin("null", None));
    }
}
