//! The limits of traffic loss, and whether a stream exceeds them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::PathClass;
use super::stream::Recent;

/// The default of `maxLossRatio`.
pub const LOSS_RATIO: f64 = 0.01;
/// The default of `maxGapMilliseconds`.
pub const GAP_MILLISECONDS: u32 = 2_000;
/// A single lost probe may have any cause: between two pods the ratio is judged from two lost probes on.
const MIN_LOST: u32 = 2;
/// The backends of a Service change, and a drain ends some of them: single answers are lost until all nodes have learned of the
/// change, a second or two. The rollout stops when most of the 20 probes of 10 seconds are lost.
const MIN_LOST_OF_A_SERVICE: u32 = 12;
/// For the same reason the longest gap of a Service is this multiple of the limit: by then, backends that a drain has ended are
/// replaced.
const GAPS_OF_A_SERVICE: u32 = 3;
/// With fewer probes than this only the gap is judged.
const MIN_SENT: u32 = 10;

/// `Gates` is how much may be lost on one path.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Gates {
    /// `maxLossRatio` is the highest allowed ratio of lost to sent probes over the last 10 seconds, from 0 to 1. The value of
    /// `spec.gates.maxLossRatio` of the Migration, or its default.
    pub max_loss_ratio: f64,
    /// `maxGapMilliseconds` is the longest allowed time without an answer, in milliseconds. A probe that is answered later than
    /// this counts as lost. The value of `spec.gates.maxGapMilliseconds` of the Migration, or its default.
    pub max_gap_milliseconds: u32,
}

impl Default for Gates {
    fn default() -> Self {
        Self {
            max_loss_ratio: LOSS_RATIO,
            max_gap_milliseconds: GAP_MILLISECONDS,
        }
    }
}

/// The limit that a stream on such a path exceeds, as text; `None` while the stream is within the limits.
///
/// # Examples
///
/// ```
/// use engine::traffic::PathClass;
/// use engine::traffic::gates::{Gates, exceeded_limit};
/// use engine::traffic::stream::Recent;
///
/// let recent = Recent { sent: 200, lost: 5, gap_milliseconds: 100 };
/// assert_eq!(
///     exceeded_limit(PathClass::OldToNew, &recent, &Gates::default()).as_deref(),
///     Some("5 of the last 200 probes had no answer; gates.maxLossRatio is 0.01")
/// );
/// let recent = Recent { lost: 1, ..recent };
/// assert_eq!(exceeded_limit(PathClass::OldToNew, &recent, &Gates::default()), None);
/// ```
pub fn exceeded_limit(class: PathClass, recent: &Recent, gates: &Gates) -> Option<String> {
    let Recent {
        sent,
        lost,
        gap_milliseconds,
    } = *recent;
    let (min_lost, gaps) = match class {
        PathClass::OldToOld
        | PathClass::OldToNew
        | PathClass::NewToOld
        | PathClass::NewToNew
        | PathClass::SameNode => (MIN_LOST, 1),
        PathClass::PodToService | PathClass::PodToDns | PathClass::PodToApi => {
            (MIN_LOST_OF_A_SERVICE, GAPS_OF_A_SERVICE)
        }
    };
    let longest = gates.max_gap_milliseconds.saturating_mul(gaps);
    if gap_milliseconds > longest {
        let times = if gaps > 1 {
            format!(" {gaps} times")
        } else {
            String::new()
        };
        return Some(format!(
            "no answer for more than{times} gates.maxGapMilliseconds {}",
            gates.max_gap_milliseconds
        ));
    }
    let exceeded =
        lost >= min_lost && sent >= MIN_SENT && f64::from(lost) > f64::from(sent) * gates.max_loss_ratio;
    exceeded.then(|| {
        format!(
            "{lost} of the last {sent} probes had no answer; gates.maxLossRatio is {}",
            gates.max_loss_ratio
        )
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing_sent(0, 0, 0, None)]
    #[case::nothing_lost(100, 0, 0, None)]
    #[case::one_of_few(20, 1, 100, None)]
    #[case::at_the_ratio(200, 2, 100, None)]
    #[case::above_the_ratio(199, 2, 100, Some("2 of the last 199 probes"))]
    #[case::two_of_very_few(9, 2, 200, None)]
    #[case::the_longest_gap(100, 0, 2_000, None)]
    #[case::a_longer_gap(100, 20, 2_001, Some("no answer for more than gates.maxGapMilliseconds 2000"))]
    fn a_stream_exceeds_the_ratio_or_the_gap(
        #[case] sent: u32,
        #[case] lost: u32,
        #[case] gap: u32,
        #[case] words: Option<&str>,
    ) {
        let recent = Recent {
            sent,
            lost,
            gap_milliseconds: gap,
        };
        let verdict = exceeded_limit(PathClass::OldToNew, &recent, &Gates::default());
        match (verdict, words) {
            (None, None) => {}
            (Some(verdict), Some(words)) => assert!(verdict.contains(words), "{verdict}"),
            (verdict, words) => panic!("found {verdict:?}, needed {words:?}"),
        }
    }

    #[rstest]
    #[case::one_backend_ended(20, 6, 3_000, false)]
    #[case::all_backends_were_replaced(20, 11, 6_000, false)]
    #[case::most_probes_are_lost(20, 12, 1_500, true)]
    #[case::no_backend_answers(9, 9, 6_100, true)]
    fn the_limits_of_a_service_are_wider(
        #[case] sent: u32,
        #[case] lost: u32,
        #[case] gap: u32,
        #[case] exceeded: bool,
    ) {
        let recent = Recent {
            sent,
            lost,
            gap_milliseconds: gap,
        };
        for class in [PathClass::PodToService, PathClass::PodToDns, PathClass::PodToApi] {
            assert_eq!(
                exceeded_limit(class, &recent, &Gates::default()).is_some(),
                exceeded
            );
        }
    }

    #[test]
    fn a_max_loss_ratio_of_zero_allows_no_loss() {
        let gates = Gates {
            max_loss_ratio: 0.0,
            ..Gates::default()
        };
        let recent = Recent {
            sent: 1000,
            lost: 2,
            gap_milliseconds: 100,
        };
        assert!(exceeded_limit(PathClass::NewToNew, &recent, &gates).is_some());
    }
}
