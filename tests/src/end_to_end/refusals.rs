//! Every prerequisite that is refused, one after the other in one cluster: spoiled, refused, mended.

use crate::cluster::Cluster;
use crate::demo::cases::CASES;
use crate::demo::operator::Operator;
use crate::demo::{self, Tools};

use super::Tally;

/// Every case of `cargo lab demo --break`.
pub async fn refusals(cluster: &Cluster, tools: &Tools) -> Tally {
    let operator = Operator::new(cluster, &tools.command_line);
    let mut tally = Tally::default();
    for case in CASES {
        let result = demo::refuse(cluster, &operator, case).await;
        tally.count(format!("refused: {}", case.name), result);
    }
    tally
}
