//! Statistics.
use crate::stream::EventStream;
use serde::Serialize;

/// Numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Statistics {
    /// Events.
    pub events: u64,
}

impl Statistics {
    /// Measures.
    pub fn of(_stream: &EventStream) -> Statistics {
        unimplemented!()
    }
}
