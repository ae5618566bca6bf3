//! The one file that names bincode: control messages to bytes and back, with a size limit.

use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::WireError;
use super::frame::CONTROL_LIMIT;

/// Bytes of a control message.
pub(crate) fn encode<T: Serialize>(name: &'static str, message: &T) -> Result<Vec<u8>, WireError> {
    bincode::serde::encode_to_vec(message, CONFIG)
        .map_err(|error| WireError::Undecodable { message: name, reason: error.to_string() })
}

/// A control message from exactly these bytes.
pub(crate) fn decode<T: DeserializeOwned>(name: &'static str, bytes: &[u8]) -> Result<T, WireError> {
    let (message, used) = bincode::serde::decode_from_slice(bytes, CONFIG)
        .map_err(|error| WireError::Undecodable { message: name, reason: error.to_string() })?;
    match bytes.len() - used {
        0 => Ok(message),
        extra => Err(WireError::Trailing { message: name, extra }),
    }
}

/// Fixed-width integers, and no claim of a length beyond the frame's own limit is believed.
const CONFIG: Configuration<LittleEndian, Fixint, Limit<CONTROL_LIMIT>> =
    bincode::config::standard().with_fixed_int_encoding().with_limit::<CONTROL_LIMIT>();
