//! TCP without Nagle's delay, blocking.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use super::Exchange;
use super::payload::Sizes;
use crate::child::{Child, Launch, Role, say};
use crate::error::BenchError;

/// One connection to each child.
pub struct Tcp {
    peers: Vec<(TcpStream, Child)>,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Tcp {
    /// Starts the children.
    ///
    /// # Errors
    /// If one does not start.
    pub fn start(sizes: Sizes, workers: usize, launch: &Launch) -> Result<Self, BenchError> {
        let peer = |_| {
            let mut child = Child::start(&Role::Tcp(sizes), launch)?;
            Ok((connect(child.hear()?)?, child))
        };
        let peers = (0..workers).map(peer).collect::<Result<_, BenchError>>()?;
        Ok(Self { peers, request: vec![1; sizes.request], reply: vec![0; sizes.reply] })
    }
}

impl Exchange for Tcp {
    fn call(&mut self) -> Result<(), BenchError> {
        for (stream, _) in &mut self.peers {
            stream.write_all(&self.request).map_err(BenchError::io("TCP"))?;
        }
        for (stream, _) in &mut self.peers {
            stream.read_exact(&mut self.reply).map_err(BenchError::io("TCP"))?;
        }
        Ok(())
    }
}

/// The child: answers the first connection until it closes.
///
/// # Errors
/// If the connection fails.
pub fn serve(sizes: Sizes) -> Result<(), BenchError> {
    let listener = listen()?;
    say(&listener.local_addr().map_err(BenchError::io("TCP"))?)?;
    answer(accept(&listener)?, sizes, "TCP")
}

/// Reads requests and writes replies until the other end closes.
pub(super) fn answer(mut stream: impl Read + Write, sizes: Sizes, what: &str) -> Result<(), BenchError> {
    let (mut request, reply) = (vec![0; sizes.request], vec![2; sizes.reply]);
    loop {
        match stream.read_exact(&mut request) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            read => read.map_err(BenchError::io(what))?,
        }
        stream.write_all(&reply).and_then(|()| stream.flush()).map_err(BenchError::io(what))?;
    }
}

pub(super) fn connect(address: SocketAddr) -> Result<TcpStream, BenchError> {
    TcpStream::connect(address).and_then(no_delay).map_err(BenchError::io(address))
}

pub(super) fn listen() -> Result<TcpListener, BenchError> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(BenchError::io("TCP"))
}

pub(super) fn accept(listener: &TcpListener) -> Result<TcpStream, BenchError> {
    listener.accept().and_then(|(stream, _)| no_delay(stream)).map_err(BenchError::io("TCP"))
}

fn no_delay(stream: TcpStream) -> std::io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    Ok(stream)
}
