//! Synthetic streams with the shape of published ones, so that everything runs without a download.
//!
//! Kept of the shape: the counts (events, users, items, features, days, positive labels), heavy-tailed activity of users
//! (log-normal) and popularity of items (a power law), returns (a user mostly acts on the item it acted on last, seldom
//! on an older one, seldom on a new one; rates as in the wikipedia stream) and bursts (sessions with short gaps, a daily
//! rhythm). A model with memory can learn it. Everything is drawn by Philox: a seed names a stream. Metadata say that it
//! is synthetic.
//!
//! Labels depend on history: a user whose last event is labelled 1 behaves otherwise in the few events before it (a new
//! item at each, in quick succession, as before a ban). So a model that remembers can tell, and one that does not cannot.
//!
//! Two knobs make a stream harder to share between workers. *Skew* sends a share of all events to one item. *Drift* lets
//! the hot nodes move: users and items lie on a ring by their ids, an arc of it is hot and goes round once from the first
//! to the last event, and a share of the sessions and of the newly met items is taken from the arc that is hot then.
//!
//! Absent on purpose: any claim that a score on such a stream says something about the real one.

use crate::error::{Error, Result};
use crate::philox::{Key, Purpose};
use crate::stream::{EventColumns, EventStream, IdMap, SpaceIds, StreamMeta, Tick};
use arrow::buffer::Buffer;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// The published stream whose shape is copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// A month of edits of pages by users: 157,474 events, 8,227 users, 1,000 items, 217 positive labels.
    #[default]
    Wikipedia,
    /// A month of posts in communities: 672,447 events, 10,000 users, 984 items.
    Reddit,
    /// A month of actions in an online course: 411,749 events, 7,047 users, 97 items, 4,066 positive labels.
    Mooc,
    /// Four years of songs heard: 1,293,103 events, 980 users, 1,000 items.
    Lastfm,
}

/// What to generate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerateConfig {
    /// The shape.
    pub preset: Preset,
    /// Events; absent: the preset's.
    pub events: Option<usize>,
    /// Nodes, users and items in the preset's proportion; absent: the preset's, fewer if there are fewer events.
    pub nodes: Option<usize>,
    /// Width D_e of the features; 0 for none (the published streams have 172).
    pub features: usize,
    /// Share of the events, from 0 to 0.95, that go to one item beside what it has anyway; 0 keeps the preset's tail.
    pub skew: f64,
    /// Share of the activity, from 0 to 1, that follows the hot nodes; 0 for none.
    pub drift: f64,
    /// Seed.
    pub seed: u64,
}

/// Standard deviations above the median at which the log-normal activity of users is cut.
const BUSIEST: f64 = 2.9;
/// Share of the ring of nodes that is hot at a time, under drift.
const HOT_ARC: f64 = 0.2;
/// Width of the features of the published streams.
pub const PUBLISHED_FEATURES: usize = 172;

struct Shape {
    name: &'static str,
    events: usize,
    users: usize,
    items: usize,
    positives: usize,
    /// Seconds from the first to the last event.
    span: i64,
    /// Standard deviation of the logarithm of users' activity.
    user_spread: f64,
    /// Exponent of items' popularity over their rank.
    item_exponent: f64,
    /// Chance that an event repeats the user's latest item, and that it returns to an older one; else a new one.
    same: f64,
    older: f64,
    /// See [`GenerateConfig`].
    skew: f64,
    drift: f64,
}

impl Preset {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Wikipedia => "wikipedia",
            Preset::Reddit => "reddit",
            Preset::Mooc => "mooc",
            Preset::Lastfm => "lastfm",
        }
    }

    fn shape(self) -> Shape {
        match self {
            Preset::Wikipedia => Shape {
                name: "synthetic-wikipedia",
                events: 157_474,
                users: 8_227,
                items: 1_000,
                positives: 217,
                span: 2_678_373,
                user_spread: 2.12,
                item_exponent: 0.47,
                same: 0.835,
                older: 0.098,
                skew: 0.0,
                drift: 0.0,
            },
            Preset::Reddit => Shape {
                name: "synthetic-reddit",
                events: 672_447,
                users: 10_000,
                items: 984,
                positives: 366,
                span: 2_678_390,
                user_spread: 1.2,
                item_exponent: 0.8,
                same: 0.60,
                older: 0.285,
                skew: 0.0,
                drift: 0.0,
            },
            Preset::Mooc => Shape {
                name: "synthetic-mooc",
                events: 411_749,
                users: 7_047,
                items: 97,
                positives: 4_066,
                span: 2_572_086,
                user_spread: 1.0,
                item_exponent: 0.5,
                same: 0.20,
                older: 0.30,
                skew: 0.0,
                drift: 0.0,
            },
            Preset::Lastfm => Shape {
                name: "synthetic-lastfm",
                events: 1_293_103,
                users: 980,
                items: 1_000,
                positives: 0,
                span: 137_107_267,
                user_spread: 1.0,
                item_exponent: 0.6,
                same: 0.10,
                older: 0.68,
                skew: 0.0,
                drift: 0.0,
            },
        }
    }
}

/// Words of one user are keyed by what they are for.
#[derive(Clone, Copy)]
enum Draw {
    Activity = 1,
    Session = 2,
    Gap = 3,
    Choice = 4,
    Item = 5,
    Older = 6,
    Label = 7,
    ItemVector = 8,
    EventVector = 9,
    Hub = 10,
    DriftSession = 11,
    DriftItem = 12,
    Rank = 13,
    Farewell = 14,
}

fn draws(seed: u64, what: Draw, of: u32) -> Key {
    Key::new(seed, Purpose::Generate).narrow([what as u32, of, 0, 0])
}

/// Generates a stream.
///
/// # Errors
/// If there are too few events for the nodes, or too few nodes.
pub fn generate(config: &GenerateConfig) -> Result<EventStream> {
    let shape = config.sized()?;
    let activity = activity(&shape, config.seed);
    let popularity = Popularity::new(&shape, config.seed);
    let leaving = positives(&shape, config.seed, &activity);
    let users: Vec<Vec<(i64, u32)>> = activity
        .into_par_iter()
        .enumerate()
        .map(|(user, events)| user_events(&shape, &popularity, config.seed, user, events, leaving[user]))
        .collect();
    let columns = columns(&shape, config, &users, &leaving);
    let ids = IdMap {
        source: SpaceIds::Integers((0..shape.users as i64).collect()),
        destination: Some(SpaceIds::Integers((0..shape.items as i64).collect())),
    };
    let meta = StreamMeta {
        name: shape.name.to_owned(),
        synthetic: true,
        tick: Tick::SECOND,
        bipartite: true,
        nodes: ids.nodes(),
        first_destination: ids.first_destination(),
        events: shape.events as u64,
        label_column: Some("state_label".to_owned()),
        feature_columns: Vec::new(),
    };
    EventStream::from_columns(meta, ids, columns)
}

impl GenerateConfig {
    /// The preset's shape at the wanted size.
    fn sized(&self) -> Result<Shape> {
        self.check_shares()?;
        let mut shape = Shape { skew: self.skew, drift: self.drift, ..self.preset.shape() };
        let published = (shape.events, shape.users + shape.items);
        let events = self.events.unwrap_or(published.0);
        let fitting = (published.1 as f64 * (events as f64 / published.0 as f64).min(1.0)) as usize;
        let nodes = self.nodes.unwrap_or(fitting.max(8));
        if nodes < 4 {
            return Err(Error::setting("nodes", nodes, "at least 4 nodes are needed"));
        }
        let items = (nodes as f64 * shape.items as f64 / published.1 as f64).round().max(2.0) as usize;
        let least = (nodes - items) * items.div_ceil(nodes - items);
        if events < least {
            let mend = format!("every node has an event: give at least {least} events or fewer nodes");
            return Err(Error::setting("events", events, mend));
        }
        if events as u64 >= u64::from(u32::MAX) {
            return Err(Error::TooMany { what: "events", found: events as u64 });
        }
        let share = events as f64 / published.0 as f64;
        shape.positives = ((shape.positives as f64 * share).round() as usize).min(nodes - items);
        (shape.events, shape.items, shape.users) = (events, items, nodes - items);
        Ok(shape)
    }

    fn check_shares(&self) -> Result<()> {
        if !(0.0..=0.95).contains(&self.skew) {
            return Err(Error::setting(
                "skew",
                self.skew,
                "give the busiest item's share of the events, from 0 to 0.95",
            ));
        }
        if !(0.0..=1.0).contains(&self.drift) {
            return Err(Error::setting("drift", self.drift, "give the share of the activity that moves, from 0 to 1"));
        }
        Ok(())
    }
}

impl Shape {
    /// The item that this user is to act on in event `k`, so that each item occurs. Under drift both lie at one place of
    /// the ring.
    fn introduced(&self, user: usize, k: usize) -> Option<u32> {
        if self.drift == 0.0 || self.items > self.users {
            let item = user + k * self.users;
            return (item < self.items).then_some(item as u32);
        }
        if k > 0 {
            return None;
        }
        let item = (user * self.items).div_ceil(self.users);
        (item < self.items && item * self.users / self.items == user).then_some(item as u32)
    }

    /// A node's place on the ring, in `[0, 1)`.
    fn place(at: usize, of: usize) -> f64 {
        (at as f64 + 0.5) / of as f64
    }
}

/// Events of each user: at least one (as many as introduce the items), and a log-normal share of the rest.
fn activity(shape: &Shape, seed: u64) -> Vec<usize> {
    let least = shape.items.div_ceil(shape.users).max(1);
    let key = draws(seed, Draw::Activity, 0);
    let weights: Vec<f64> =
        (0..shape.users as u64).map(|u| (shape.user_spread * key.normal(u).min(BUSIEST)).exp()).collect();
    let (rest, sum) = ((shape.events - least * shape.users) as f64, weights.iter().sum::<f64>());
    let (mut seen, mut given) = (0.0, 0usize);
    let last = weights.len() - 1;
    weights
        .iter()
        .enumerate()
        .map(|(user, weight)| {
            seen += weight;
            let until = if user == last { rest as usize } else { (rest * seen / sum) as usize };
            let more = until - given;
            given = until;
            least + more
        })
        .collect()
}

/// Draws items by popularity.
struct Popularity {
    cumulative: Vec<f64>,
}

impl Popularity {
    /// The lowest ids are the most popular; under drift popular items lie all over the ring.
    fn new(shape: &Shape, seed: u64) -> Popularity {
        let mut ranks: Vec<usize> = (0..shape.items).collect();
        if shape.drift > 0.0 {
            let key = draws(seed, Draw::Rank, 0);
            ranks.sort_by_key(|&item| (key.word(item as u64), item));
        }
        let mut sum = 0.0;
        let cumulative = ranks.into_iter().map(|rank| {
            sum += ((rank + 1) as f64).powf(-shape.item_exponent);
            sum
        });
        Popularity { cumulative: cumulative.collect() }
    }

    fn item(&self, uniform: f64) -> u32 {
        self.at(uniform * self.total())
    }

    /// An item of the arc of [`HOT_ARC`] around a place of the ring.
    fn item_near(&self, place: f64, uniform: f64) -> u32 {
        let items = self.cumulative.len();
        let first = ((place - HOT_ARC / 2.0).rem_euclid(1.0) * items as f64) as usize % items;
        let end = first + ((HOT_ARC * items as f64).ceil() as usize).min(items);
        let below = |end: usize| match end {
            0 => 0.0,
            _ if end > items => self.total() + self.cumulative[end - items - 1],
            _ => self.cumulative[end - 1],
        };
        let wanted = below(first) + uniform * (below(end) - below(first));
        self.at(if wanted >= self.total() { wanted - self.total() } else { wanted })
    }

    fn total(&self) -> f64 {
        self.cumulative.last().copied().unwrap_or(0.0)
    }

    fn at(&self, wanted: f64) -> u32 {
        self.cumulative.partition_point(|&c| c <= wanted).min(self.cumulative.len() - 1) as u32
    }
}

/// Times and items of one user, in time order.
fn user_events(
    shape: &Shape,
    popularity: &Popularity,
    seed: u64,
    user: usize,
    events: usize,
    leaves: bool,
) -> Vec<(i64, u32)> {
    let times = times(shape, seed, user as u32, events, leaves);
    let farewell = if leaves { farewell(events) } else { 0 };
    let of = |what| draws(seed, what, user as u32);
    let (choice, fresh, older) = (of(Draw::Choice), of(Draw::Item), of(Draw::Older));
    let (hub, moving) = (of(Draw::Hub), of(Draw::DriftItem));
    let new_item = |k: usize, time: i64| {
        let uniform = fresh.uniform(k as u64);
        if shape.drift > 0.0 && moving.uniform(k as u64) < shape.drift {
            popularity.item_near(time as f64 / shape.span as f64, uniform)
        } else {
            popularity.item(uniform)
        }
    };
    // items in order of latest use
    let mut history = vec![shape.introduced(user, 0).unwrap_or_else(|| new_item(0, times[0]))];
    let step = |(k, time): (usize, i64)| {
        let introduced = shape.introduced(user, k);
        if shape.skew > 0.0 && introduced.is_none() && hub.uniform(k as u64) < shape.skew {
            return (time, 0);
        }
        if let Some(item) = introduced.filter(|_| k > 0) {
            history.insert(0, item);
            return (time, item);
        }
        let turn = if k + farewell >= events { 1.0 } else { choice.uniform(k as u64) };
        let place = if k == 0 || turn < shape.same {
            0
        } else if turn < shape.same + shape.older {
            older_place(older.uniform(k as u64), history.len())
        } else {
            let item = new_item(k, time);
            history.iter().position(|&known| known == item).unwrap_or_else(|| {
                history.push(item);
                history.len() - 1
            })
        };
        history[..=place].rotate_right(1);
        (time, history[0])
    };
    times.into_iter().enumerate().map(step).collect()
}

/// A place in the history behind the latest, near ones likelier: the chance falls as place^-1.5. The latest if it is alone.
fn older_place(uniform: f64, known: usize) -> usize {
    if known == 1 {
        return 0;
    }
    let farthest = (known as f64).powf(-0.5);
    let place = (1.0 - uniform * (1.0 - farthest)).powi(-2);
    (place as usize).clamp(1, known - 1)
}

/// Sessions at random hours of random days, with short gaps inside.
///
/// * `leaves`: the last few events come in quick succession.
fn times(shape: &Shape, seed: u64, user: u32, events: usize, leaves: bool) -> Vec<i64> {
    const CONTINUE: f64 = 0.75;
    let (session, gap) = (draws(seed, Draw::Session, user), draws(seed, Draw::Gap, user));
    let moving = draws(seed, Draw::DriftSession, user);
    let day = |k: u64| {
        let day = session.uniform(2 * k);
        if shape.drift > 0.0 && moving.uniform(k) < shape.drift {
            (Shape::place(user as usize, shape.users) + HOT_ARC * (day - 0.5)).rem_euclid(1.0)
        } else {
            day
        }
    };
    let mut now = 0.0;
    let mut times: Vec<i64> = (0..events as u64)
        .map(|k| {
            let ends = now >= shape.span as f64;
            if k == 0 || ends || gap.uniform(2 * k) > CONTINUE {
                now = session_start(shape.span as f64, day(k), session.uniform(2 * k + 1));
            } else {
                now += (150.0 * (1.2 * gap.normal(2 * k + 1)).exp()).min(1800.0);
            }
            (now as i64).clamp(0, shape.span)
        })
        .collect();
    times.sort_unstable();
    if leaves {
        let last = events - farewell(events);
        let mut now = times[last];
        for (k, time) in times[last..].iter_mut().enumerate().skip(1) {
            now += 2 + i64::from(draws(seed, Draw::Farewell, user).below(k as u64, 12));
            *time = now.min(shape.span);
        }
    }
    times
}

/// How many of a leaving user's events are unlike the others.
fn farewell(events: usize) -> usize {
    (events / 2).min(8)
}

/// A moment of a day with more going on at some hours than at others.
fn session_start(span: f64, day: f64, hour: f64) -> f64 {
    const DAY: f64 = 86_400.0;
    let days = (span / DAY).ceil();
    let hour = hour + 0.6 * (std::f64::consts::TAU * hour).sin() / std::f64::consts::TAU;
    (((day * days).floor() + hour) * DAY).min(span * (1.0 - hour * 1e-3))
}

/// Joins the users' events in time order.
fn columns(shape: &Shape, config: &GenerateConfig, users: &[Vec<(i64, u32)>], leaving: &[bool]) -> EventColumns {
    let mut events: Vec<(i64, u32, u32, bool)> = Vec::with_capacity(shape.events);
    for (user, own) in users.iter().enumerate() {
        let last = own.len() - 1;
        events.extend(own.iter().enumerate().map(|(k, &(time, item))| (time, user as u32, item, k == last)));
    }
    events.par_sort_by_key(|&(time, user, ..)| (time, user));
    let first = events.first().map_or(0, |e| e.0);
    let label = |&(_, user, _, last): &(i64, u32, u32, bool)| Some(i8::from(last && leaving[user as usize]));
    EventColumns {
        source: events.iter().map(|e| e.1).collect(),
        destination: events.iter().map(|e| shape.users as u32 + e.2).collect(),
        time: events.iter().map(|e| e.0 - first).collect(),
        row: (0..events.len() as u64).collect(),
        labels: Some(events.iter().map(label).collect()),
        features: (config.features > 0).then(|| Buffer::from_vec(features(shape, config, &events))),
        feature_dim: config.features,
        mapping: None,
    }
}

/// The users whose last event is labelled 1, as when they are banned after it: drawn among those with some history.
fn positives(shape: &Shape, seed: u64, activity: &[usize]) -> Vec<bool> {
    const SOME: usize = 12;
    let key = draws(seed, Draw::Label, 0);
    let mut order: Vec<usize> = (0..shape.users).collect();
    order.sort_by_key(|&user| (activity[user] < SOME, key.word(user as u64), user));
    let mut positive = vec![false; shape.users];
    order[..shape.positives].iter().for_each(|&user| positive[user] = true);
    positive
}

/// `[E, D_e]`: half the item's own vector, half noise, of unit variance.
fn features(shape: &Shape, config: &GenerateConfig, events: &[(i64, u32, u32, bool)]) -> Vec<f32> {
    let dim = config.features;
    let vector = |what: Draw, of: u32| {
        let key = draws(config.seed, what, of);
        (0..dim as u64).map(move |i| key.normal(i) as f32 * std::f32::consts::FRAC_1_SQRT_2)
    };
    let items: Vec<f32> = (0..shape.items as u32).flat_map(|item| vector(Draw::ItemVector, item)).collect();
    let mut rows = vec![0f32; events.len() * dim];
    rows.par_chunks_exact_mut(dim).enumerate().for_each(|(event, row)| {
        let item = events[event].2 as usize;
        let noise = vector(Draw::EventVector, event as u32);
        for ((x, own), noise) in row.iter_mut().zip(&items[item * dim..]).zip(noise) {
            *x = own + noise;
        }
    });
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Statistics;

    #[test]
    fn wikipedia_has_the_published_counts_and_shape() {
        let stream = generate(&GenerateConfig::default()).unwrap();
        let s = Statistics::of(&stream);
        assert_eq!((s.events, s.sources, s.destinations), (157_474, 8_227, 1_000));
        assert!(s.synthetic && s.bipartite);
        assert_eq!(s.labels.iter().find(|l| l.value == 1).unwrap().events, 217);
        // the real file: 88.4 % returns, the busiest 1 % of users have 25.6 % of the events, 152,757 distinct times
        assert!((0.86..0.91).contains(&s.repeat_share), "{}", s.repeat_share);
        assert!((0.18..0.40).contains(&s.source_degree.top_1_percent_share), "{:?}", s.source_degree);
        assert!((0.04..0.16).contains(&s.destination_degree.top_1_percent_share), "{:?}", s.destination_degree);
        assert!((2_600_000.0..2_678_374.0).contains(&s.span_seconds), "{}", s.span_seconds);
        assert!((140_000..157_474).contains(&s.distinct_times), "{}", s.distinct_times);
    }

    #[test]
    fn reddit_has_the_published_counts() {
        let s = Statistics::of(&generate(&GenerateConfig { preset: Preset::Reddit, ..Default::default() }).unwrap());
        assert_eq!((s.events, s.sources, s.destinations), (672_447, 10_000, 984));
        assert!((0.85..0.92).contains(&s.repeat_share), "{}", s.repeat_share);
    }

    #[test]
    fn mooc_and_lastfm_have_the_published_counts() {
        let of = |preset| Statistics::of(&generate(&GenerateConfig { preset, ..Default::default() }).unwrap());
        let (mooc, lastfm) = (of(Preset::Mooc), of(Preset::Lastfm));
        assert_eq!((mooc.events, mooc.sources, mooc.destinations), (411_749, 7_047, 97));
        assert_eq!((lastfm.events, lastfm.sources, lastfm.destinations), (1_293_103, 980, 1_000));
        assert_eq!(mooc.labels.iter().find(|l| l.value == 1).unwrap().events, 4_066);
        assert_eq!(lastfm.labels.iter().find(|l| l.value == 1), None);
        // distinct pairs of the published streams: 178,443 and 154,993
        assert!((120_000..240_000).contains(&mooc.distinct_pairs), "{}", mooc.distinct_pairs);
        assert!((100_000..230_000).contains(&lastfm.distinct_pairs), "{}", lastfm.distinct_pairs);
    }

    /// A rule that looks at a user's latest events only finds the labels: AUC of "how many of the last 6 gaps are short".
    #[test]
    fn labels_can_be_told_from_history() {
        let stream = generate(&GenerateConfig::default()).unwrap();
        let mut latest = vec![Vec::<(i64, u32)>::new(); stream.nodes() as usize];
        let (mut positive, mut negative) = (Vec::new(), Vec::new());
        for event in (0..stream.len() as u32).map(crate::EventId) {
            let own = &mut latest[stream.source(event).index()];
            own.push((stream.time(event).0, stream.destination(event).0));
            let recent = &own[own.len().saturating_sub(7)..];
            let quick = |w: &&[(i64, u32)]| w[1].0 - w[0].0 < 15 && w[1].1 != w[0].1;
            let score = recent.windows(2).filter(quick).count();
            if stream.label(event) == Some(1) { positive.push(score) } else { negative.push(score) }
        }
        let below = |p: &usize| {
            negative
                .iter()
                .map(|n| {
                    if n < p {
                        1.0
                    } else if n == p {
                        0.5
                    } else {
                        0.0
                    }
                })
                .sum::<f64>()
        };
        let auc = positive.iter().map(below).sum::<f64>() / (positive.len() * negative.len()) as f64;
        assert!(auc > 0.9, "{auc}");
    }

    #[test]
    fn a_seed_names_a_stream() {
        let config = GenerateConfig { events: Some(3_000), features: 4, seed: 5, ..Default::default() };
        let stream = generate(&config).unwrap();
        assert_eq!(stream.hash(), generate(&config).unwrap().hash());
        assert_ne!(stream.hash(), generate(&GenerateConfig { seed: 6, ..config }).unwrap().hash());
        assert_eq!((stream.len(), stream.feature_dim()), (3_000, 4));
        let mut used = vec![false; stream.nodes() as usize];
        stream.chunks().for_each(|c| {
            c.source.iter().chain(c.destination).for_each(|n| used[n.index()] = true);
        });
        assert!(used.iter().all(|&u| u));
    }

    #[test]
    fn skew_gives_one_item_its_share() {
        let config = GenerateConfig { events: Some(20_000), skew: 0.3, ..Default::default() };
        let s = Statistics::of(&generate(&config).unwrap());
        let share = s.destination_degree.max as f64 / s.events as f64;
        assert!((0.28..0.36).contains(&share), "{share}");
        assert_eq!((s.events, s.sources + s.destinations), (20_000, s.nodes));
    }

    /// Share of the events of the busiest tenth of the nodes, with both the window's own ranking and the first window's.
    fn share_of_the_hot(stream: &EventStream) -> (f64, f64) {
        let window = |from: usize| {
            let mut events = vec![0usize; stream.nodes() as usize];
            (from..from + 2_000).for_each(|e| events[stream.source(crate::EventId(e as u32)).index()] += 1);
            events
        };
        let hot = |events: &[usize]| {
            let mut order: Vec<usize> = (0..events.len()).collect();
            order.sort_by_key(|&n| std::cmp::Reverse(events[n]));
            order.truncate(events.len() / 10);
            order
        };
        let share = |events: &[usize], hot: &[usize]| hot.iter().map(|&n| events[n]).sum::<usize>() as f64 / 2_000.0;
        let (early, late) = (window(0), window(stream.len() / 2));
        (share(&late, &hot(&late)), share(&late, &hot(&early)))
    }

    #[test]
    fn drift_moves_the_hot_nodes() {
        let of = |drift| {
            let config = GenerateConfig { events: Some(20_000), drift, seed: 1, ..Default::default() };
            share_of_the_hot(&generate(&config).unwrap())
        };
        let (still, moved) = (of(0.0), of(0.9));
        assert!(still.0 > 0.5 && moved.0 > 0.5, "{still:?} {moved:?}");
        assert!(still.1 > 0.6 * still.0, "hot nodes stay hot without drift: {still:?}");
        assert!(moved.1 < 0.3 * moved.0, "others are hot later: {moved:?}");
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for config in [
            GenerateConfig { skew: 0.96, ..Default::default() },
            GenerateConfig { skew: f64::NAN, ..Default::default() },
            GenerateConfig { drift: 1.5, ..Default::default() },
        ] {
            assert!(matches!(generate(&config), Err(Error::Setting { .. })));
        }
        let config = GenerateConfig { events: Some(10), nodes: Some(1_000), ..Default::default() };
        assert!(generate(&config).unwrap_err().to_string().contains("events = 10"));
        assert!(generate(&GenerateConfig { nodes: Some(2), ..Default::default() }).is_err());
        assert_eq!(generate(&GenerateConfig { events: Some(20), ..Default::default() }).unwrap().len(), 20);
    }
}
