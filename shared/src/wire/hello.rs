//! Greetings: what a coordinator expects of a worker, what the worker is, and why they do not fit.
//!
//! Each opens with the protocol version as a bare u32, so that a mismatch can be named across versions.

use std::fmt::{self, Display};

use bytes::{BufMut, BytesMut};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::frame::begin_frame;
use super::{FrameKind, PROTOCOL_VERSION, WireError, codec};
use crate::compute::{ActivationType, ExpertBank};
use crate::ids::{ExpertRange, LayerId, ShardId};

/// Coordinator to worker: what I expect you to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Release of the coordinator, [`super::BUILD`].
    pub build: String,
    /// SHA-256 over what identifies the model.
    pub fingerprint: [u8; 32],
    /// Shard that the topology gives to this address.
    pub shard: ShardId,
    /// Experts of that shard.
    pub range: ExpertRange,
    /// SHA-256 over the shard's weights; `None` where the coordinator does not know it, and then it is not compared.
    pub weights: Option<[u8; 32]>,
    /// Layers that will be called, ascending.
    pub sparse_layers: Vec<LayerId>,
    /// Elements per row.
    pub hidden: u32,
    /// Element type of the rows that will be sent.
    #[serde(with = "activation_bits::one")]
    pub activation: ActivationType,
}

/// Worker to coordinator: what I am and hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Release of the worker, [`super::BUILD`].
    pub build: String,
    /// SHA-256 over what identifies the model.
    pub fingerprint: [u8; 32],
    /// Shard that the worker was started as.
    pub shard: ShardId,
    /// Experts held.
    pub range: ExpertRange,
    /// SHA-256 over the shard's weights, if it was computed.
    pub weights: Option<[u8; 32]>,
    /// Layers with routed experts, ascending.
    pub sparse_layers: Vec<LayerId>,
    /// Elements per row.
    pub hidden: u32,
    /// Element types of rows that are accepted.
    #[serde(with = "activation_bits::set")]
    pub activations: Vec<ActivationType>,
    /// Name of the arithmetic, as `--bank` takes it.
    pub backend: String,
    /// Bytes of memory that the worker could still use.
    pub free_memory_bytes: u64,
    /// Bytes of weights resident.
    pub resident_bytes: u64,
}

/// Worker to coordinator, before it closes: why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The two ends differ.
    Mismatch(Mismatch),
    /// The worker is about to end.
    Draining,
    /// The hello could not be read.
    Malformed(String),
}

/// One thing in which two ends differ, both values given as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatch {
    /// What differs.
    pub subject: Subject,
    /// The coordinator's value.
    pub coordinator: String,
    /// The worker's value.
    pub worker: String,
}

/// Things that both ends must have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Subject {
    /// Version of the wire protocol.
    ProtocolVersion,
    /// Release of the program.
    Build,
    /// Fingerprint of the model.
    Model,
    /// Number of the shard.
    Shard,
    /// Range of experts.
    Range,
    /// Digest of the shard's weights.
    Weights,
    /// Sparse layers.
    Layers,
    /// Elements per row.
    Hidden,
    /// Element type of rows.
    Activation,
}

impl Hello {
    /// Appends the frame.
    pub fn encode(&self, out: &mut BytesMut) -> Result<(), WireError> {
        encode(out, FrameKind::Hello, self)
    }

    /// Parses a frame's payload.
    pub fn decode(payload: &[u8]) -> Result<Self, GreetingError> {
        decode(FrameKind::Hello, payload)
    }

    /// Whether this is the worker that the coordinator expects. Reports the first difference.
    pub fn check(&self, worker: &Welcome) -> Result<(), Mismatch> {
        same(Subject::Build, &self.build, &worker.build)?;
        same(Subject::Model, &Hex(self.fingerprint), &Hex(worker.fingerprint))?;
        same(Subject::Shard, &self.shard, &worker.shard)?;
        same(Subject::Range, &self.range, &worker.range)?;
        if let Some(expected) = self.weights {
            let held =
                worker.weights.map_or_else(|| "no digest".to_owned(), |digest| Hex(digest).to_string());
            same(Subject::Weights, &Hex(expected).to_string(), &held)?;
        }
        same(Subject::Layers, &Layers(&self.sparse_layers), &Layers(&worker.sparse_layers))?;
        same(Subject::Hidden, &self.hidden, &worker.hidden)?;
        if !worker.activations.contains(&self.activation) {
            return Err(Mismatch {
                subject: Subject::Activation,
                coordinator: name(self.activation).to_owned(),
                worker: worker.activations.iter().map(|&a| name(a)).collect::<Vec<_>>().join(" or "),
            });
        }
        Ok(())
    }
}

impl Welcome {
    /// A worker that serves `bank`. The digest, free memory and sparse layers are the caller's to know.
    pub fn of(
        bank: &dyn ExpertBank,
        shard: ShardId,
        fingerprint: [u8; 32],
        hidden: u32,
        sparse_layers: Vec<LayerId>,
    ) -> Self {
        Self {
            build: super::BUILD.to_owned(),
            fingerprint,
            shard,
            range: bank.range(),
            weights: None,
            sparse_layers,
            hidden,
            activations: vec![ActivationType::Bf16, ActivationType::F32],
            backend: bank.backend().to_owned(),
            free_memory_bytes: 0,
            resident_bytes: bank.resident_bytes(),
        }
    }

    /// The hello that this worker answers without objection.
    pub fn expected_hello(&self, activation: ActivationType) -> Hello {
        Hello {
            build: self.build.clone(),
            fingerprint: self.fingerprint,
            shard: self.shard,
            range: self.range,
            weights: self.weights,
            sparse_layers: self.sparse_layers.clone(),
            hidden: self.hidden,
            activation,
        }
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut BytesMut) -> Result<(), WireError> {
        encode(out, FrameKind::Welcome, self)
    }

    /// Parses a frame's payload.
    pub fn decode(payload: &[u8]) -> Result<Self, GreetingError> {
        decode(FrameKind::Welcome, payload)
    }
}

impl Refusal {
    /// Appends the frame.
    pub fn encode(&self, out: &mut BytesMut) -> Result<(), WireError> {
        encode(out, FrameKind::Refusal, self)
    }

    /// Parses a frame's payload.
    pub fn decode(payload: &[u8]) -> Result<Self, GreetingError> {
        decode(FrameKind::Refusal, payload)
    }
}

/// Why a greeting could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GreetingError {
    /// The peer speaks this protocol version; the rest was not looked at.
    Version(u32),
    /// The bytes are wrong.
    Wire(WireError),
}

impl GreetingError {
    /// The difference in versions, seen from a coordinator (`ours` is its version) or a worker.
    pub fn version_mismatch(coordinator: u32, worker: u32) -> Mismatch {
        let (coordinator, worker) = (coordinator.to_string(), worker.to_string());
        Mismatch { subject: Subject::ProtocolVersion, coordinator, worker }
    }
}

impl Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ProtocolVersion => "protocol version",
            Self::Build => "release",
            Self::Model => "model fingerprint",
            Self::Shard => "shard",
            Self::Range => "expert range",
            Self::Weights => "weight digest",
            Self::Layers => "sparse layers",
            Self::Hidden => "row width",
            Self::Activation => "activation type",
        })
    }
}

impl Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, coordinator, worker } = self;
        write!(f, "{subject}: coordinator has {coordinator}, worker has {worker}")
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mismatch(mismatch) => mismatch.fmt(f),
            Self::Draining => f.write_str("worker is draining"),
            Self::Malformed(reason) => write!(f, "hello was malformed: {reason}"),
        }
    }
}

/// 32 bytes as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hex(pub [u8; 32]);

impl Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[derive(PartialEq)]
struct Layers<'a>(&'a [LayerId]);

impl Display for Layers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.first(), self.0.last()) {
            (Some(first), Some(last)) => write!(f, "{} layers, {}..={}", self.0.len(), first.0, last.0)?,
            _ => return f.write_str("none"),
        }
        // Equal counts and ends can still differ inside.
        write!(
            f,
            " (check {:08x})",
            self.0.iter().fold(0_u32, |sum, layer| sum.rotate_left(5) ^ u32::from(layer.0))
        )
    }
}

fn same<T: PartialEq + Display>(subject: Subject, coordinator: &T, worker: &T) -> Result<(), Mismatch> {
    if coordinator == worker {
        return Ok(());
    }
    Err(Mismatch { subject, coordinator: coordinator.to_string(), worker: worker.to_string() })
}

const fn name(activation: ActivationType) -> &'static str {
    match activation {
        ActivationType::Bf16 => "bf16",
        ActivationType::F32 => "f32",
    }
}

fn encode<T: Serialize>(out: &mut BytesMut, kind: FrameKind, message: &T) -> Result<(), WireError> {
    let bytes = codec::encode(kind.name(), message)?;
    begin_frame(out, kind, VERSION_BYTES + bytes.len())?;
    out.put_u32_le(PROTOCOL_VERSION);
    out.put_slice(&bytes);
    Ok(())
}

fn decode<T: DeserializeOwned>(kind: FrameKind, payload: &[u8]) -> Result<T, GreetingError> {
    let Some((version, message)) = payload.split_first_chunk::<VERSION_BYTES>() else {
        let (needed, got) = (VERSION_BYTES as u64, payload.len() as u64);
        return Err(GreetingError::Wire(WireError::Length { message: kind.name(), needed, got }));
    };
    match u32::from_le_bytes(*version) {
        PROTOCOL_VERSION => codec::decode(kind.name(), message).map_err(GreetingError::Wire),
        other => Err(GreetingError::Version(other)),
    }
}

const VERSION_BYTES: usize = size_of::<u32>();

/// Activation types as bits, so that the memory type needs no wire form of its own.
mod activation_bits {
    use super::ActivationType;

    const ALL: [(u8, ActivationType); 2] = [(1, ActivationType::Bf16), (2, ActivationType::F32)];

    fn bit(activation: ActivationType) -> u8 {
        ALL.iter().filter(|(_, a)| *a == activation).map(|(bit, _)| bit).sum()
    }

    pub(super) mod one {
        use serde::de::Error;
        use serde::{Deserialize, Deserializer, Serializer};

        use super::{ALL, ActivationType, bit};

        pub(crate) fn serialize<S: Serializer>(one: &ActivationType, to: S) -> Result<S::Ok, S::Error> {
            to.serialize_u8(bit(*one))
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ActivationType, D::Error> {
            let bits = u8::deserialize(from)?;
            let found = ALL.iter().find(|(bit, _)| *bit == bits).map(|(_, activation)| *activation);
            found.ok_or_else(|| D::Error::custom("unknown activation type"))
        }
    }

    pub(super) mod set {
        use serde::{Deserialize, Deserializer, Serializer};

        use super::{ALL, ActivationType, bit};

        pub(crate) fn serialize<S: Serializer>(set: &[ActivationType], to: S) -> Result<S::Ok, S::Error> {
            to.serialize_u8(set.iter().fold(0, |bits, one| bits | bit(*one)))
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<Vec<ActivationType>, D::Error> {
            let bits = u8::deserialize(from)?;
            Ok(ALL.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, activation)| *activation).collect())
        }
    }
}

#[cfg(test)]
mod tests;
