//! What a link does to datagrams. Pure: times come in, times go out.

use std::str::FromStr;
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// One direction of a link. The default changes nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Link {
    /// From entry to exit, without the time that `rate` takes: the mean.
    pub delay: Duration,
    /// The most by which one datagram's delay differs from the mean, either way; uniform. At most `delay`.
    pub jitter: Duration,
    /// Whether a datagram may overtake another because of jitter; if not, it waits for those before it.
    pub reorder: bool,
    /// Bits per second, each datagram with its IP and UDP headers; as fast as can be if `None`.
    pub rate: Option<u64>,
    /// Bytes that wait at most for the rate; what finds it full is dropped. Means nothing without a rate.
    pub queue: u64,
    /// The part of the datagrams that is lost, `0.0..=1.0`, each by its own luck.
    pub loss: f64,
    /// Bytes of the largest UDP payload that passes; larger ones are dropped. Anything if `None`.
    pub mtu: Option<usize>,
}

/// Known links. Round trips are those of an application on a quiet machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// A Thunderbolt bridge, jumbo frames on: 150 µs round trip, 16 Gbit/s.
    Thunderbolt,
    /// 10 Gbit/s Ethernet through a switch: 250 µs.
    TenGbe,
    /// A wireless network at home: 3 ms, varying by up to 2, 300 Mbit/s, one datagram of a thousand lost.
    Wifi,
}

impl Preset {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Thunderbolt, Self::TenGbe, Self::Wifi];

    /// As the command line has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Thunderbolt => "thunderbolt",
            Self::TenGbe => "10gbe",
            Self::Wifi => "wifi",
        }
    }

    /// Its numbers; both directions are alike.
    pub fn link(self) -> Link {
        let micros = Duration::from_micros;
        match self {
            Self::Thunderbolt => Link {
                delay: micros(75),
                jitter: micros(5),
                rate: Some(16_000_000_000),
                queue: 4 << 20,
                mtu: Some(9000 - HEADERS as usize),
                ..Link::default()
            },
            Self::TenGbe => Link {
                delay: micros(125),
                jitter: micros(10),
                rate: Some(10_000_000_000),
                queue: 2 << 20,
                mtu: Some(1500 - HEADERS as usize),
                ..Link::default()
            },
            Self::Wifi => Link {
                delay: micros(1500),
                jitter: micros(1000),
                rate: Some(300_000_000),
                queue: 1 << 20,
                loss: 0.001,
                mtu: Some(1500 - HEADERS as usize),
                ..Link::default()
            },
        }
    }
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|preset| preset.name() == text);
        found.ok_or_else(|| format!("{text:?} is no link: {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// Why a datagram does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// By bad luck.
    Lost,
    /// The queue was full.
    Overflowed,
    /// It is larger than the link's MTU.
    TooLarge,
}

/// A direction in use: its queue and its luck.
#[derive(Debug)]
pub struct Wire {
    link: Link,
    luck: ChaCha8Rng,
    /// When the last bit of what entered so far will have left the queue.
    sent_at: Option<Instant>,
    /// When the last of what entered so far arrives.
    arrived_at: Option<Instant>,
}

impl Link {
    /// Whether these numbers can be a link.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn check(&self) -> Result<(), String> {
        if !(0.0..=1.0).contains(&self.loss) {
            return Err(format!("a loss of {} is not between 0 and 1", self.loss));
        }
        if self.jitter > self.delay {
            return Err(format!("a jitter of {:?} is more than the delay of {:?}", self.jitter, self.delay));
        }
        if self.rate == Some(0) {
            return Err("a rate of 0 bits per second carries nothing".to_owned());
        }
        Ok(())
    }
}

impl Wire {
    /// An unused direction.
    pub fn new(link: &Link, seed: u64) -> Self {
        Self { link: link.clone(), luck: ChaCha8Rng::seed_from_u64(seed), sent_at: None, arrived_at: None }
    }

    /// When a datagram with a payload of `len` bytes that enters `now` leaves at the other end.
    ///
    /// # Errors
    /// If it does not.
    pub fn enter(&mut self, len: usize, now: Instant) -> Result<Instant, Fate> {
        // Both are drawn for every datagram, so that one's fate does not shift the luck of those after it.
        let (luck, early) = (self.luck.random::<f64>(), self.luck.random::<f64>());
        if self.link.mtu.is_some_and(|mtu| len > mtu) {
            return Err(Fate::TooLarge);
        }
        let sent = match self.link.rate {
            None => now,
            Some(rate) => {
                let starts = self.sent_at.map_or(now, |busy| busy.max(now));
                if starts - now > transmission(self.link.queue, rate) {
                    return Err(Fate::Overflowed);
                }
                starts + transmission(len as u64 + HEADERS, rate)
            }
        };
        self.sent_at = Some(sent);
        // It was sent, and took its time on the wire.
        if luck < self.link.loss {
            return Err(Fate::Lost);
        }
        let delay = self.link.delay - self.link.jitter + self.link.jitter.mul_f64(2.0 * early);
        let arrives = match self.arrived_at {
            Some(last) if !self.link.reorder => last.max(sent + delay),
            _ => sent + delay,
        };
        self.arrived_at = Some(arrives);
        Ok(arrives)
    }
}

fn transmission(bytes: u64, rate: u64) -> Duration {
    Duration::from_secs_f64(bytes as f64 * 8.0 / rate as f64)
}

/// Bytes of an IPv4 and a UDP header.
const HEADERS: u64 = 28;

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    #[test]
    fn a_plain_link_changes_nothing() {
        let (mut wire, now) = (Wire::new(&Link::default(), 0), Instant::now());
        assert_eq!(wire.enter(65_507, now), Ok(now));
        assert_eq!(wire.enter(0, now), Ok(now));
    }

    #[test]
    fn the_rate_spaces_datagrams_out_and_the_queue_is_bounded() {
        // 972 bytes and headers are 8,000 bits, so 8 ms at 1 Mbit/s; the queue holds two and a half.
        let link = Link { rate: Some(1_000_000), queue: 2500, delay: micros(10_000), ..Link::default() };
        let (mut wire, now) = (Wire::new(&link, 0), Instant::now());
        let arrivals: Vec<_> = (0..5).map(|_| wire.enter(972, now)).collect();
        let after = |ms| Ok(now + Duration::from_millis(ms));
        assert_eq!(arrivals, [after(18), after(26), after(34), Err(Fate::Overflowed), Err(Fate::Overflowed)]);
        // Eight milliseconds later there is room for one more.
        let later = now + Duration::from_millis(8);
        assert_eq!([wire.enter(972, later), wire.enter(972, later)], [after(42), Err(Fate::Overflowed)]);
        // After a pause the queue is empty.
        let much_later = now + Duration::from_secs(1);
        assert_eq!(wire.enter(972, much_later), Ok(much_later + Duration::from_millis(18)));
    }

    #[test]
    fn the_named_part_is_lost_and_the_same_seed_loses_the_same() {
        let link = Link { loss: 0.2, ..Link::default() };
        let fates = |seed| -> Vec<bool> {
            let (mut wire, now) = (Wire::new(&link, seed), Instant::now());
            (0..10_000).map(|_| wire.enter(100, now) == Err(Fate::Lost)).collect()
        };
        let first = fates(7);
        let lost = first.iter().filter(|lost| **lost).count();
        // Six standard deviations.
        assert!((1760..=2240).contains(&lost), "{lost} of 10,000");
        assert_eq!(fates(7), first);
        assert_ne!(fates(8), first);
        let (mut all, mut none) = (Wire::new(&Link { loss: 1.0, ..link }, 0), Wire::new(&Link::default(), 0));
        let now = Instant::now();
        assert!((0..1000).all(|_| all.enter(1, now) == Err(Fate::Lost) && none.enter(1, now).is_ok()));
    }

    #[test]
    fn jitter_stays_in_its_bounds_and_overtakes_only_where_it_may() {
        let link = Link { delay: micros(1000), jitter: micros(400), reorder: true, ..Link::default() };
        let now = Instant::now();
        let arrivals = |link: &Link| -> Vec<Duration> {
            let mut wire = Wire::new(link, 3);
            let enter = |n| wire.enter(100, now + micros(n)).map(|at| at - now).expect("nothing is lost");
            (0..1000).map(enter).collect()
        };
        let free = arrivals(&link);
        let delays = free.iter().zip(0..).map(|(at, n)| *at - micros(n));
        let (least, most) = delays.fold((Duration::MAX, Duration::ZERO), |(a, b), d| (a.min(d), b.max(d)));
        assert!(least >= micros(600) && least < micros(640), "{least:?}");
        assert!(most <= micros(1400) && most > micros(1360), "{most:?}");
        assert!(!free.is_sorted());
        let ordered = arrivals(&Link { reorder: false, ..link });
        assert!(ordered.is_sorted());
        // None is earlier than it would have been.
        assert!(ordered.iter().zip(&free).all(|(ordered, free)| ordered >= free));
    }

    #[test]
    fn what_exceeds_the_mtu_is_dropped_and_takes_no_time() {
        let link = Link { mtu: Some(1472), rate: Some(1000), queue: 0, ..Link::default() };
        let (mut wire, now) = (Wire::new(&link, 0), Instant::now());
        assert_eq!(wire.enter(1473, now), Err(Fate::TooLarge));
        assert_eq!(wire.enter(1472, now), Ok(now + Duration::from_secs(12)));
    }

    #[test]
    fn presets_are_links_and_have_their_names() {
        for preset in Preset::ALL {
            assert_eq!(preset.link().check(), Ok(()));
            assert_eq!(preset.name().parse(), Ok(preset));
        }
        assert!("dsl".parse::<Preset>().is_err_and(|message| message.contains("thunderbolt, 10gbe, wifi")));
        for fault in [
            Link { loss: 1.5, ..Link::default() },
            Link { loss: f64::NAN, ..Link::default() },
            Link { jitter: micros(1), ..Link::default() },
            Link { rate: Some(0), ..Link::default() },
        ] {
            assert!(fault.check().is_err(), "{fault:?}");
        }
    }
}
