//! How long the texts of a status may be, whatever is in them: names of objects, what agents say, what the API server answers.

use std::borrow::Cow;

use api::MigrationStatus;
use engine::words::cut;

/// What happens now, in bytes. It is in a status five times: as the message, in the conditions, and as what is waited for.
pub const MESSAGE: usize = 4096;
/// The same with what is added to it once it stands still.
const WHOLE_MESSAGE: usize = 6144;
/// Why something happened, once.
pub const REASON: usize = 2048;
/// One of several changes of somebody else's.
const DRIFT: usize = 1024;

/// Cuts a text behind so many bytes.
pub fn cut_to(text: &mut String, bytes: usize) {
    if let Cow::Owned(short) = cut(text, bytes) {
        *text = short;
    }
}

/// Cuts every text of a status whose length depends on what is in the cluster.
pub fn cut_texts(status: &mut MigrationStatus) {
    cut_to(&mut status.message, WHOLE_MESSAGE);
    if let Some(standstill) = &mut status.standstill {
        cut_to(&mut standstill.message, MESSAGE);
    }
    if let Some(breach) = &mut status.breach {
        cut_to(&mut breach.message, REASON);
    }
    for what in status.drift.iter_mut().flat_map(|drift| &mut drift.what) {
        cut_to(what, DRIFT);
    }
    let datastore = status.calico_datastore.as_mut();
    if let Some(known) = datastore {
        if let Some(turned_back) = &mut known.turned_back {
            cut_to(&mut turned_back.why, REASON);
        }
        if let Some(first) = &mut known.first_without_network {
            cut_to(first, DRIFT);
        }
    }
}
