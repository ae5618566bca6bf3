//! UDP ping-pong and bursts through a relay and without one, in turn.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use laguna_tests::relay::{Link, Preset, Relay};
use serde::Serialize;
use socket2::{Domain, Protocol, Socket, Type};

use crate::error::BenchError;
use crate::report::Row;
use crate::stats::{Spread, median, ratio};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Links, case by case; 127.0.0.1 without a relay and a relay that does nothing come first.
    pub links: Vec<Preset>,
    /// Round trips of each.
    pub calls: usize,
}

/// One link.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// `none` without a relay, `plain` through one that changes nothing, or a preset.
    pub link: String,
    /// Round trip that the link's numbers promise for 64 bytes each way, in microseconds.
    pub promised_us: f64,
    /// Round trip of 64 bytes, median.
    pub p50_us: f64,
    /// Its 99th percentile.
    pub p99_us: f64,
    /// `p50_us` less what is promised and what 127.0.0.1 itself takes: the relay's own time, both ways.
    pub relay_us: f64,
    /// Round trip of a decode step's messages of S 2.1 in f32, 12 KB each way in as many datagrams as the MTU asks for.
    pub decode_p50_us: f64,
    /// Bits per second that the link promises; 0 if it has no limit.
    pub promised_bit_s: f64,
    /// Bits per second, headers included, at which a burst of 1 MiB arrived, median of several.
    pub bit_s: f64,
    /// Part of the datagrams that was lost at random, in all of these.
    pub loss: f64,
}

impl Plan {
    /// Measures every link. `progress` is told what comes next.
    ///
    /// # Errors
    /// If a socket fails.
    pub fn run(&self, progress: &mut dyn FnMut(&str)) -> Result<Vec<Record>, BenchError> {
        let mut cases = vec![("none", None), ("plain", Some(Link::default()))];
        cases.extend(self.links.iter().map(|preset| (preset.name(), Some(preset.link()))));
        let mut records: Vec<Record> = Vec::new();
        for (name, link) in cases {
            progress(&format!("link {name}"));
            let direct = records.first().map_or(0.0, |first| first.p50_us);
            records.push(self.measure(name, link.as_ref(), direct)?);
        }
        Ok(records)
    }

    fn measure(&self, name: &str, link: Option<&Link>, direct_us: f64) -> Result<Record, BenchError> {
        let echo = Echo::start()?;
        let relay = link.map(|link| Relay::start(echo.address, link, 1).map_err(BenchError::io("relay")));
        let relay = relay.transpose()?;
        let link = link.cloned().unwrap_or_default();
        let path = Path::new(relay.as_ref().map_or(echo.address, Relay::address), &link)?;
        let small = path.ping_pong([64, 64], self.calls)?;
        let decode = path.ping_pong(decode_step(HIDDEN), self.calls)?;
        let bursts = (0..BURSTS).map(|_| path.burst(BURST)).collect::<Result<Vec<_>, _>>()?;
        let promised_us = link.delay.as_secs_f64() * 2e6
            + link.rate.map_or(0.0, |rate| 2.0 * 8e6 * (64 + HEADERS) as f64 / rate as f64);
        let traffic = relay.as_ref().map(Relay::traffic).into_iter().flatten();
        let (lost, all) =
            traffic.fold((0, 0), |(lost, all), one| (lost + one.lost, all + one.lost + one.carried));
        Ok(Record {
            link: name.to_owned(),
            promised_us,
            p50_us: small.p50,
            p99_us: small.p99,
            relay_us: if relay.is_some() { small.p50 - promised_us - direct_us } else { 0.0 },
            decode_p50_us: decode.p50,
            promised_bit_s: link.rate.unwrap_or_default() as f64,
            bit_s: median(bursts),
            loss: ratio(lost as f64, all as f64),
        })
    }
}

/// Median round trips of a decode step's messages, in microseconds: through a link of this kind, and without one.
///
/// # Errors
/// If a socket fails.
pub fn round_trips(preset: Preset, hidden: usize, calls: usize) -> Result<[f64; 2], BenchError> {
    let (link, echo) = (preset.link(), Echo::start()?);
    let relay = Relay::start(echo.address, &link, 1).map_err(BenchError::io("relay"))?;
    let through = Path::new(relay.address(), &link)?.ping_pong(decode_step(hidden), calls)?;
    let direct = Path::new(echo.address, &Link::default())?.ping_pong(decode_step(hidden), calls)?;
    Ok([through.p50, direct.p50])
}

/// Bytes of one f32 row out and one back, and some for QUIC.
const fn decode_step(hidden: usize) -> [usize; 2] {
    [4 * hidden + 100, 4 * hidden + 100]
}

/// A socket to an echo somewhere.
struct Path {
    socket: UdpSocket,
    /// Bytes of the largest datagram.
    datagram: usize,
}

impl Path {
    fn new(to: SocketAddr, link: &Link) -> Result<Self, BenchError> {
        let socket = socket()?;
        socket.connect(to).map_err(BenchError::io("UDP socket"))?;
        Ok(Self { socket, datagram: link.mtu.unwrap_or(LARGEST) })
    }

    /// Sends a message of `request` bytes and waits for one of `reply`. Round trips with a lost datagram do not count.
    fn ping_pong(&self, [request, reply]: [usize; 2], calls: usize) -> Result<Spread, BenchError> {
        let mut samples = Vec::with_capacity(calls);
        let mut buffer = vec![0; LARGEST];
        for call in 0..calls {
            let begun = Instant::now();
            self.send(call as u32, request, reply)?;
            if self.receive(call as u32, reply, &mut buffer)? {
                samples.push(begun.elapsed());
            }
        }
        Ok(Spread::of(&samples))
    }

    /// Every datagram says which call it is of, how many bytes the reply has, and how long its datagrams are.
    fn send(&self, call: u32, request: usize, reply: usize) -> Result<(), BenchError> {
        let mut datagram = vec![0; self.datagram.min(request.max(HEAD))];
        let mut left = request.max(HEAD);
        while left > 0 {
            let len = left.min(datagram.len()).max(HEAD);
            left = left.saturating_sub(len);
            // The last one is answered.
            let asked = if left == 0 { reply } else { 0 };
            for (to, number) in
                datagram.as_chunks_mut::<4>().0.iter_mut().zip([call, asked as u32, self.datagram as u32])
            {
                *to = number.to_le_bytes();
            }
            self.socket.send(&datagram[..len]).map_err(BenchError::io("UDP socket"))?;
        }
        Ok(())
    }

    /// Whether the whole reply came before it had to be given up.
    fn receive(&self, call: u32, reply: usize, buffer: &mut [u8]) -> Result<bool, BenchError> {
        let mut got = 0;
        while got < reply {
            match self.socket.recv(buffer) {
                // Late ones of a call that was given up are nothing.
                Ok(len) if buffer.first_chunk() == Some(&call.to_le_bytes()) => got += len,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(BenchError::io("UDP socket")(error)),
            }
        }
        Ok(true)
    }

    /// Bits per second, headers included, between the first and the last datagram of a reply of `bytes`.
    fn burst(&self, bytes: usize) -> Result<f64, BenchError> {
        let mut buffer = vec![0; LARGEST];
        self.send(u32::MAX, 64, bytes)?;
        let (mut first, mut last, mut bits) = (None, Instant::now(), 0.0);
        loop {
            match self.socket.recv(&mut buffer) {
                Ok(len) => {
                    last = Instant::now();
                    if first.is_none() {
                        first = Some(last);
                    } else {
                        bits += 8.0 * (len + HEADERS) as f64;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(BenchError::io("UDP socket")(error)),
            }
        }
        Ok(first.map_or(0.0, |first| ratio(bits, (last - first).as_secs_f64())))
    }
}

/// A thread that answers as it is asked to.
struct Echo {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    fn start() -> Result<Self, BenchError> {
        let socket = socket()?;
        let address = socket.local_addr().map_err(BenchError::io("UDP socket"))?;
        let ended = Arc::new(AtomicBool::new(false));
        let own = ended.clone();
        let thread = thread::spawn(move || {
            let mut buffer = vec![0; LARGEST];
            while !own.load(Ordering::Relaxed) {
                // Nothing for a while, or a lost link: both end with the measurement.
                let Ok((_, from)) = socket.recv_from(&mut buffer) else { continue };
                let number =
                    |n: usize| buffer.as_chunks::<4>().0.get(n).map_or(0, |it| u32::from_le_bytes(*it));
                let (mut left, most) = (number(1) as usize, (number(2) as usize).clamp(HEAD, LARGEST));
                while left > 0 {
                    let len = left.min(most);
                    left -= len;
                    let _ = socket.send_to(&buffer[..len], from);
                }
            }
        });
        Ok(Self { address, ended, thread: Some(thread) })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its panic was reported where it happened.
            let _ = thread.join();
        }
    }
}

fn socket() -> Result<UdpSocket, BenchError> {
    let open = || {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_recv_buffer_size(SOCKET_BUFFER)?;
        socket.set_send_buffer_size(SOCKET_BUFFER)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
        let socket: UdpSocket = socket.into();
        socket.set_read_timeout(Some(GIVE_UP))?;
        Ok(socket)
    };
    open().map_err(BenchError::io("UDP socket"))
}

impl Row for Record {
    const BENCH: &'static str = "link";
    const HEADS: &'static [&'static str] = &[
        "link",
        "promised µs",
        "p50 µs",
        "p99 µs",
        "relay µs",
        "decode µs",
        "promised Mbit/s",
        "Mbit/s",
        "lost",
    ];

    fn cells(&self) -> Vec<String> {
        let one = |number: f64| format!("{number:.1}");
        vec![
            self.link.clone(),
            one(self.promised_us),
            one(self.p50_us),
            one(self.p99_us),
            one(self.relay_us),
            one(self.decode_p50_us),
            format!("{:.0}", self.promised_bit_s / 1e6),
            format!("{:.0}", self.bit_s / 1e6),
            format!("{:.2} %", self.loss * 100.0),
        ]
    }
}

/// Elements of a row of S 2.1.
const HIDDEN: usize = 3072;

/// Bytes of a burst: what a prefill chunk sends, short of what the queues drop.
const BURST: usize = 1 << 20;
const BURSTS: usize = 9;

/// Bytes of what each datagram says.
const HEAD: usize = 12;

/// Bytes of an IPv4 and a UDP header.
const HEADERS: usize = 28;

/// Bytes of the largest UDP payload.
const LARGEST: usize = 65_507;

const SOCKET_BUFFER: usize = 4 << 20;

/// A reply that takes longer was lost.
const GIVE_UP: Duration = Duration::from_millis(100);
