//! How bytes from the other end, or a batch to be sent, can be wrong.

/// A frame or message that cannot be taken as it is. Names the numbers compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The frame header names a kind this version does not have.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// The three reserved bytes of a frame header are not zero.
    #[error("reserved bytes of the frame header are not zero")]
    Reserved,
    /// The frame claims, or would need, more bytes than its kind may have.
    #[error("{kind} frame of {length} bytes exceeds the limit of {limit}")]
    TooLong {
        /// Name of the kind.
        kind: &'static str,
        /// Payload bytes claimed.
        length: u64,
        /// Payload bytes allowed.
        limit: u64,
    },
    /// The message's own numbers ask for another length than the frame has.
    #[error("{message} needs {needed} bytes, frame has {got}")]
    Length {
        /// Name of the message.
        message: &'static str,
        /// Bytes its header asks for.
        needed: u64,
        /// Bytes present.
        got: u64,
    },
    /// Bytes are left over after a control message.
    #[error("{message} has {extra} bytes too many")]
    Trailing {
        /// Name of the message.
        message: &'static str,
        /// Bytes left over.
        extra: usize,
    },
    /// A control message does not decode.
    #[error("{message} does not decode: {reason}")]
    Undecodable {
        /// Name of the message.
        message: &'static str,
        /// What the codec said.
        reason: String,
    },
    /// Activation code outside the protocol.
    #[error("unknown activation type {0}")]
    UnknownActivation(u8),
    /// Flags or padding that must be zero are not.
    #[error("{0} must be zero")]
    NotZero(&'static str),
    /// A batch without rows, or rows without width.
    #[error("{0} is zero")]
    Empty(&'static str),
    /// Row `row` names no expert.
    #[error("row {row} has no experts")]
    NoExperts {
        /// Index of the row.
        row: usize,
    },
    /// The per-row counts do not add up to the number of slots.
    #[error("counts add up to {sum}, {slots} slots are given")]
    CountSum {
        /// Sum of the counts.
        sum: u64,
        /// Slots given.
        slots: u64,
    },
    /// A router weight is NaN or infinite.
    #[error("weight of slot {slot} is not finite")]
    WeightNotFinite {
        /// Index of the slot.
        slot: usize,
    },
    /// A number does not fit its field.
    #[error("{what} {value} does not fit, at most {limit}")]
    OutOfRange {
        /// Name of the number.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Its limit.
        limit: u64,
    },
}
