//! Addresses for helpers that need one.

use std::net::IpAddr;

use api::migration::ServiceCidrStatus;
use service_cidr::assignment::spare;
use service_cidr::exchange::{Part, Parts};
use service_cidr::objects::Spare;

use super::super::super::pass::Pass;
use super::MOST_OBSERVED;

/// Addresses for helpers that need one: each is used once in a pass.
#[derive(Default)]
pub(super) struct Spares(Option<std::vec::IntoIter<Vec<IpAddr>>>);

/// Number of addresses that a pass may need.
const MOST_SPARES: usize = MOST_OBSERVED * (1 + Part::ALL.len());

impl Spares {
    pub(super) fn next(&mut self, pass: &Pass<'_>, known: &ServiceCidrStatus) -> Spare {
        let spares = self.0.get_or_insert_with(|| {
            let is_taken = |address: &IpAddr| pass.index.holder(address).is_some();
            spare(
                MOST_SPARES,
                pass.goal,
                &pass.assigned.book,
                is_taken,
                &known.settings,
            )
            .into_iter()
        });
        let mut next = || spares.next().unwrap_or_default();
        Spare {
            helper: next(),
            bridge: Parts::each(|_| next()),
        }
    }
}
