//! Counter-based randomness: Philox4x32-10 (Salmon et al., SC 2011).
//!
//! A draw is a pure function of its key, never of the thread, the rank or the order in which draws are made. That is what
//! lets any rank compute any negative, neighbor sample or dropout mask and find the same words.

/// What a draw is for. Distinct purposes never share words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Purpose {
    /// Negative destinations of training events.
    TrainNegative = 1,
    /// Negative destinations of validation and test events.
    EvalNegative = 2,
    /// Uniform neighbor draws.
    Neighbor = 3,
    /// Dropout masks.
    Dropout = 4,
    /// Initial parameters.
    Parameter = 5,
    /// The nodes held out as new.
    NewNode = 6,
    /// Random edge features asked for on the command line.
    Feature = 7,
    /// Synthetic streams.
    Generate = 8,
}

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// One Philox4x32-10 block: four words from a counter and a key.
#[inline]
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let a = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
    }
    counter
}

/// A key under which words are drawn: a seed narrowed step by step, each step one Philox block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key([u32; 2]);

impl Key {
    /// The key of one purpose under a run's seed.
    pub fn new(seed: u64, purpose: Purpose) -> Key {
        Key([seed as u32, (seed >> 32) as u32]).narrow([purpose as u32, 0, 0, 0])
    }

    /// The key of one of 2^128 sub-streams, such as `[epoch, batch, node, 0]`.
    #[inline]
    pub fn narrow(self, by: [u32; 4]) -> Key {
        let words = philox4x32(by, self.0);
        Key([words[0] ^ words[2], words[1] ^ words[3]])
    }

    /// The key of one instant, in nanoseconds since the file's zero, so that copies of a stream in other units agree.
    #[inline]
    pub fn at(self, node: u32, nanoseconds: i64, level: u32) -> Key {
        self.narrow([node, nanoseconds as u32, (nanoseconds >> 32) as u32, level])
    }

    /// Four words of block `index`.
    #[inline]
    pub fn block(self, index: u64) -> [u32; 4] {
        philox4x32([index as u32, (index >> 32) as u32, 0, 0x7469_6465], self.0)
    }

    /// The leading words of each of many keys [`Key::at`], as `of` takes them: `out` is cut into a part for each of `places`
    /// (node, nanoseconds), part i holds words `0..` of key `at(places[i], level)`. Faster than one by one.
    ///
    /// # Panics
    /// If `out` can not be cut evenly.
    pub fn words_at<T: Copy>(self, places: &[(u32, i64)], level: u32, out: &mut [T], of: impl Fn(u32) -> T) {
        assert!(out.len().checked_rem(places.len()).unwrap_or(out.len()) == 0, "as many words for each place");
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2, which is all that the function asks for.
            return unsafe { words_at_avx2(self, places, level, out, of) };
        }
        words_at(self, places, level, out, of);
    }

    /// Word `index` of this key's stream.
    #[inline]
    pub fn word(self, index: u64) -> u32 {
        self.block(index / 4)[(index % 4) as usize]
    }

    /// An index in `0..n`, from word `index`. Its bias is below `n / 2^32`.
    #[inline]
    pub fn below(self, index: u64, n: u32) -> u32 {
        ((u64::from(self.word(index)) * u64::from(n)) >> 32) as u32
    }

    /// An integer below `n`, from block `index`; `n` far below 2^64.
    pub fn below_u64(self, index: u64, n: u64) -> u64 {
        let words = self.block(index);
        let word = u64::from(words[0]) << 32 | u64::from(words[1]);
        ((u128::from(word) * u128::from(n)) >> 64) as u64
    }

    /// Uniform in `[0, 1)` with 53 bits, from block `index`.
    pub fn uniform(self, index: u64) -> f64 {
        unit(self.block(index), 0)
    }

    /// Standard normal by Box-Muller, from block `index`.
    pub fn normal(self, index: u64) -> f64 {
        let words = self.block(index);
        let radius = (-2.0 * (1.0 - unit(words, 0)).ln()).sqrt();
        radius * (std::f64::consts::TAU * unit(words, 2)).cos()
    }
}

/// Keys that are stepped side by side.
const LANES: usize = 8;
type Lanes = [u32; LANES];

/// Eight blocks at once, each with a counter and a key of its own: loops that the compiler turns into vector instructions.
#[inline(always)]
fn philox_lanes(mut counter: [Lanes; 4], mut key: [Lanes; 2]) -> [Lanes; 4] {
    for round in 0..10 {
        if round > 0 {
            for (lanes, weyl) in key.iter_mut().zip(WEYL) {
                lanes.iter_mut().for_each(|lane| *lane = lane.wrapping_add(weyl));
            }
        }
        let mut next = [[0; LANES]; 4];
        for l in 0..LANES {
            let a = u64::from(MULTIPLIERS[0]) * u64::from(counter[0][l]);
            let b = u64::from(MULTIPLIERS[1]) * u64::from(counter[2][l]);
            next[0][l] = (b >> 32) as u32 ^ counter[1][l] ^ key[0][l];
            next[1][l] = b as u32;
            next[2][l] = (a >> 32) as u32 ^ counter[3][l] ^ key[1][l];
            next[3][l] = a as u32;
        }
        counter = next;
    }
    counter
}

#[inline(always)]
fn words_at<T: Copy>(key: Key, places: &[(u32, i64)], level: u32, out: &mut [T], of: impl Fn(u32) -> T) {
    let words = out.len() / places.len().max(1);
    if words == 0 {
        return;
    }
    for (places, out) in places.chunks(LANES).zip(out.chunks_mut(LANES * words)) {
        let mut by = [[0; LANES], [0; LANES], [0; LANES], [level; LANES]];
        for (l, &(node, nanoseconds)) in places.iter().enumerate() {
            (by[0][l], by[1][l], by[2][l]) = (node, nanoseconds as u32, (nanoseconds >> 32) as u32);
        }
        let narrowed = philox_lanes(by, [[key.0[0]; LANES], [key.0[1]; LANES]]);
        let mut keys = [[0; LANES]; 2];
        for l in 0..LANES {
            (keys[0][l], keys[1][l]) = (narrowed[0][l] ^ narrowed[2][l], narrowed[1][l] ^ narrowed[3][l]);
        }
        for block in 0..words.div_ceil(4) {
            let low = block as u32; // as in `Key::block`, for the first 2^32 blocks
            let drawn = philox_lanes([[low; LANES], [0; LANES], [0; LANES], [0x7469_6465; LANES]], keys);
            for (l, out) in out.chunks_mut(words).enumerate() {
                for (place, word) in out[4 * block..].iter_mut().zip(&drawn) {
                    *place = of(word[l]);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn words_at_avx2<T: Copy>(key: Key, places: &[(u32, i64)], level: u32, out: &mut [T], of: impl Fn(u32) -> T) {
    words_at(key, places, level, out, of);
}

/// 53 bits of two neighbouring words as a fraction of one.
fn unit(words: [u32; 4], at: usize) -> f64 {
    let bits = (u64::from(words[at]) << 32 | u64::from(words[at + 1])) >> 11;
    bits as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of the Random123 distribution (`kat_vectors`, philox4x32 10 rounds).
    #[test]
    fn known_answers() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, want) in cases {
            assert_eq!(philox4x32(counter, key), want);
        }
    }

    #[test]
    fn below_is_flat_and_in_range() {
        let key = Key::new(7, Purpose::TrainNegative);
        let mut seen = [0u32; 10];
        for i in 0..100_000 {
            seen[key.below(i, 10) as usize] += 1;
        }
        // chi-square with 9 degrees of freedom: 27.9 is passed once in a thousand draws
        let chi: f64 = seen.iter().map(|&n| (f64::from(n) - 10_000.0).powi(2) / 10_000.0).sum();
        assert!(chi < 27.9, "{seen:?}: {chi}");
    }

    #[test]
    fn normal_has_unit_moments() {
        let key = Key::new(7, Purpose::Parameter);
        let draws: Vec<f64> = (0..100_000).map(|i| key.normal(i)).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    }

    /// Side by side or one by one, with any number of places and words, the words are the same.
    #[test]
    fn words_of_many_keys_at_once() {
        let key = Key::new(3, Purpose::Dropout).narrow([1, 2, 0, 0]);
        for count in [0usize, 1, 7, 8, 9, 23] {
            let places: Vec<(u32, i64)> =
                (0..count as u32).map(|i| (i / 2, i64::from(i) * 77_777_777_777 - 5)).collect();
            for words in [0, 1, 4, 5, 20] {
                let mut out = vec![0; count * words];
                let mut plain = out.clone();
                key.words_at(&places, 3, &mut out, |word| word);
                words_at(key, &places, 3, &mut plain, |word| word);
                let single = |&(node, t): &(u32, i64)| (0..words as u64).map(move |i| key.at(node, t, 3).word(i));
                let want: Vec<u32> = places.iter().flat_map(single).collect();
                assert_eq!((&out, &plain), (&want, &want), "{count} places, {words} words");
            }
        }
    }

    #[test]
    fn purposes_and_sub_streams_differ() {
        let key = Key::new(0, Purpose::Dropout);
        assert_ne!(key.block(0), Key::new(0, Purpose::Neighbor).block(0));
        assert_ne!(key.narrow([0, 0, 0, 1]).block(0), key.narrow([0, 0, 1, 0]).block(0));
        assert_ne!(key.at(1, 5, 0).block(0), key.at(1, 5 + (1 << 32), 0).block(0));
    }
}
