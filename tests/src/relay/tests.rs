//! Datagrams through real sockets. Whatever the machine does meanwhile, none is early, and none is changed.
// In a test a panic is the report.
#![allow(clippy::unwrap_used)]

use std::time::Instant;

use super::*;

/// A socket that answers as it was asked, until it is told to end.
fn echo() -> (SocketAddr, JoinHandle<()>) {
    let socket = socket().unwrap();
    socket.set_read_timeout(None).unwrap();
    let address = socket.local_addr().unwrap();
    let thread = thread::spawn(move || {
        let mut buffer = vec![0; LARGEST];
        loop {
            let (len, from) = socket.recv_from(&mut buffer).unwrap();
            if &buffer[..len] == END {
                return;
            }
            socket.send_to(&buffer[..len], from).unwrap();
        }
    });
    (address, thread)
}

fn end((address, thread): (SocketAddr, JoinHandle<()>)) {
    socket().unwrap().send_to(END, address).unwrap();
    thread.join().unwrap();
}

fn client(relay: &Relay) -> UdpSocket {
    let client = socket().unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.connect(relay.address()).unwrap();
    client
}

#[test]
fn datagrams_of_every_size_come_back_unchanged_and_not_early() {
    let echo = echo();
    let link = Link { delay: Duration::from_millis(3), ..Link::default() };
    let relay = Relay::start(echo.0, &link, 1).unwrap();
    let client = client(&relay);
    let mut buffer = vec![0; LARGEST];
    for len in [0, 1, 1200, 1472, 8972, 16_356, 65_507] {
        let bytes: Vec<u8> = (0..len).map(|n| (n * 31 % 251) as u8).collect();
        let sent = Instant::now();
        client.send(&bytes).unwrap();
        let got = client.recv(&mut buffer).unwrap();
        assert!(sent.elapsed() >= 2 * link.delay, "{len} bytes after {:?}", sent.elapsed());
        assert!(buffer[..got] == bytes, "{len} bytes changed");
    }
    // A datagram may arrive before it is counted.
    wait(|| relay.traffic().map(|traffic| traffic.carried) == [7, 7]);
    end(echo);
}

#[test]
fn senders_get_their_own_replies() {
    let echo = echo();
    let relay = Relay::start(echo.0, &Link::default(), 1).unwrap();
    let clients: Vec<_> = (0..5).map(|_| client(&relay)).collect();
    for (n, client) in clients.iter().enumerate() {
        client.send(&[n as u8; 9]).unwrap();
    }
    for (n, client) in clients.iter().enumerate().rev() {
        let mut buffer = [0; 16];
        assert_eq!(client.recv(&mut buffer).unwrap(), 9);
        assert_eq!(buffer[..9], [n as u8; 9]);
    }
    end(echo);
}

#[test]
fn jitter_reorders_what_it_may_and_loses_nothing() {
    let echo = echo();
    let [delay, jitter] = [4, 4].map(Duration::from_millis);
    let link = Link { delay, jitter, reorder: true, ..Link::default() };
    let relay = Relay::start(echo.0, &link, 5).unwrap();
    let client = client(&relay);
    for n in 0..100_u8 {
        client.send(&[n]).unwrap();
    }
    let mut seen = Vec::new();
    for _ in 0..100 {
        let mut byte = [0];
        client.recv(&mut byte).unwrap();
        seen.push(byte[0]);
    }
    assert!(!seen.is_sorted(), "{seen:?}");
    seen.sort_unstable();
    assert_eq!(seen, (0..100).collect::<Vec<u8>>());
    end(echo);
}

#[test]
fn losses_are_counted_and_a_cut_link_carries_nothing() {
    let echo = echo();
    let link = Link { loss: 0.5, mtu: Some(100), ..Link::default() };
    let relay = Relay::start(echo.0, &link, 9).unwrap();
    let client = client(&relay);
    (0..200).for_each(|_| assert_eq!(client.send(&[1]).unwrap(), 1));
    client.send(&[0; 101]).unwrap();
    let all = |traffic: Traffic| traffic.carried + traffic.lost + traffic.too_large + traffic.cut;
    wait(|| all(relay.traffic()[0]) == 201);
    let [out, _] = relay.traffic();
    assert_eq!(out.too_large, 1);
    assert!(out.lost > 50 && out.carried > 50, "{out:?}");
    relay.cut();
    (0..10).for_each(|_| assert_eq!(client.send(&[1]).unwrap(), 1));
    wait(|| relay.traffic()[0].cut == 10);
    assert_eq!(relay.traffic()[0].carried, out.carried);
    relay.mend();
    (0..100).for_each(|_| assert_eq!(client.send(&[1]).unwrap(), 1));
    wait(|| all(relay.traffic()[0]) == 311);
    assert!(relay.traffic()[0].carried > out.carried);
    end(echo);
}

#[track_caller]
fn wait(reached: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !reached() {
        assert!(Instant::now() < deadline, "never came so far");
        thread::sleep(PAUSE);
    }
}

const END: &[u8] = b"end";
const PATIENCE: Duration = Duration::from_secs(10);
