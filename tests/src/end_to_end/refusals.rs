//! Every refused prerequisite, one after the other in one cluster: break, refuse, repair.

use crate::cluster::Cluster;
use crate::demo::Tools;
use crate::demo::flannel_to_calico::cases::CASES;
use crate::demo::flannel_to_calico::refuse;
use crate::demo::operator::Operator;
use crate::demo::traffic;

use super::Tally;

/// Every case of `cargo lab demo --break`.
pub async fn refusals(cluster: &Cluster, tools: &Tools) -> Tally {
    let operator = Operator::new(cluster, &tools.command_line);
    let mut tally = Tally::default();
    for case in CASES {
        let result = refuse(cluster, &operator, case).await;
        tally.count(format!("refused: {}", case.name), result);
    }
    // Some cases interrupt traffic.
    tally.count(
        "refused: after the last case the counts of the traffic restart",
        traffic::replace_probers(cluster).await,
    );
    tally
}
