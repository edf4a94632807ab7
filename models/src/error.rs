//! What can go wrong in this crate before the maths starts: an impossible configuration, or state that does not fit.
//!
//! Shapes inside a forward pass are invariants of the pipeline, so a broken one is a bug and panics there.

/// An error of this crate, with the facts of the mistake.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A configuration value that no model can have.
    #[error("model.{key} = {value}: {reason}; {mend}")]
    InvalidConfig {
        /// The key, without its table.
        key: &'static str,
        /// The offending value as written.
        value: String,
        /// Why it is impossible.
        reason: String,
        /// What to write instead.
        mend: String,
    },
    /// A flat buffer (values, moments) whose length is not the model's parameter count.
    #[error(
        "{what} holds {got} numbers, the model has {expected} parameters; was it written by another configuration?"
    )]
    ParameterCount {
        /// Which buffer.
        what: &'static str,
        /// Parameters of the model.
        expected: i64,
        /// Numbers in the buffer.
        got: i64,
    },
    /// A parameter that the model does not have.
    #[error("the model has no parameter {name}")]
    UnknownParameter {
        /// The name asked for.
        name: String,
    },
    /// Values that do not fit their parameter.
    #[error("parameter {name} is {expected:?}, the given values are {got:?}")]
    ParameterShape {
        /// Which parameter.
        name: String,
        /// Its shape.
        expected: Vec<i64>,
        /// The shape given.
        got: Vec<i64>,
    },
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
