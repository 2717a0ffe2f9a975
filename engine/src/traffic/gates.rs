//! How much of the traffic may be lost, and when that is exceeded.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::PathClass;
use super::stream::Recent;

/// `maxLossRatio` when the spec does not say.
pub const LOSS_RATIO: f64 = 0.01;
/// `maxGapMilliseconds` when the spec does not say.
pub const GAP_MILLISECONDS: u32 = 2_000;
/// One probe that is lost among many may be anybody's: between two pods a ratio is judged from two on.
const LEAST_LOST: u32 = 2;
/// Pods behind a Service come and go, and a drain ends some of them itself: what nodes have not heard of for a second or two
/// loses single answers. Of the 20 probes of 10 seconds it stops the rollout when most are lost.
const LEAST_LOST_OF_A_SERVICE: u32 = 12;
/// And for the same reason a Service may have no answer for so many times the longest gap: pods behind it that a drain has
/// ended are replaced by then, or they are not replaced.
const GAPS_OF_A_SERVICE: u32 = 3;
/// Of fewer probes than this nothing is said but their gap.
const LEAST_SENT: u32 = 10;

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

/// What a stream on such a path exceeds, in words that name the limit; `None` while it is within them.
pub fn judge(class: PathClass, recent: &Recent, gates: &Gates) -> Option<String> {
    let Recent {
        sent,
        lost,
        gap_milliseconds,
    } = *recent;
    let (least_lost, gaps) = match class {
        PathClass::OldToOld
        | PathClass::OldToNew
        | PathClass::NewToOld
        | PathClass::NewToNew
        | PathClass::SameNode => (LEAST_LOST, 1),
        PathClass::PodToService | PathClass::PodToDns | PathClass::PodToApi => {
            (LEAST_LOST_OF_A_SERVICE, GAPS_OF_A_SERVICE)
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
        lost >= least_lost && sent >= LEAST_SENT && f64::from(lost) > f64::from(sent) * gates.max_loss_ratio;
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
    fn what_exceeds(#[case] sent: u32, #[case] lost: u32, #[case] gap: u32, #[case] words: Option<&str>) {
        let recent = Recent {
            sent,
            lost,
            gap_milliseconds: gap,
        };
        let said = judge(PathClass::OldToNew, &recent, &Gates::default());
        match (said, words) {
            (None, None) => {}
            (Some(said), Some(words)) => assert!(said.contains(words), "{said}"),
            (said, words) => panic!("{said:?}, wanted {words:?}"),
        }
    }

    #[rstest]
    #[case::a_pod_behind_it_ended(20, 6, 3_000, false)]
    #[case::all_behind_it_were_replaced(20, 11, 6_000, false)]
    #[case::most_of_it_is_lost(20, 12, 1_500, true)]
    #[case::it_is_gone(9, 9, 6_100, true)]
    fn what_exceeds_behind_a_service(
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
            assert_eq!(judge(class, &recent, &Gates::default()).is_some(), exceeded);
        }
    }

    #[test]
    fn no_loss_at_all_may_be_asked_for() {
        let gates = Gates {
            max_loss_ratio: 0.0,
            ..Gates::default()
        };
        let recent = Recent {
            sent: 1000,
            lost: 2,
            gap_milliseconds: 100,
        };
        assert!(judge(PathClass::NewToNew, &recent, &gates).is_some());
    }
}
