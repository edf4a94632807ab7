//! Frames as they cross between processes: a payload, then a trailer that says what it is.
//!
//! The trailer is last so that a payload becomes a frame in its own buffer, and a frame a payload.

use super::desk::Lost;
use super::tag::Key;
use crate::error::Loss;
use serde::{Deserialize, Serialize};

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// For whoever takes the key.
    Message(Key),
    /// A sign of life.
    Beat(Echo),
    /// The sender will send nothing more than signs of life.
    Depart,
    /// A rank is lost; the payload says which and why.
    Lost,
    /// The sender's last frame: it has seen every rank depart.
    Farewell,
}

/// Returned with a sign of life, for the estimate of the clocks' offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Echo {
    /// When the receiver of this beat sent its own last one, by its clock; 0 before the first.
    pub(super) sent_ns: u64,
    /// How long the sender of this beat has had it.
    pub(super) held_ns: u64,
}

/// A frame taken apart.
#[derive(Debug, PartialEq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    /// By the sender's clock.
    pub(super) sent_ns: u64,
    pub(super) payload: Vec<u8>,
}

/// Frames at least this long are padded to whole blocks: MPI counts in `int`, so longer ones are sent as blocks.
pub(super) const BLOCKED_FROM: usize = 32 << 20;

/// Bytes of a block.
pub(super) const BLOCK: usize = 4096;

/// Kind, two words of its own, send time, payload length.
pub(super) const TRAILER: usize = 1 + 16 + 8 + 8;

impl Frame {
    /// Into one buffer.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        let Frame { kind, sent_ns, payload: mut bytes } = self;
        let length = bytes.len() as u64;
        if bytes.len() + TRAILER >= BLOCKED_FROM {
            bytes.resize((bytes.len() + TRAILER).next_multiple_of(BLOCK) - TRAILER, 0);
        }
        let (code, words) = kind.to_wire();
        bytes.reserve_exact(TRAILER);
        bytes.push(code);
        bytes.extend_from_slice(&words);
        bytes.extend_from_slice(&sent_ns.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes
    }

    /// From one buffer; `None` if another program wrote it.
    pub(super) fn from_bytes(mut bytes: Vec<u8>) -> Option<Frame> {
        let trailer: [u8; TRAILER] = *bytes.last_chunk()?;
        let word = |at: usize| Some(u64::from_le_bytes(trailer.get(at..at + 8)?.try_into().ok()?));
        let kind = Kind::from_wire(trailer[0], trailer[1..17].try_into().ok()?)?;
        let (sent_ns, length) = (word(17)?, usize::try_from(word(25)?).ok()?);
        if length > bytes.len() - TRAILER {
            return None;
        }
        bytes.truncate(length);
        Some(Frame { kind, sent_ns, payload: bytes })
    }

    /// The news that a rank is lost.
    pub(super) fn lost(lost: &Lost, sent_ns: u64) -> Frame {
        let news = News { rank: lost.rank, loss: lost.loss.clone() };
        Frame { kind: Kind::Lost, sent_ns, payload: serde_json::to_vec(&news).expect("plain words and numbers") }
    }

    /// Which rank is lost, if that is the news.
    pub(super) fn news(&self) -> Option<Lost> {
        let news: News = serde_json::from_slice(&self.payload).ok()?;
        Some(Lost { rank: news.rank, loss: news.loss })
    }
}

#[derive(Serialize, Deserialize)]
struct News {
    rank: usize,
    loss: Loss,
}

impl Kind {
    fn to_wire(self) -> (u8, [u8; 16]) {
        let mut words = [0; 16];
        let code = match self {
            Kind::Message(key) => {
                words[..Key::WIRE].copy_from_slice(&key.to_wire());
                0
            }
            Kind::Beat(echo) => {
                words[..8].copy_from_slice(&echo.sent_ns.to_le_bytes());
                words[8..].copy_from_slice(&echo.held_ns.to_le_bytes());
                1
            }
            Kind::Depart => 2,
            Kind::Lost => 3,
            Kind::Farewell => 4,
        };
        (code, words)
    }

    fn from_wire(code: u8, words: &[u8; 16]) -> Option<Kind> {
        let word = |at: usize| u64::from_le_bytes(words[at..at + 8].try_into().expect("eight bytes"));
        match code {
            0 => Key::from_wire(words[..Key::WIRE].try_into().ok()?).map(Kind::Message),
            1 => Some(Kind::Beat(Echo { sent_ns: word(0), held_ns: word(8) })),
            2 => Some(Kind::Depart),
            3 => Some(Kind::Lost),
            4 => Some(Kind::Farewell),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tag::{Purpose, Tag};
    use super::*;

    #[test]
    fn frames_survive_the_wire() {
        let key = Key::direct(Tag { purpose: Purpose::Commit, sequence: 12 << 32 | 7 });
        let beat = Echo { sent_ns: u64::MAX, held_ns: 3 };
        for kind in [Kind::Message(key), Kind::Beat(beat), Kind::Depart, Kind::Lost, Kind::Farewell] {
            for length in [0, 1, 100] {
                let frame = || Frame { kind, sent_ns: 99, payload: vec![7; length] };
                assert_eq!(frame().into_bytes().len(), length + TRAILER);
                assert_eq!(Frame::from_bytes(frame().into_bytes()), Some(frame()));
            }
        }
        assert_eq!(Frame::from_bytes(vec![0; TRAILER - 1]), None);
        assert_eq!(Frame::from_bytes(vec![255; 100]), None);
    }

    #[test]
    fn long_frames_are_whole_blocks() {
        for length in [BLOCKED_FROM - TRAILER - 1, BLOCKED_FROM - TRAILER, BLOCKED_FROM + 5] {
            let bytes = Frame { kind: Kind::Depart, sent_ns: 1, payload: vec![3; length] }.into_bytes();
            assert!(bytes.len() < BLOCKED_FROM || bytes.len().is_multiple_of(BLOCK));
            assert_eq!(Frame::from_bytes(bytes).expect("a frame").payload, vec![3; length]);
        }
    }

    #[test]
    fn news_name_the_rank_and_why() {
        for loss in [
            Loss::Failed { sentence: "no such file".to_owned(), exit_code: 2 },
            Loss::Panicked,
            Loss::Silent { seconds: 2.5 },
            Loss::Unreachable { problem: "reset".to_owned() },
        ] {
            let lost = Lost { rank: 3, loss };
            assert_eq!(Frame::lost(&lost, 5).news(), Some(lost));
        }
        assert_eq!(Frame { kind: Kind::Lost, sent_ns: 0, payload: vec![1] }.news(), None);
    }
}
