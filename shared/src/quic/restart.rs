//! How a worker that was started again tells the connections of its former life that they are over.
//!
//! A process that dies and is restarted at once by its supervisor leaves no closed port for the probe to find. QUIC has
//! the stateless reset for it: a token that the worker announces with each connection id and derives from a key. With
//! a random key, quinn's default, the next life could not give the token; here the key comes from the identity.

use std::sync::Arc;

use quinn::crypto::HmacKey;
use quinn::{ConnectionId, ConnectionIdGenerator, EndpointConfig};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use sha2::{Digest, Sha256};

use super::identity::Identity;

/// Makes an endpoint's resets valid for every life of this identity.
pub(crate) fn outlive(config: &mut EndpointConfig, identity: &Identity) {
    config.reset_key(reset_key(identity)).cid_generator(|| Box::new(RandomIds(SystemRandom::new())));
}

fn reset_key(identity: &Identity) -> Arc<dyn HmacKey> {
    let secret = Sha256::new().chain_update(PURPOSE).chain_update(identity.key.secret_der()).finalize();
    Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &secret))
}

/// Connection ids of which every life accepts every other's as possible: quinn's own carry a key of one life.
struct RandomIds(SystemRandom);

impl ConnectionIdGenerator for RandomIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; LENGTH];
        if self.0.fill(&mut id).is_err() {
            tracing::error!("the system gives no random numbers");
        }
        ConnectionId::new(&id)
    }

    fn cid_len(&self) -> usize {
        LENGTH
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}

/// Bytes of a connection id.
const LENGTH: usize = 8;

/// Keeps this use of the private key apart from any other.
const PURPOSE: &[u8] = b"laguna-ep stateless reset\0";
