//! The probes of one pod to one target over one protocol: answered probes, lost probes, and the longest time without an answer.

use std::collections::VecDeque;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The time that [`Recent`] covers.
pub const WINDOW: Duration = Duration::from_secs(10);

/// The time that a stream may take until its first answer: nodes learn of a new endpoint or of a new route with a delay. Probes
/// before a first answer in this time are not lost; without an answer in this time, all probes since the start are lost.
pub const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The probes of one stream. Times are the running time of the sender: while the sender does not run, it cannot receive, and it
/// reads pending answers before it judges.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    next: u64,
    pending: VecDeque<Probe>,
    concluded: VecDeque<Probe>,
    totals: Totals,
    /// Whether a probe was answered, or should have been.
    begun: bool,
    /// When the first of the current series of lost probes was sent.
    losing_since: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    number: u64,
    sent: Duration,
    answer: Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    None,
    InTime,
    /// The answer came when the probe was already counted as lost.
    Late,
}

impl Probe {
    fn is_answered(&self) -> bool {
        self.answer == Answer::InTime
    }
}

/// Probes have consecutive numbers.
fn find(probes: &mut VecDeque<Probe>, number: u64) -> Option<&mut Probe> {
    let first = probes.front()?.number;
    let place = usize::try_from(number.checked_sub(first)?).ok()?;
    probes.get_mut(place)
}

/// `Totals` are the numbers of probes since the start of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// `sent` is the number of probes that were answered or are lost.
    pub sent: u64,
    /// `lost` is the number of probes that were not answered in time.
    pub lost: u64,
    /// `late` is the number of lost probes that were answered within 10 seconds. Such packets were delayed, or the kernel has
    /// retried the connection.
    #[serde(default)]
    pub late: u64,
    /// `longestGapMilliseconds` is the longest time without an answer, in milliseconds, from the first lost probe to the next
    /// answered one.
    pub longest_gap_milliseconds: u32,
}

impl Totals {
    /// The sums of both.
    #[must_use]
    #[expect(
        clippy::should_implement_trait,
        reason = "the longest gap is the larger one, not a sum"
    )]
    pub fn add(self, other: Self) -> Self {
        Self {
            sent: self.sent.saturating_add(other.sent),
            lost: self.lost.saturating_add(other.lost),
            late: self.late.saturating_add(other.late),
            longest_gap_milliseconds: self.longest_gap_milliseconds.max(other.longest_gap_milliseconds),
        }
    }
}

/// The last [`WINDOW`] of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recent {
    /// Probes that were answered or are lost.
    pub sent: u32,
    /// Probes without an answer in time.
    pub lost: u32,
    /// The longest time without an answer, in milliseconds, up to now.
    pub gap_milliseconds: u32,
}

impl Stream {
    /// Records a probe that is sent now. Returns its number.
    pub fn send(&mut self, now: Duration) -> u64 {
        let number = self.next;
        self.next += 1;
        self.pending.push_back(Probe {
            number,
            sent: now,
            answer: Answer::None,
        });
        number
    }

    /// Records an answer to the probe with this number. A probe that is already lost stays lost, and is counted as late once.
    pub fn answer(&mut self, number: u64) {
        if let Some(probe) = find(&mut self.pending, number) {
            probe.answer = Answer::InTime;
        } else if let Some(probe) =
            find(&mut self.concluded, number).filter(|probe| probe.answer == Answer::None)
        {
            probe.answer = Answer::Late;
            self.totals.late += 1;
        }
    }

    /// Counts probes without an answer after `patience` as lost, and returns the state of the stream.
    pub fn observe(&mut self, now: Duration, patience: Duration) -> Recent {
        if !self.begins(now) {
            return Recent::default();
        }
        while let Some(probe) = self.pending.front().copied() {
            if !probe.is_answered() && now.saturating_sub(probe.sent) <= patience {
                break;
            }
            self.pending.pop_front();
            self.conclude(probe);
        }
        let from = now.saturating_sub(WINDOW);
        while self.concluded.front().is_some_and(|probe| probe.sent < from) {
            self.concluded.pop_front();
        }
        let recent = self.recent(now);
        self.totals.longest_gap_milliseconds =
            self.totals.longest_gap_milliseconds.max(recent.gap_milliseconds);
        recent
    }

    /// Counts since the start of the stream, as of the last call of [`Self::observe`].
    pub fn totals(&self) -> Totals {
        self.totals
    }

    fn begins(&mut self, now: Duration) -> bool {
        if self.begun {
            return true;
        }
        if let Some(first) = self.pending.iter().position(Probe::is_answered) {
            self.pending.drain(..first);
            self.begun = true;
        } else {
            let first = self.pending.front();
            self.begun = first.is_some_and(|probe| now.saturating_sub(probe.sent) > FIRST_ANSWER_TIMEOUT);
        }
        self.begun
    }

    fn conclude(&mut self, probe: Probe) {
        self.totals.sent += 1;
        if probe.is_answered() {
            self.losing_since = None;
        } else {
            self.totals.lost += 1;
            self.losing_since = self.losing_since.or(Some(probe.sent));
        }
        self.concluded.push_back(probe);
    }

    fn recent(&self, now: Duration) -> Recent {
        let mut recent = Recent::default();
        let mut longest = Duration::ZERO;
        let mut lost_since: Option<Duration> = None;
        for probe in &self.concluded {
            recent.sent += 1;
            if probe.is_answered() {
                let gap = lost_since.take().map(|since| probe.sent.saturating_sub(since));
                longest = longest.max(gap.unwrap_or_default());
            } else {
                recent.lost += 1;
                lost_since = lost_since.or(Some(probe.sent));
            }
        }
        if let Some(since) = self.losing_since {
            // The gap continues, unless a later probe was answered while an earlier one may still be.
            let end = self
                .pending
                .iter()
                .find(|probe| probe.is_answered())
                .map_or(now, |probe| probe.sent);
            longest = longest.max(end.saturating_sub(since));
        }
        recent.gap_milliseconds = u32::try_from(longest.as_millis()).unwrap_or(u32::MAX);
        recent
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(1);

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// Sends a probe every 100 ms until `until`; probes in `lost` get no answer, the others are answered.
    fn run(until: u64, lost: impl Fn(u64) -> bool) -> (Stream, Recent) {
        let mut stream = Stream::default();
        let mut recent = Recent::default();
        for at in (0..until).step_by(100) {
            recent = stream.observe(ms(at), PATIENCE);
            let number = stream.send(ms(at));
            if !lost(at) {
                stream.answer(number);
            }
        }
        (stream, recent)
    }

    #[test]
    fn answered_probes_are_counted_and_have_no_gap() {
        let (stream, recent) = run(5_000, |_| false);
        assert_eq!((recent.sent, recent.lost, recent.gap_milliseconds), (49, 0, 0));
        assert_eq!(stream.totals().sent, 49);
    }

    #[test]
    fn a_gap_lasts_from_the_first_lost_probe_to_the_next_answered_one() {
        let (stream, recent) = run(5_000, |at| (1_000..1_500).contains(&at));
        assert_eq!((recent.lost, recent.gap_milliseconds), (5, 500));
        assert_eq!(stream.totals().longest_gap_milliseconds, 500);
    }

    #[test]
    fn an_open_gap_lasts_until_now() {
        let (_, recent) = run(5_000, |at| at >= 2_000);
        assert_eq!(recent.gap_milliseconds, 2_900);
    }

    #[test]
    fn a_probe_is_lost_only_after_its_timeout() {
        let (_, recent) = run(2_900, |at| at >= 2_000);
        assert_eq!((recent.lost, recent.gap_milliseconds), (0, 0));
        let (_, recent) = run(3_300, |at| at >= 2_000);
        assert_eq!((recent.lost, recent.gap_milliseconds), (2, 1_200));
    }

    #[test]
    fn the_window_moves_and_the_totals_stay() {
        let (stream, recent) = run(20_000, |at| (1_000..1_500).contains(&at));
        assert_eq!((recent.lost, recent.gap_milliseconds), (0, 0));
        assert_eq!(
            (stream.totals().lost, stream.totals().longest_gap_milliseconds),
            (5, 500)
        );
    }

    #[test]
    fn probes_before_an_early_first_answer_are_not_lost() {
        let (stream, recent) = run(6_000, |at| at < 4_900);
        assert_eq!((recent.lost, recent.gap_milliseconds), (0, 0));
        assert_eq!((stream.totals().sent, stream.totals().lost), (10, 0));
        // The first loss after that counts at once.
        let (stream, recent) = run(4_000, |at| at < 1_000 || at == 2_000);
        assert_eq!((recent.lost, stream.totals().sent), (1, 29));
    }

    #[test]
    fn a_stream_without_any_answer_has_lost_all_probes() {
        let (stream, recent) = run(5_000, |_| true);
        assert_eq!((recent.sent, stream.totals().sent), (0, 0));
        let (stream, recent) = run(5_200, |_| true);
        assert_eq!((recent.lost, recent.gap_milliseconds), (41, 5_100));
        assert_eq!(stream.totals().lost, 41);
    }

    #[test]
    fn a_late_answer_is_counted_once_and_a_duplicate_is_ignored() {
        let mut stream = Stream::default();
        let begin = stream.send(ms(0));
        stream.answer(begin);
        let first = stream.send(ms(0));
        assert_eq!(stream.observe(ms(1_001), PATIENCE).lost, 1);
        stream.answer(first);
        stream.answer(first);
        // This probe was not sent yet.
        stream.answer(first + 1);
        let second = stream.send(ms(1_100));
        stream.answer(second);
        stream.answer(second);
        let recent = stream.observe(ms(1_200), PATIENCE);
        assert_eq!((recent.sent, recent.lost), (3, 1));
        assert_eq!((stream.totals().lost, stream.totals().late), (1, 1));
        assert_eq!(stream.totals().longest_gap_milliseconds, 1_100);
    }

    #[test]
    fn an_answer_after_the_window_is_not_counted_as_late() {
        let (mut stream, _) = run(20_000, |at| at == 1_000);
        stream.answer(10);
        assert_eq!((stream.totals().lost, stream.totals().late), (1, 0));
    }

    proptest! {
        /// From the first answer on, every probe is counted once, and as lost if it had no answer.
        #[test]
        fn every_probe_is_counted_once(answered in prop::collection::vec(any::<bool>(), 1..80)) {
            let mut stream = Stream::default();
            let mut at = Duration::ZERO;
            let begin = stream.send(at);
            stream.answer(begin);
            for is in &answered {
                let number = stream.send(at);
                if *is {
                    stream.answer(number);
                }
                at += ms(100);
                stream.observe(at, PATIENCE);
            }
            stream.observe(at + PATIENCE + ms(1), PATIENCE);
            let totals = stream.totals();
            prop_assert_eq!(totals.sent, answered.len() as u64 + 1);
            prop_assert_eq!(totals.lost, answered.iter().filter(|is| !**is).count() as u64);
        }
    }
}
