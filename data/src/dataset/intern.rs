//! From raw ids to dense ids: provisional numbers in order of appearance, replaced by ranks once all ids are known.

use crate::error::{Error, FaultKind, Result};
use crate::stream::{IdMap, SpaceIds, Strings};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Ids of one column, interned.
#[derive(Debug)]
pub(crate) enum Interner {
    Integers(HashMap<i64, u32, BuildHasherDefault<IntegerHasher>>),
    Texts(HashMap<Box<str>, u32>),
}

/// Why an id was not taken.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The column so far held integers and this is none: read the file again with text ids.
    NotInteger,
    /// The id itself is faulty.
    Fault(FaultKind),
}

impl Interner {
    pub(crate) fn new(text: bool) -> Interner {
        if text { Interner::Texts(HashMap::new()) } else { Interner::Integers(HashMap::default()) }
    }

    /// The provisional number of an id.
    pub(crate) fn push(&mut self, raw: &[u8]) -> std::result::Result<u32, Refused> {
        if is_absent(raw) {
            return Err(Refused::Fault(FaultKind::AbsentId));
        }
        match self {
            Interner::Integers(_) => {
                let short = super::decimal::short_integer(raw);
                let id = short.or_else(|| whole_number(raw));
                Ok(self.push_integer(id.ok_or(Refused::NotInteger)?))
            }
            Interner::Texts(map) => {
                let text = std::str::from_utf8(raw).map_err(|_| Refused::Fault(FaultKind::NotUtf8))?;
                let next = map.len() as u32;
                match map.get(text) {
                    Some(&number) => Ok(number),
                    None => Ok(*map.entry(text.into()).or_insert(next)),
                }
            }
        }
    }

    /// The provisional number of an integer id.
    ///
    /// # Panics
    /// If the column holds texts.
    pub(crate) fn push_integer(&mut self, id: i64) -> u32 {
        let Interner::Integers(map) = self else { panic!("an integer among text ids") };
        let next = map.len() as u32;
        *map.entry(id).or_insert(next)
    }

    fn len(&self) -> usize {
        match self {
            Interner::Integers(map) => map.len(),
            Interner::Texts(map) => map.len(),
        }
    }

    /// How many ids two columns share, as they are written.
    pub(crate) fn shared(&self, other: &Interner) -> usize {
        match (self, other) {
            (Interner::Integers(a), Interner::Integers(b)) => a.keys().filter(|id| b.contains_key(id)).count(),
            (Interner::Texts(a), Interner::Texts(b)) => a.keys().filter(|id| b.contains_key(*id)).count(),
            (Interner::Integers(a), Interner::Texts(b)) | (Interner::Texts(b), Interner::Integers(a)) => {
                a.keys().filter(|id| b.contains_key(id.to_string().as_str())).count()
            }
        }
    }

    /// Whether two columns hold ids of one kind, as a shared space needs.
    pub(crate) fn same_kind(&self, other: &Interner) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// An integer that is not short, or one written as `12.0` (as programs do whose id column once had gaps).
fn whole_number(raw: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(raw).ok()?;
    let digits = match text.split_once('.') {
        Some((digits, zeros)) if !zeros.is_empty() && zeros.bytes().all(|b| b == b'0') => digits,
        Some(_) => return None,
        None => text,
    };
    digits.parse().ok()
}

/// An empty field or a NaN.
pub(crate) fn is_absent(raw: &[u8]) -> bool {
    raw.is_empty() || raw.eq_ignore_ascii_case(b"nan")
}

/// Dense ids of provisional numbers, of sources and of destinations.
pub(crate) struct Ranks {
    pub(crate) ids: IdMap,
    pub(crate) source: Vec<u32>,
    pub(crate) destination: Vec<u32>,
}

/// Sorts the ids into one or two spaces.
///
/// # Errors
/// If there are more nodes than 32-bit ids.
///
/// # Panics
/// If one space is asked for and the columns' kinds differ.
pub(crate) fn rank(source: Interner, destination: Interner, bipartite: bool) -> Result<Ranks> {
    let found = (source.len() + destination.len()) as u64;
    if found >= u64::from(u32::MAX) {
        return Err(Error::TooMany { what: "nodes", found });
    }
    if bipartite {
        let (a, b) = (spaces(source, None), spaces(destination, None));
        let border = a.0.len() as u32;
        let destination = b.1.into_iter().map(|rank| rank + border).collect();
        return Ok(Ranks { ids: IdMap { source: a.0, destination: Some(b.0) }, source: a.1, destination });
    }
    let (ids, source, destination) = spaces(source, Some(destination));
    Ok(Ranks { ids: IdMap { source: ids, destination: None }, source, destination })
}

fn spaces(first: Interner, second: Option<Interner>) -> (SpaceIds, Vec<u32>, Vec<u32>) {
    match (first, second) {
        (Interner::Integers(a), None) => integers(a, HashMap::default()),
        (Interner::Integers(a), Some(Interner::Integers(b))) => integers(a, b),
        (Interner::Texts(a), None) => texts(a, HashMap::new()),
        (Interner::Texts(a), Some(Interner::Texts(b))) => texts(a, b),
        _ => panic!("one id space of integers and texts"),
    }
}

type IntegerMap = HashMap<i64, u32, BuildHasherDefault<IntegerHasher>>;

fn integers(a: IntegerMap, b: IntegerMap) -> (SpaceIds, Vec<u32>, Vec<u32>) {
    let (ids, a, b) = merge(a, b);
    (SpaceIds::Integers(ids.into()), a, b)
}

fn texts(a: HashMap<Box<str>, u32>, b: HashMap<Box<str>, u32>) -> (SpaceIds, Vec<u32>, Vec<u32>) {
    let (ids, a, b) = merge(a, b);
    (SpaceIds::Texts(Strings::new(ids.iter().map(|id| &**id))), a, b)
}

/// The sorted union of two maps' keys, and each map's provisional numbers as ranks in it.
fn merge<K: Ord, S>(a: HashMap<K, u32, S>, b: HashMap<K, u32, S>) -> (Vec<K>, Vec<u32>, Vec<u32>) {
    let mut ranks = [vec![0; a.len()], vec![0; b.len()]];
    let tagged = a.into_iter().map(|(id, number)| (id, 0, number));
    let mut all: Vec<(K, usize, u32)> = tagged.chain(b.into_iter().map(|(id, number)| (id, 1, number))).collect();
    all.sort_unstable();
    let mut ids: Vec<K> = Vec::with_capacity(all.len());
    for (id, map, number) in all {
        if ids.last() != Some(&id) {
            ids.push(id);
        }
        ranks[map][number as usize] = ids.len() as u32 - 1;
    }
    let [a, b] = ranks;
    (ids, a, b)
}

/// Mixes an integer by two multiplications; the keys are a file's own ids, not an adversary's.
#[derive(Debug, Default)]
pub(crate) struct IntegerHasher(u64);

impl Hasher for IntegerHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(u64::from(b)));
    }

    fn write_i64(&mut self, value: i64) {
        self.write_u64(value as u64);
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value ^ value >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        self.0 = (mixed ^ mixed >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    }
}
