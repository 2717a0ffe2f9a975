//! The pods that have to restart, since they know old addresses of Services.

use std::collections::BTreeSet;

use engine::moves::{Chosen, MoverWords, Movers};

const WORDS: MoverWords = MoverWords {
    source: "old Service addresses",
    why: "have started with addresses of the old range",
    created_after_close: "every Service had its new address, and still started with an old one: a new pod would, too. The \
                          address is in its own manifest, in the environment or dnsConfig: change it there",
    bare_pods_field: "serviceCidr.deleteBarePods",
};

/// Pods that started with an old address of a Service, by UID. Pods of the host's network do so, too.
pub fn started_with_old_address(uids: &BTreeSet<String>) -> Movers<'_> {
    Movers {
        chosen: Chosen::These(uids),
        words: &WORDS,
    }
}
