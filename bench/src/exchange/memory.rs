//! The same session and frames in one process and thread: what the protocol costs without a transport.

use laguna_shared::ids::ShardId;
use laguna_shared::session::{CallerSettings, InMemoryLinks, InMemoryWorker};

use super::Exchange;
use super::echo::EchoBank;
use super::payload::{Payload, range_of};
use super::quic::Calls;
use crate::error::BenchError;

/// Workers in this process.
pub struct Memory(Calls<InMemoryLinks>);

impl Memory {
    /// Greets them.
    ///
    /// # Errors
    /// If one does not fit.
    pub fn start(payload: Payload, workers: usize) -> Result<Self, BenchError> {
        let worker = |index| {
            let bank = EchoBank { range: range_of(index, workers) };
            let welcome = bank.welcome(ShardId(index as u16));
            let hello = welcome.expected_hello(payload.activation());
            InMemoryWorker { hello, welcome, bank: Box::new(bank) }
        };
        let links = InMemoryLinks::new((0..workers).map(worker).collect(), CallerSettings::default());
        Ok(Self(Calls::new(links.map_err(BenchError::failed)?, payload, workers)))
    }
}

impl Exchange for Memory {
    fn call(&mut self) -> Result<(), BenchError> {
        self.0.call()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_payload_makes_the_round() {
        for (payload, workers) in [(Payload::Decode, 1), (Payload::Decode, 4), (Payload::Bulk, 2)] {
            let mut memory = Memory::start(payload, workers).unwrap();
            memory.call().unwrap();
            memory.call().unwrap();
        }
    }
}
