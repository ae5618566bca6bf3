//! Where a worker is reached: a host and a port, as written. Resolves a name only when asked to.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::vec;

/// A host and a UDP port. `to_socket_addrs()` asks the system's resolver if the host is a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The machine.
    pub host: Host,
    /// UDP port, `1..=65535`.
    pub port: u16,
}

/// The machine part of an [`Address`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// A number, not the unspecified one. `localhost` reads as `127.0.0.1`, so that both ends mean the same.
    Ip(IpAddr),
    /// A name in lower case, or an IPv6 number with a zone (`fe80::1%bridge0`).
    Name(String),
}

impl Address {
    /// Whether the host is this very machine, by number.
    pub const fn is_loopback(&self) -> bool {
        match self.host {
            Host::Ip(ip) => ip.is_loopback(),
            Host::Name(_) => false,
        }
    }

    /// What a worker at this address binds unless the file says otherwise: the port on all interfaces, IPv6 and
    /// IPv4 (`[::]`), or the loopback address itself, which nobody else reaches.
    pub const fn default_listen(&self) -> SocketAddr {
        match self.host {
            Host::Ip(ip) if ip.is_loopback() => SocketAddr::new(ip, self.port),
            _ => SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), self.port),
        }
    }
}

/// A text that is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseAddressError {
    /// Nothing after the host.
    #[error("it has no port: write as in \"10.0.5.2:4433\" or \"studio.local:4433\"")]
    NoPort,
    /// What follows the last colon is no port.
    #[error("its port {0:?} is not a number from 1 to 65535: write as in \"10.0.5.2:4433\"")]
    Port(String),
    /// IPv6 without brackets.
    #[error("an IPv6 address needs brackets: write as in \"[fd00::2]:4433\"")]
    Brackets,
    /// A web address or a path.
    #[error("write the host and the port alone, without \"://\" or \"/\", as in \"10.0.5.2:4433\"")]
    Scheme,
    /// Every interface, which is nowhere in particular.
    #[error(
        "{0} means every interface of a machine: write the address others reach it at, and use `listen` to choose what it binds"
    )]
    Unspecified(IpAddr),
    /// The host is neither number nor name.
    #[error(
        "its host {0:?} is neither a host name nor an IP address: write as in \"10.0.5.2:4433\", \"studio.local:4433\" or \"[fd00::2]:4433\""
    )]
    Host(String),
}

impl FromStr for Address {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, ParseAddressError> {
        let text = text.trim();
        if text.contains('/') {
            return Err(ParseAddressError::Scheme);
        }
        let (host, port) = text.rsplit_once(':').ok_or(ParseAddressError::NoPort)?;
        if host.contains(':') && !host.starts_with('[') {
            return Err(ParseAddressError::Brackets);
        }
        if host.starts_with('[') && text.ends_with(']') {
            return Err(ParseAddressError::NoPort);
        }
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = match port.parse() {
            Ok(port) if digits && port > 0 => port,
            _ => return Err(ParseAddressError::Port(clip(port))),
        };
        let wrong = || ParseAddressError::Host(clip(host));
        let host = match host.strip_prefix('[') {
            Some(rest) => bracketed(rest.strip_suffix(']').ok_or_else(wrong)?).ok_or_else(wrong)?,
            None => plain(host).ok_or_else(wrong)?,
        };
        match host {
            Host::Ip(ip) if ip.is_unspecified() => Err(ParseAddressError::Unspecified(ip)),
            host => Ok(Self { host, port }),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.port;
        match &self.host {
            Host::Ip(ip) => write!(f, "{}", SocketAddr::new(*ip, port)),
            Host::Name(name) if name.contains(':') => write!(f, "[{name}]:{port}"),
            Host::Name(name) => write!(f, "{name}:{port}"),
        }
    }
}

impl ToSocketAddrs for Address {
    type Iter = vec::IntoIter<SocketAddr>;

    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        match &self.host {
            Host::Ip(ip) => Ok(vec![SocketAddr::new(*ip, self.port)].into_iter()),
            Host::Name(name) => (name.as_str(), self.port).to_socket_addrs(),
        }
    }
}

fn bracketed(text: &str) -> Option<Host> {
    let (number, zone) = text.split_once('%').map_or((text, None), |(number, zone)| (number, Some(zone)));
    let ip: Ipv6Addr = number.parse().ok()?;
    match zone {
        None => Some(Host::Ip(ip.into())),
        Some(zone) => {
            let known =
                !zone.is_empty() && zone.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
            known.then(|| Host::Name(format!("{ip}%{zone}")))
        }
    }
}

fn plain(text: &str) -> Option<Host> {
    if let Ok(ip) = text.parse::<Ipv4Addr>() {
        return Some(Host::Ip(ip.into()));
    }
    let name = text.to_ascii_lowercase();
    if name == "localhost" {
        return Some(Host::Ip(Ipv4Addr::LOCALHOST.into()));
    }
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    // Digits and dots alone are an IPv4 address gone wrong.
    let number = name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let fits = name.len() <= 253 && name.strip_suffix('.').unwrap_or(&name).split('.').all(label);
    (fits && !number).then_some(Host::Name(name))
}

fn clip(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_numbers_names_and_zones() {
        for (text, shown) in [
            ("10.0.5.2:4433", "10.0.5.2:4433"),
            ("Studio.local:4433", "studio.local:4433"),
            ("[fd00::2]:4433", "[fd00::2]:4433"),
            ("[fe80::1%bridge0]:4433", "[fe80::1%bridge0]:4433"),
            ("localhost:4433", "127.0.0.1:4433"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(shown.parse(), Ok(address));
        }
    }

    #[test]
    fn binds_everything_unless_loopback() {
        let listen = |text: &str| text.parse::<Address>().unwrap().default_listen().to_string();
        assert_eq!(listen("10.0.5.2:4433"), "[::]:4433");
        assert_eq!(listen("studio.local:4434"), "[::]:4434");
        assert_eq!(listen("127.0.0.1:4433"), "127.0.0.1:4433");
        assert_eq!(listen("[::1]:4433"), "[::1]:4433");
    }

    #[test]
    fn says_what_is_wrong() {
        use ParseAddressError as E;
        let error = |text: &str| text.parse::<Address>().unwrap_err();
        assert_eq!(error("10.0.5.2"), E::NoPort);
        assert_eq!(error("[fd00::2]"), E::NoPort);
        assert_eq!(error("fd00::2:4433"), E::Brackets);
        assert_eq!(error("10.0.5.2:0"), E::Port("0".into()));
        assert_eq!(error("10.0.5.2:+1"), E::Port("+1".into()));
        assert_eq!(error("10.0.5.2:65536"), E::Port("65536".into()));
        assert_eq!(error("https://10.0.5.2:4433"), E::Scheme);
        assert_eq!(error("10.0.5.256:4433"), E::Host("10.0.5.256".into()));
        assert_eq!(error("my mac:4433"), E::Host("my mac".into()));
        assert_eq!(error(":4433"), E::Host(String::new()));
        assert_eq!(error("[fd00::2:4433"), E::Host("[fd00::2".into()));
        assert_eq!(error("[::]:4433"), E::Unspecified(Ipv6Addr::UNSPECIFIED.into()));
    }
}
