//! Every prerequisite that is refused, one after the other in one cluster: spoiled, refused, mended.

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
    // Some of what is spoiled is what traffic goes by.
    tally.count(
        "refused: after all of it traffic is counted anew",
        traffic::replace_probers(cluster).await,
    );
    tally
}
