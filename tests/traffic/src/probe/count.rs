//! Counting one flow. Pure: the time is told, nothing is sent here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::report::{Counts, Outage};

/// So many outages of a flow are kept; of more, the longest.
const KEPT: usize = 100;
/// So many numbers are remembered to tell second answers from late ones.
const REMEMBERED: u64 = 10_000;

/// The counters of one flow.
#[derive(Debug)]
pub struct Counter {
    timeout: Duration,
    next: u64,
    /// Probes under way by number: when they were sent.
    pending: BTreeMap<u64, (Instant, Timestamp)>,
    /// Lost probes that may still be answered late.
    lost: BTreeSet<u64>,
    counts: Counts,
    /// When the oldest probe was sent after which nothing has come back.
    waiting_since: Option<Instant>,
    /// The outage that goes on: its first probe, the number of its last one.
    outage: Option<(Instant, Outage, u64)>,
    outages: Vec<Outage>,
}

impl Counter {
    /// Nothing counted yet.
    pub fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            next: 0,
            pending: BTreeMap::new(),
            lost: BTreeSet::new(),
            counts: Counts::default(),
            waiting_since: None,
            outage: None,
            outages: Vec::new(),
        }
    }

    /// A probe is being sent; returns its number.
    pub fn send(&mut self, now: Instant, time: Timestamp) -> u64 {
        let number = self.next;
        self.next += 1;
        self.counts.sent += 1;
        self.pending.insert(number, (now, time));
        self.waiting_since.get_or_insert(now);
        number
    }

    /// An answer has come.
    pub fn answer(&mut self, number: u64, now: Instant) {
        self.expire(now);
        if self.pending.remove(&number).is_some() {
            self.counts.answered += 1;
        } else if self.lost.remove(&number) {
            self.counts.late += 1;
        } else {
            self.counts.duplicates += u64::from(number < self.next);
            return;
        }
        if let Some(since) = self.waiting_since {
            self.counts.longest_gap_ms = self.counts.longest_gap_ms.max(milliseconds(now - since));
        }
        // What was sent before the answered probe is overtaken: the path works, and waits for what came after.
        self.waiting_since = self.pending.range(number..).map(|(_, (sent, _))| *sent).next();
        if self.outage.as_ref().is_some_and(|(_, _, last)| *last < number) {
            self.end_outage(Some(now));
        }
    }

    /// An answer by somebody else has come.
    pub fn stray(&mut self) {
        self.counts.strays += 1;
    }

    /// The connection of this flow has broken.
    pub fn broken(&mut self) {
        self.counts.broken += 1;
    }

    /// Counts as lost what has waited too long.
    pub fn expire(&mut self, now: Instant) {
        while let Some((&number, &(sent, time))) = self.pending.first_key_value() {
            if now.saturating_duration_since(sent) < self.timeout {
                break;
            }
            self.pending.remove(&number);
            self.counts.lost += 1;
            self.lost.insert(number);
            match &mut self.outage {
                Some((_, outage, last)) => {
                    outage.lost += 1;
                    *last = number;
                }
                None => {
                    self.outage = Some((
                        sent,
                        Outage {
                            since: time,
                            lost: 1,
                            gap_ms: None,
                        },
                        number,
                    ));
                }
            }
        }
        while self
            .lost
            .first()
            .is_some_and(|number| number + REMEMBERED < self.next)
        {
            self.lost.pop_first();
        }
    }

    /// The target rests or the prober ends: nothing more is sent, and what comes later is another story. To be called
    /// when nothing is pending.
    pub fn rest(&mut self) {
        self.waiting_since = None;
        self.end_outage(None);
    }

    /// Whether an answer may still come.
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        Counts {
            pending: self.pending.len() as u64,
            ..self.counts
        }
    }

    /// The outages so far, with the one that goes on.
    pub fn outages(&self) -> Vec<Outage> {
        self.outages
            .iter()
            .copied()
            .chain(self.outage.as_ref().map(|(_, outage, _)| *outage))
            .collect()
    }

    fn end_outage(&mut self, answered: Option<Instant>) {
        let Some((began, outage, _)) = self.outage.take() else {
            return;
        };
        self.outages.push(Outage {
            gap_ms: answered.map(|now| milliseconds(now - began)),
            ..outage
        });
        if self.outages.len() > KEPT {
            let shortest = (0..self.outages.len()).min_by_key(|index| self.outages[*index].lost);
            shortest.map(|index| self.outages.remove(index));
        }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A counter with a timeout of 100 ms and a clock that is set by hand.
    struct Bench {
        counter: Counter,
        start: Instant,
    }

    impl Bench {
        fn new() -> Self {
            Self {
                counter: Counter::new(Duration::from_millis(100)),
                start: Instant::now(),
            }
        }

        fn at(&self, milliseconds: u64) -> Instant {
            self.start + Duration::from_millis(milliseconds)
        }

        fn send(&mut self, milliseconds: u64) -> u64 {
            self.counter.send(self.at(milliseconds), Timestamp::UNIX_EPOCH)
        }

        fn answer(&mut self, number: u64, milliseconds: u64) {
            self.counter.answer(number, self.at(milliseconds));
        }

        fn counts(&self) -> (u64, u64, u64, u64) {
            let counts = self.counter.counts();
            assert_eq!(
                counts.sent,
                counts.answered + counts.lost + counts.pending,
                "no probe vanishes: {counts:?}"
            );
            (counts.sent, counts.answered, counts.lost, counts.pending)
        }
    }

    #[test]
    fn what_is_answered_in_time_is_not_lost() {
        let mut bench = Bench::new();
        for number in 0..10 {
            assert_eq!(bench.send(number * 10), number);
            bench.answer(number, number * 10 + 3);
        }
        bench.counter.expire(bench.at(1000));
        assert_eq!(bench.counts(), (10, 10, 0, 0));
        assert_eq!(bench.counter.counts().longest_gap_ms, 3);
        assert!(bench.counter.outages().is_empty());
    }

    #[test]
    fn a_pause_of_the_prober_is_no_gap_of_the_network() {
        let mut bench = Bench::new();
        bench.send(0);
        bench.answer(0, 1);
        bench.send(5000);
        bench.answer(1, 5002);
        assert_eq!(bench.counter.counts().longest_gap_ms, 2);
    }

    #[test]
    fn lost_probes_are_one_outage_that_ends_with_the_next_answer() {
        let mut bench = Bench::new();
        bench.send(0);
        bench.answer(0, 1);
        for number in 1..=3 {
            bench.send(number * 10);
        }
        bench.counter.expire(bench.at(129));
        assert_eq!(bench.counts(), (4, 1, 2, 1), "the third is lost at 130 ms");
        bench.send(140);
        bench.answer(4, 141);
        assert_eq!(bench.counts(), (5, 2, 3, 0));
        assert_eq!(
            bench.counter.outages(),
            [Outage {
                since: Timestamp::UNIX_EPOCH,
                lost: 3,
                gap_ms: Some(131)
            }]
        );
        assert_eq!(bench.counter.counts().longest_gap_ms, 131);
    }

    #[test]
    fn late_and_second_answers_change_nothing_that_was_counted() {
        let mut bench = Bench::new();
        bench.send(0);
        bench.counter.expire(bench.at(200));
        bench.answer(0, 210);
        bench.answer(0, 220);
        bench.answer(77, 230);
        let counts = bench.counter.counts();
        assert_eq!(
            (counts.lost, counts.late, counts.duplicates),
            (1, 1, 1),
            "number 77 was never sent"
        );
        assert_eq!(counts.longest_gap_ms, 210, "until then nothing came back");
    }

    #[test]
    fn an_answer_that_overtakes_leaves_the_other_pending() {
        let mut bench = Bench::new();
        bench.send(0);
        bench.send(10);
        bench.answer(1, 20);
        assert_eq!(bench.counts(), (2, 1, 0, 1));
        bench.answer(0, 90);
        assert_eq!(bench.counts(), (2, 2, 0, 0));
        assert_eq!(bench.counter.counts().longest_gap_ms, 20);
    }

    #[test]
    fn an_outage_up_to_the_end_of_a_target_has_no_end_of_its_own() {
        let mut bench = Bench::new();
        bench.send(0);
        bench.counter.expire(bench.at(100));
        assert!(!bench.counter.is_pending());
        bench.counter.rest();
        assert_eq!(
            bench.counter.outages(),
            [Outage {
                since: Timestamp::UNIX_EPOCH,
                lost: 1,
                gap_ms: None
            }]
        );
        bench.send(90_000);
        bench.answer(1, 90_004);
        assert_eq!(bench.counter.counts().longest_gap_ms, 4, "the rest was no gap");
    }
}
