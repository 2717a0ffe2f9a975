//! Counts one flow. Pure: the caller passes the time, and no packet is sent here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::report::{Counts, Outage};

/// Maximum of stored outages of a flow; if there are more, the longest are kept.
const KEPT: usize = 100;
/// Number of remembered probes, to distinguish second answers from late ones.
const REMEMBERED: u64 = 10_000;

/// The time settings of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The time between two probes.
    pub interval: Duration,
    /// A probe without an answer after this time is lost.
    pub timeout: Duration,
    /// A new flow counts from its first answer on, and after this time without an answer at the latest: a pod may be
    /// Ready a moment before every node has the route to it, with or without a migration.
    pub settle: Duration,
}

/// The counters of one flow.
#[derive(Debug)]
pub struct Counter {
    limits: Limits,
    /// The number of the next probe.
    next: u64,
    /// The first number that counts.
    first: u64,
    /// Time of the first probe that does not count yet; `None` before it, and once the flow counts.
    settling_since: Option<Instant>,
    settled: bool,
    /// Pending probes by number: the time at which they were sent.
    pending: BTreeMap<u64, (Instant, Timestamp)>,
    /// Times of the latest answers, for as long as a loss may still be detected.
    answered: BTreeMap<u64, Instant>,
    /// Lost probes that may still be answered late.
    lost: BTreeSet<u64>,
    counts: Counts,
    /// The longest series of lost probes.
    longest_run: u64,
    /// Time of the oldest probe since which no answer has arrived.
    waiting_since: Option<Instant>,
    /// The outage whose end is not known yet.
    outage: Option<Open>,
    outages: Vec<Outage>,
}

/// Lost probes with consecutive numbers.
#[derive(Debug)]
struct Open {
    first: u64,
    last: u64,
    sent: Instant,
    outage: Outage,
}

impl Counter {
    /// A counter at zero.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            next: 0,
            first: 0,
            settling_since: None,
            settled: false,
            pending: BTreeMap::new(),
            answered: BTreeMap::new(),
            lost: BTreeSet::new(),
            counts: Counts::default(),
            longest_run: 0,
            waiting_since: None,
            outage: None,
            outages: Vec::new(),
        }
    }

    /// A probe is being sent; returns its number.
    pub fn send(&mut self, now: Instant, time: Timestamp) -> u64 {
        let number = self.next;
        self.next += 1;
        if !self.settled {
            let since = *self.settling_since.get_or_insert(now);
            if now - since < self.limits.settle {
                self.first = self.next;
                return number;
            }
            self.settle(now - since);
        }
        self.counts.sent += 1;
        self.pending.insert(number, (now, time));
        self.waiting_since.get_or_insert(now);
        number
    }

    /// Counts an answer.
    pub fn answer(&mut self, number: u64, now: Instant) {
        self.expire(now);
        if number < self.first {
            if let Some(since) = self.settling_since {
                self.settle(now - since);
            }
            return;
        }
        if self.pending.remove(&number).is_some() {
            self.counts.answered += 1;
            self.answered.insert(number, now);
        } else if self.lost.remove(&number) {
            self.counts.late += 1;
        } else {
            self.counts.duplicates += u64::from(number < self.next);
            return;
        }
        if let Some(since) = self.waiting_since {
            self.counts.slowest_answer_ms = self.counts.slowest_answer_ms.max(milliseconds(now - since));
        }
        // Probes sent before the answered one are overtaken: the path works, and the gap starts at the next probe.
        self.waiting_since = self.pending.range(number..).map(|(_, (sent, _))| *sent).next();
    }

    /// Stores the time of a probe and its answer in the network.
    pub fn was_in_the_network(&mut self, time: Duration) {
        if self.settled {
            let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            self.counts.longest_in_network_us = self.counts.longest_in_network_us.max(time);
        }
    }

    fn settle(&mut self, took: Duration) {
        self.settled = true;
        self.settling_since = None;
        self.counts.longest_settling_ms = milliseconds(took);
    }

    /// Counts an answer from another sender than the target.
    pub fn stray(&mut self) {
        self.counts.strays += 1;
    }

    /// Counts a broken connection of this flow.
    pub fn broken(&mut self) {
        self.counts.broken += 1;
    }

    /// Counts probes without an answer in time as lost.
    pub fn expire(&mut self, now: Instant) {
        while let Some((&number, &(sent, time))) = self.pending.first_key_value() {
            if now.saturating_duration_since(sent) < self.limits.timeout {
                break;
            }
            self.pending.remove(&number);
            self.counts.lost += 1;
            self.lost.insert(number);
            match &mut self.outage {
                Some(open) if open.last + 1 == number => {
                    open.last = number;
                    open.outage.lost += 1;
                    self.longest_run = self.longest_run.max(open.outage.lost);
                }
                _ => {
                    self.end_outage();
                    self.longest_run = self.longest_run.max(1);
                    let outage = Outage {
                        since: time,
                        lost: 1,
                        gap_ms: None,
                    };
                    self.outage = Some(Open {
                        first: number,
                        last: number,
                        sent,
                        outage,
                    });
                }
            }
        }
        // The probe after the outage is neither lost nor pending: it was answered.
        let is_over = |open: &Open| open.last + 1 < self.next && !self.pending.contains_key(&(open.last + 1));
        if self.outage.as_ref().is_some_and(is_over) {
            self.end_outage();
        }
        let oldest = self
            .pending
            .first_key_value()
            .map_or(self.next, |(number, _)| *number);
        let oldest = self.outage.as_ref().map_or(oldest, |open| oldest.min(open.first));
        self.answered = self.answered.split_off(&oldest);
        while self
            .lost
            .first()
            .is_some_and(|number| number + REMEMBERED < self.next)
        {
            self.lost.pop_first();
        }
    }

    /// The target pauses or the prober ends: no more probes are sent, and later events do not count. To be called
    /// when no probe is pending.
    pub fn rest(&mut self) {
        self.waiting_since = None;
        self.end_outage();
    }

    /// Whether an answer may still come.
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        let interval = milliseconds(self.limits.interval);
        let any = self.counts.answered + self.counts.lost > 0;
        Counts {
            pending: self.pending.len() as u64,
            longest_gap_ms: if any {
                (self.longest_run + 1).saturating_mul(interval)
            } else {
                0
            },
            ..self.counts
        }
    }

    /// The outages so far, with the present one.
    pub fn outages(&self) -> Vec<Outage> {
        self.outages
            .iter()
            .copied()
            .chain(self.outage.as_ref().map(|open| open.outage))
            .collect()
    }

    fn end_outage(&mut self) {
        let Some(open) = self.outage.take() else { return };
        let next = self.answered.range(open.first..).map(|(_, at)| *at).min();
        let gap_ms = next.map(|at| milliseconds(at.saturating_duration_since(open.sent)));
        self.outages.push(Outage {
            gap_ms,
            ..open.outage
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

    /// A counter with a timeout of 100 ms and a manual clock.
    struct Bench {
        counter: Counter,
        start: Instant,
    }

    impl Bench {
        /// Counts from the first probe on.
        fn new() -> Self {
            Self::settling(0)
        }

        fn settling(milliseconds: u64) -> Self {
            let settle = Duration::from_millis(milliseconds);
            let limits = Limits {
                interval: Duration::from_millis(10),
                timeout: Duration::from_millis(100),
                settle,
            };
            Self {
                counter: Counter::new(limits),
                start: Instant::now(),
            }
        }

        fn at(&self, milliseconds: u64) -> Instant {
            self.start + Duration::from_millis(milliseconds)
        }

        fn send(&mut self, milliseconds: u64) -> u64 {
            let time = Timestamp::from_millisecond(i64::try_from(milliseconds).unwrap()).unwrap();
            self.counter.send(self.at(milliseconds), time)
        }

        fn answer(&mut self, number: u64, milliseconds: u64) {
            self.counter.answer(number, self.at(milliseconds));
        }

        fn expire(&mut self, milliseconds: u64) {
            self.counter.expire(self.at(milliseconds));
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

        /// Outages as (first probe sent at, lost, gap).
        fn outages(&self) -> Vec<(i64, u64, Option<u64>)> {
            let outages = self.counter.outages();
            outages
                .iter()
                .map(|outage| (outage.since.as_millisecond(), outage.lost, outage.gap_ms))
                .collect()
        }
    }

    #[test]
    fn a_probe_answered_in_time_is_not_lost() {
        let mut bench = Bench::new();
        for number in 0..10 {
            assert_eq!(bench.send(number * 10), number);
            bench.answer(number, number * 10 + 3);
        }
        bench.expire(1000);
        assert_eq!(bench.counts(), (10, 10, 0, 0));
        let counts = bench.counter.counts();
        assert_eq!((counts.longest_gap_ms, counts.slowest_answer_ms), (10, 3));
        assert!(bench.outages().is_empty());
    }

    #[test]
    fn a_pause_of_the_prober_is_not_a_gap_of_the_network() {
        let mut bench = Bench::new();
        bench.send(0);
        bench.answer(0, 1);
        bench.send(5000);
        bench.answer(1, 5002);
        let counts = bench.counter.counts();
        assert_eq!((counts.longest_gap_ms, counts.slowest_answer_ms), (10, 2));
    }

    #[test]
    fn a_delay_without_loss_is_no_gap_but_is_reported() {
        let mut bench = Bench::new();
        bench.send(0);
        bench.answer(0, 45);
        bench.counter.was_in_the_network(Duration::from_micros(42_900));
        bench.send(100);
        bench.answer(1, 101);
        bench.counter.was_in_the_network(Duration::from_micros(300));
        let counts = bench.counter.counts();
        assert_eq!(
            (counts.longest_gap_ms, counts.longest_in_network_us),
            (10, 42_900)
        );
    }

    #[test]
    fn consecutive_lost_probes_are_one_outage() {
        let mut bench = Bench::new();
        bench.send(0);
        bench.answer(0, 1);
        for number in 1..=3 {
            bench.send(number * 10);
        }
        bench.send(40);
        bench.answer(4, 41);
        bench.expire(129);
        assert_eq!(bench.counts(), (5, 2, 2, 1), "the third is lost at 130 ms");
        assert_eq!(bench.outages(), [(10, 2, None)], "its end is not known yet");
        bench.expire(130);
        assert_eq!(bench.counts(), (5, 2, 3, 0));
        assert_eq!(bench.outages(), [(10, 3, Some(31))]);
        let counts = bench.counter.counts();
        assert_eq!((counts.longest_gap_ms, counts.slowest_answer_ms), (40, 31));
    }

    #[test]
    fn an_answer_in_between_makes_two_outages_even_before_the_loss_is_detected() {
        let mut bench = Bench::new();
        for number in 0..5 {
            bench.send(number * 10);
        }
        bench.answer(2, 22);
        bench.answer(4, 42);
        bench.expire(200);
        assert_eq!(bench.outages(), [(0, 2, Some(22)), (30, 1, Some(12))]);
        let counts = bench.counter.counts();
        assert_eq!((counts.longest_gap_ms, counts.slowest_answer_ms), (30, 22));
    }

    #[test]
    fn late_and_second_answers_do_not_change_earlier_counts() {
        let mut bench = Bench::new();
        bench.send(0);
        bench.expire(200);
        bench.answer(0, 210);
        bench.answer(0, 220);
        bench.answer(77, 230);
        let counts = bench.counter.counts();
        assert_eq!(
            (counts.lost, counts.late, counts.duplicates),
            (1, 1, 1),
            "number 77 was never sent"
        );
        assert_eq!(counts.slowest_answer_ms, 210, "no answer arrived before");
        assert_eq!(counts.longest_gap_ms, 20);
    }

    #[test]
    fn an_overtaking_answer_leaves_the_other_probe_pending() {
        let mut bench = Bench::new();
        bench.send(0);
        bench.send(10);
        bench.answer(1, 20);
        assert_eq!(bench.counts(), (2, 1, 0, 1));
        bench.answer(0, 90);
        assert_eq!(bench.counts(), (2, 2, 0, 0));
        let counts = bench.counter.counts();
        assert_eq!((counts.longest_gap_ms, counts.slowest_answer_ms), (10, 20));
    }

    #[test]
    fn an_outage_up_to_the_end_of_a_target_has_no_end() {
        let mut bench = Bench::new();
        bench.send(0);
        bench.expire(100);
        assert!(!bench.counter.is_pending());
        bench.counter.rest();
        assert_eq!(bench.outages(), [(0, 1, None)]);
        bench.send(90_000);
        bench.answer(1, 90_004);
        let counts = bench.counter.counts();
        assert_eq!(counts.slowest_answer_ms, 4, "the rest was no answer");
        assert_eq!(counts.longest_gap_ms, 20, "and no gap");
    }

    #[test]
    fn a_new_flow_counts_from_its_first_answer_on() {
        let mut bench = Bench::settling(5000);
        bench.send(0);
        bench.send(10);
        assert_eq!(bench.counts(), (0, 0, 0, 0));
        bench.answer(1, 12);
        bench.answer(0, 13);
        bench.send(20);
        assert_eq!(bench.counts(), (1, 0, 0, 1));
        let counts = bench.counter.counts();
        assert_eq!(
            (counts.longest_settling_ms, counts.duplicates, counts.late),
            (12, 0, 0)
        );
    }

    #[test]
    fn a_flow_without_answers_counts_after_its_limit() {
        let mut bench = Bench::settling(50);
        for number in 0..10 {
            bench.send(number * 10);
        }
        bench.expire(1000);
        assert_eq!(bench.counts(), (5, 0, 5, 0), "those from 50 ms on");
        assert_eq!(bench.counter.counts().longest_settling_ms, 50);
        assert_eq!(bench.outages(), [(50, 5, None)]);
    }
}
