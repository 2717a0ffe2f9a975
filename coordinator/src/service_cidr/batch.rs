//! Some Services in the one moment in which kube-proxy writes no rules.

use std::time::{Duration, Instant};

use futures::future::join_all;
use jiff::SignedDuration;
use plan::decision::Wait;
use plan::service_cidr::prime::{self, HEAD_START};
use plan::service_cidr::swap::Step;

use super::exchange::{Exchange, Seen, Subject};
use super::prime::Prime;
use super::quiet::Quiet;
use crate::write::WriteError;

/// One Service, as it was read, and what is done with it.
#[derive(Debug)]
pub struct Work<'pass> {
    /// The Service.
    pub subject: &'pass Subject,
    /// How it was read.
    pub seen: Seen,
    /// What is done.
    pub step: Step,
}

/// Who knows when kube-proxy writes its rules.
#[derive(Clone)]
pub struct Moment<'pass> {
    /// When something changed the last time.
    pub quiet: &'pass Quiet,
    /// What is changed to make kube-proxy write.
    pub prime: Prime<'pass>,
    /// Its `minSyncPeriod`; of several the shortest.
    pub period: SignedDuration,
}

impl Moment<'_> {
    /// Why addresses are not exchanged now.
    pub fn unquiet(&self) -> Option<Wait> {
        prime::unquiet(&self.quiet.last(), self.period)
    }

    /// Makes steps. Those that kube-proxy must not see the middle of are made right after it was made to write its rules, one Service
    /// after the other: whoever is in the middle of it is one, and that for a few milliseconds. Those for which there is no time before
    /// kube-proxy may write again are left for the next moment. Returns why none was made, while nobody knows when it writes.
    pub async fn make(
        &self,
        exchange: &Exchange<'_>,
        work: Vec<Work<'_>>,
    ) -> Result<Option<Wait>, WriteError> {
        let (primed, simple): (Vec<Work<'_>>, Vec<Work<'_>>) =
            work.into_iter().partition(|work| work.step.is_primed());
        let made = simple
            .into_iter()
            .map(|work| exchange.make(work.subject, work.seen, work.step));
        // Each goes on by itself: what one cannot do keeps no other from it.
        join_all(made).await.into_iter().collect::<Result<Vec<()>, _>>()?;
        if primed.is_empty() {
            return Ok(None);
        }
        if let Some(unquiet) = self.unquiet() {
            return Ok(Some(unquiet));
        }
        let begun = Instant::now();
        let took = self.prime.make().await?;
        if let Some(slow) = prime::too_slow(took, self.period) {
            return Ok(Some(slow));
        }
        // No answer tells when every node has begun to write: so long they have for it.
        tokio::time::sleep(Duration::try_from(HEAD_START).unwrap_or_default()).await;
        let heard = self.quiet.heard_of(&self.prime.object(), begun);
        if let Some(slow) = prime::heard_late(heard) {
            return Ok(Some(slow));
        }
        let since = Instant::now();
        let mut longest = SignedDuration::ZERO;
        for work in primed {
            let before = elapsed(since);
            if !prime::is_time(before, longest, self.period) {
                break;
            }
            exchange.make(work.subject, work.seen, work.step).await?;
            longest = longest.max(elapsed(since) - before);
        }
        Ok(None)
    }
}

fn elapsed(since: Instant) -> SignedDuration {
    SignedDuration::try_from(since.elapsed()).unwrap_or(SignedDuration::MAX)
}
